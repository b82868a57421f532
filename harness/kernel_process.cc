#include "harness/kernel_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <string_view>
#include <thread>

#include "core/check.h"
#include "reports/result_log.h"
#include "reports/text.h"

namespace hypic::kernel_process {
namespace {

constexpr const char* kVariable = "HYPIC_KERNEL_BOARD";  // the board's descriptor, and "+" where the run goes on
constexpr int kMaxRestarts = 1000;

// What a child tells its parent, in memory that both have. The parent believes nothing of it but its size.
struct Board {
  std::atomic<uint64_t> entered;  // calls so far
  std::atomic<int32_t> inside;    // in such a call
  std::atomic<int32_t> seconds;   // that one may take
  std::atomic<int32_t> done;
  std::atomic<int32_t> status;
  std::array<char, 64> what;
  std::array<char, 4096> out;
  std::array<char, 256> name;
  std::array<char, 64> driver;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<int32_t>::is_always_lock_free);

template <size_t N>
void put(std::array<char, N>& to, std::string_view text) {
  const size_t size = std::min(text.size(), N - 1);
  std::memcpy(to.data(), text.data(), size);
  to[size] = 0;
}

template <size_t N>
std::string text_of(const std::array<char, N>& from) {
  return one_line(std::string(from.data(), strnlen(from.data(), N)));
}

Board* map(int descriptor) {
  void* const memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  HYPIC_CHECK(memory != MAP_FAILED, std::strerror(errno));
  return static_cast<Board*>(memory);
}

// In the child: its board; null elsewhere.
Board* board() {
  static Board* const mine = [] {
    const char* const text = std::getenv(kVariable);
    if (!text) return static_cast<Board*>(nullptr);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return map(std::atoi(text));
  }();
  return mine;
}

class BoardWatch final : public plugin::Watch {
 public:
  void loaded(const std::string& path, const hypic_kernel& kernel) override {
    library = path;
    table = &kernel;
  }
  void enter(std::string_view what) override {
    if (!board()) return;
    put(board()->what, what);
    ++board()->entered;
    board()->inside = 1;
  }
  void leave() override {
    if (board()) board()->inside = 0;
  }
  void ran(const std::string& key) override { ++counts[key]; }

  std::string library;
  const hypic_kernel* table = nullptr;
  std::map<std::string, int64_t> counts;  // by Backend::launches' keys
};

BoardWatch& board_watch() {
  static BoardWatch one;
  return one;
}

bool by_kernel(const std::string& key) { return key.ends_with("/kernel"); }

std::atomic<pid_t> running = 0;  // the parent's child, for the handler of signals

// A terminal gives its interrupt to the child as well, which ends at once at a second one.
void pass_on(int signal, siginfo_t* info, void*) {
  const pid_t child = running;
  if (child > 0 && info->si_code != SI_KERNEL) kill(child, signal);
}

// Signals that ask this process to stop go to the child while this lives.
class PassedOn {
 public:
  explicit PassedOn(pid_t child) {
    running = child;
    struct sigaction action {};
    action.sa_sigaction = pass_on;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGINT, &action, &interrupt_);
    sigaction(SIGTERM, &action, &terminate_);
  }
  ~PassedOn() {
    running = 0;
    sigaction(SIGINT, &interrupt_, nullptr);
    sigaction(SIGTERM, &terminate_, nullptr);
  }
  PassedOn(const PassedOn&) = delete;
  PassedOn& operator=(const PassedOn&) = delete;

 private:
  struct sigaction interrupt_ {
  }, terminate_{};
};

// Waits for the child, or ends it where one call takes too long; then true, with its number of seconds.
bool outlasted(pid_t child, const Board& seen, int* state, int* seconds) {
  using Clock = std::chrono::steady_clock;
  uint64_t call = 0;
  Clock::time_point since = Clock::now();
  while (waitpid(child, state, WNOHANG) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const auto now = Clock::now();
    if (seen.inside == 0 || seen.entered != call) {
      call = seen.entered;
      since = now;
      continue;
    }
    *seconds = seen.seconds;
    if (now - since < std::chrono::seconds(*seconds)) continue;
    kill(child, SIGKILL);
    waitpid(child, state, 0);
    return true;
  }
  return false;
}

}  // namespace

bool is_child() { return board() != nullptr; }

std::string named_in(int argc, char* const argv[]) {
  const std::string option = kOption;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == option && i + 1 < argc) return argv[i + 1];
    if (argument.starts_with(option + "=")) return argument.substr(option.size() + 1);
  }
  return {};
}

