#include "harness/cli/serving_options.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "core/check.h"
#include "core/temporary_folder.h"
#include "models/model.h"

namespace hypic {
namespace {

using namespace std::chrono_literals;

// A process that waits for signals, then runs `work`, which ends it.
class Child {
 public:
  explicit Child(const std::function<void()>& work, bool ready = true) {
    int told[2];
    EXPECT_EQ(pipe(told), 0);
    id_ = fork();
    if (id_ == 0) {
      signal(SIGINT, SIG_DFL);  // background jobs of a shell ignore it
      take_signals();
      if (ready) say_ready("");
      if (write(told[1], "", 1) != 1) _exit(99);
      wait_for_signal();
      if (write(told[1], "", 1) != 1) _exit(99);
      work();
      _exit(98);
    }
    close(told[1]);
    told_ = told[0];
    wait_until_told();
  }
  ~Child() { close(told_); }
  void send(int signal) { kill(id_, signal); }
  // Before the first time: until it waits; then: until it has taken a signal.
  void wait_until_told() {
    char byte;
    EXPECT_EQ(read(told_, &byte, 1), 1);
  }
  // As waitpid says it. `again` is sent until then, from time to time.
  int end(int again = 0) {
    int status = 0;
    while (waitpid(id_, &status, again ? WNOHANG : 0) == 0) {
      send(again);
      std::this_thread::sleep_for(50ms);
    }
    return status;
  }

 private:
  pid_t id_ = 0;
  int told_ = 0;
};

TEST(Signals, TheSameOneTwiceIsOne) {
  for (int i = 0; i < 300; ++i) {
    Child child([] {
      ends_with(3);
      _exit(3);
    });
    child.send(i % 2 == 0 ? SIGINT : SIGTERM);
    if (i % 3 != 0) std::this_thread::sleep_for(std::chrono::microseconds(10 * i));
    child.send(SIGINT);
    const int status = child.end();
    ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status) << " in round " << i;
    ASSERT_EQ(WEXITSTATUS(status), 3);
  }
}

TEST(Signals, OneIsEnoughWhileNothingRuns) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Child child([] {}, false);
    child.send(signal);
    const int status = child.end();
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), signal);
  }
}

TEST(Signals, AnotherOneEndsItAtOnce) {
  Child child([] { std::this_thread::sleep_for(1h); });
  child.send(SIGTERM);
  child.wait_until_told();
  const int status = child.end(SIGINT);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGINT);
}

TEST(Signals, AnotherOneKeepsTheExitCodeThatIsKnown) {
  Child child([] {
    ends_with(1);
    std::this_thread::sleep_for(1h);
  });
  child.send(SIGINT);
  child.wait_until_told();
  const int status = child.end(SIGINT);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

std::string key_of(const std::string& content) {
  const TemporaryFolder folder;
  DoorChoice choice;
  choice.key_file = folder.write("key", content);
  try {
    complete(choice, "model", "random:qwen3.5-tiny", spec_of("random:qwen3.5-tiny"));
  } catch (const Error&) {
    return "refused";
  }
  return choice.server.api_key;
}

TEST(Door, KeysAreWhatAHeaderCanHold) {
  EXPECT_EQ(key_of("secret\r\nmore"), "secret");
  EXPECT_EQ(key_of("secret"), "secret");
  for (const std::string& bad : {std::string(), std::string("\n"), std::string("\r\n"), std::string("a b\n"),
                                 std::string("a\0b\n", 4), std::string("\xc3\xa9\n"), std::string(5000, 'a')})
    EXPECT_EQ(key_of(bad), "refused") << bad;
}

TEST(Door, DiskAndItsFolderNeedEachOther) {
  const ModelSpec spec = spec_of("random:qwen3.5-tiny");
  for (const auto& [mib, folder] : {std::pair(1, ""), {0, "somewhere"}}) {
    EngineChoice choice;
    choice.disk_mib = mib;
    choice.engine.cache.disk_folder = folder;
    EXPECT_THROW(complete(choice, spec), Error);
  }
}

}  // namespace
}  // namespace hypic