Ending run(char* const argv[], bool goes_on) {
  const int descriptor = memfd_create("hypic-kernel", 0);
  HYPIC_CHECK(descriptor >= 0 && ftruncate(descriptor, sizeof(Board)) == 0, std::strerror(errno));
  Board* const seen = map(descriptor);
  seen->seconds = kSeconds;
  const std::string setting = str(descriptor, goes_on ? "+" : "");
  std::cout.flush();
  std::cerr.flush();
  const pid_t child = fork();
  HYPIC_CHECK(child >= 0, std::strerror(errno));
  if (child == 0) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    setenv(kVariable, setting.c_str(), 1);
    execv("/proc/self/exe", argv);
    _exit(127);
  }
  int state = 0, seconds = 0;
  bool hung = false;
  {
    const PassedOn passed_on(child);
    hung = outlasted(child, *seen, &state, &seconds);
  }
  const std::string where = seen->inside ? "in " + text_of(seen->what) : "outside of its calls";
  Ending ending;
  if (hung)
    ending.why = str("hangs: no answer for ", seconds, " s ", where);
  else if (WIFSIGNALED(state))
    ending.why = str("crashed ", where, ": ", strsignal(WTERMSIG(state)));
  else if (!seen->done || seen->status != WEXITSTATUS(state))
    ending.why = str("ended the program ", where, ", exit status ", WEXITSTATUS(state));
  else
    ending.status = seen->status;
  ending.out = text_of(seen->out);
  ending.name = text_of(seen->name);
  ending.driver = text_of(seen->driver);
  munmap(seen, sizeof(Board));
  close(descriptor);
  return ending;
}

int run_self(char* const argv[], const std::string& kernel) {
  bool goes_on = false;
  for (int i = 0; i < kMaxRestarts; ++i, goes_on = true) {
    const Ending ending = run(argv, goes_on);
    if (ending.why.empty()) return ending.status;
    const bool in_case = !ending.name.empty() && !ending.out.empty();
    std::cerr << "hypic: FAIL: " << one_line(str(kernel, " ", ending.why)) << (in_case ? "; the other cases go on" : "")
              << std::endl;
    if (!in_case) break;
    Result result;
    result.name = ending.name;
    result.driver = ending.driver;
    result.verdict = Verdict::fail;
    result.why = str("the kernel ", ending.why);
    ResultLog(ending.out).append(result);
  }
  return 1;
}

plugin::Watch& watch() { return board_watch(); }

void limit_seconds(int seconds) {
  if (board()) board()->seconds = seconds;
}

bool goes_on() {
  const char* const text = std::getenv(kVariable);
  return text && std::strchr(text, '+');
}

void at_case(const std::string& out, const std::string& name, const std::string& driver) {
  if (!board()) return;
  put(board()->out, out);
  put(board()->name, name);
  put(board()->driver, driver);
}

std::string library() { return board_watch().library; }

bool offers(std::string_view operation, const FamilyTraits* family) {
  const hypic_kernel* const table = board_watch().table;
  if (!table) return false;
  if (operation == "causal_conv" || operation == "conv_gates") return table->causal_conv;
  if (operation == "attention") return table->attention;
  if (operation == "experts" || operation == "moe") return table->experts;
  if (operation != "linear_attention" || !table->linear_attention) return false;
  return !family || (table->decays & HYPIC_BIT(static_cast<uint32_t>(family->decay)) &&
                     table->updates & HYPIC_BIT(static_cast<uint32_t>(family->update)) &&
                     table->readouts & HYPIC_BIT(static_cast<uint32_t>(family->readout)));
}

int64_t calls() {
  int64_t n = 0;
  for (const auto& [key, count] : board_watch().counts) n += by_kernel(key) ? count : 0;
  return n;
}

Result result() {
  const BoardWatch& seen = board_watch();
  Result result;
  result.name = "the kernel itself";
  result.driver = "kernel";
  Table table{"What computed the operations that the kernel offers", {"operation", "computed by", "why", "calls"}, {}};
  int64_t others = 0;
  for (const auto& [key, count] : seen.counts) {
    const size_t by = key.find('/') + 1, why = key.find(':', by);
    if (!by_kernel(key)) others += count;
    table.rows.push_back({key.substr(0, by - 1), key.substr(by, why == key.npos ? why : why - by),
                          why == key.npos ? "" : str("not its: ", key.substr(why + 1)), count});
  }
  result.tables.push_back(std::move(table));
  const int64_t own = calls();
  result.values = {{"kernel", static_cast<double>(own), "calls"}, {"base", static_cast<double>(others), "calls"}};
  result.verdict = own > 0 ? Verdict::measured : Verdict::invalid;
  result.why = own > 0 ? str(own, " calls computed by it, ", others, " left to the backend")
                       : str("it computed nothing: ", others, " calls of its operations were left to the backend");
  if (others > 0 && own == 0) result.why += ", such as " + seen.counts.begin()->first;
  return result;
}

void done(int status) {
  if (!board()) return;
  board()->status = status;
  board()->done = 1;
}

}  // namespace hypic::kernel_process
