#include "harness/cli/serving_options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <semaphore>
#include <thread>

#include "core/check.h"
#include "harness/cli/run_options.h"
#include "harness/descriptors.h"
#include "harness/model_choice.h"
#include "models/end_tokens.h"

namespace hypic {
namespace {

constexpr int kUnknown = -1;
std::atomic<int> exit_status = kUnknown;
std::atomic<bool> ready = false;  // something runs that must end in order
std::binary_semaphore asked_to_end(0);

[[noreturn]] void end_by(int which) {
  signal(which, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, which);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(which);
  std::abort();  // not reached
}

// The signals stay blocked for all threads but this one's wait: one that is let through kills even a process that has
// just done its duty.
void watch(const sigset_t& signals) {
  constexpr std::chrono::seconds kSameAgain{1};
  std::optional<std::chrono::steady_clock::time_point> first;
  for (;;) {
    int which = 0;
    sigwait(&signals, &which);
    const auto now = std::chrono::steady_clock::now();
    if (!ready) end_by(which);
    if (!first) {
      first = now;
      asked_to_end.release();
    } else if (which == SIGINT && now - *first >= kSameAgain) {
      if (const int status = exit_status; status != kUnknown) _exit(status);
      end_by(which);
    }
  }
}

std::string read_key(const std::string& path) {
  std::ifstream file(path);
  std::string key;
  std::getline(file, key);
  if (key.ends_with('\r')) key.pop_back();
  require(!key.empty(), "--api-key-file: ", path, " has no key in its first line");
  constexpr size_t kMost = 4096;
  const auto printable = [](char c) { return ' ' < c && c < 127; };
  require(key.size() <= kMost && std::all_of(key.begin(), key.end(), printable), "--api-key-file: the first line of ",
          path, " must be a key that a header can hold: up to ", kMost, " printable ASCII characters, no blanks");
  return key;
}

}  // namespace

void add_engine_options(CLI::App& command, EngineChoice& choice) {
  const auto at_least_one = CLI::Range(int64_t{1}, int64_t{1} << 31);
  command.add_option("--model", choice.model, str(kModels, " (default ", kDefaultModel, ")"));
  add_backend_options(command, choice.backend, "Backend: cpu (default), cpu64, cuda (bfloat16) or cuda32");
  command.add_option("--mode", choice.mode, "How segments are reused (default transition_rope_seam)");
  command.add_option("--requests", choice.requests, "Requests that run at once (default 64)")
      ->check(CLI::Range(1, 65536));
  command.add_option("--tokens", choice.tokens, "Tokens of K and V in memory: of requests and of the cache")
      ->check(at_least_one);
  command.add_option("--cached-segments", choice.segments, "Segments on the device, cached or running (default 128)")
      ->check(at_least_one);
  command.add_option("--chunk", choice.engine.max_rows, "Rows of one forward at most (default 8192)")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--host-cache", choice.host_mib, "MiB of host memory for cached segments (default 0)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24));
  command.add_option("--disk-cache", choice.disk_mib, "MiB on disk for them (default 0)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  command.add_option("--disk-folder", choice.engine.cache.disk_folder, "Folder for them; needs --disk-cache");
}

void complete(EngineChoice& choice, const ModelSpec& spec) {
  PoolSizes& pools = choice.engine.pools;
  const int64_t tokens = choice.tokens > 0 ? choice.tokens : std::min<int64_t>(int64_t{4} * spec.max_positions, 65536);
  pools.pages = (tokens + pools.page_size - 1) / pools.page_size + choice.requests;
  pools.state_slots = 2 * choice.requests;
  pools.operator_slots = choice.segments > 0 ? choice.segments : 2 * choice.requests;
  choice.engine.cache.admission = kServerAdmission;
  choice.engine.cache.host_bytes = choice.host_mib << 20;
  choice.engine.cache.disk_bytes = choice.disk_mib << 20;
  require((choice.disk_mib > 0) == !choice.engine.cache.disk_folder.empty(),
          "--disk-cache and --disk-folder need each other");
}

void add_door_options(CLI::App& command, DoorChoice& choice) {
  const auto at_least_one = CLI::Range(int64_t{1}, int64_t{1} << 31);
  command.add_option("--served-name", choice.server.model, "The model's name to clients (default: that of --model)");
  command.add_option("--tokenizer", choice.tokenizer, "tokenizer.json, or a folder with one (default: the model's)");
  command.add_option("--chat-template", choice.chat, "chatml, bailing, kimi or none (default: of the model's type)");
  command.add_option("--separator", choice.server.api.separator, "Between segments in texts (default <<PIC_SEP>>)")
      ->check([](const std::string& text) { return text.empty() ? std::string("must not be empty") : std::string(); });
  command.add_option("--host", choice.server.address, "Address to listen on (default 127.0.0.1)");
  command.add_option("--port", choice.port, "Port, 0: any (default 8000)")->check(CLI::Range(0, 65535));
  command.add_option("--api-key-file", choice.key_file, "File whose first line clients must send as a bearer token")
      ->check(CLI::ExistingFile);
  command.add_option("--waiting", choice.max_waiting, "Requests that may wait; more are told 429 (default 256)")
      ->check(at_least_one);
  command.add_option("--max-new-tokens", choice.server.max_new_tokens, "Tokens of an answer at most (default 4096)")
      ->check(at_least_one);
  command.add_option("--max-body", choice.body_mib, "MiB of a request's body at most (default 16)")
      ->check(CLI::Range(1, 256));
  command
      .add_option("--request-timeout", choice.request_timeout, "Seconds until an answer must have ended (default 600)")
      ->check(CLI::Range(0.001, 1e6));
  command.add_option("--grace", choice.grace, "Seconds for running requests after SIGTERM (default 60)")
      ->check(CLI::Range(0.0, 1e6));
}

void complete(DoorChoice& choice, const std::string& model, const std::string& path, const ModelSpec& spec) {
  ServerOptions& server = choice.server;
  server.port = static_cast<uint16_t>(choice.port);
  server.max_body_bytes = choice.body_mib << 20;
  server.request_timeout = std::chrono::milliseconds(static_cast<int64_t>(choice.request_timeout * 1000));
  if (!choice.key_file.empty()) server.api_key = read_key(choice.key_file);
  if (server.model.empty()) server.model = model;
  constexpr int64_t kOtherFiles = 512;
  server.max_connections = std::max<int64_t>(raise_descriptors(server.max_connections + kOtherFiles) - kOtherFiles, 16);
  server.vocabulary = spec.vocabulary;
  server.max_positions = spec.max_positions;
  server.api.chat = choice.chat == "auto" ? chat_template_of(spec.model_type) : chat_template_named(choice.chat);
  server.end_tokens = end_tokens(path, spec.vocabulary);
  if (!choice.tokenizer.empty())
    server.tokenizer = Tokenizer::load(choice.tokenizer);
  else if (!path.starts_with("random:") && std::filesystem::exists(path + "/tokenizer.json"))
    server.tokenizer = Tokenizer::load(path);
}

void take_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  std::thread(watch, set).detach();
}

void say_ready(const std::string& line) {
  ready = true;
  std::cout << line << std::endl;
}

void wait_for_signal() { asked_to_end.acquire(); }

void ends_with(int status) { exit_status = status; }

int serve_until_signal(HttpServer& http, const DoorChoice& choice) {
  if (choice.server.api_key.empty() && !choice.server.address.starts_with("127.") && choice.server.address != "::1")
    std::cerr << "hypic: anyone who reaches " << choice.server.address << " may ask; --api-key-file limits that\n";
  wait_for_signal();
  std::cout << "draining" << std::endl;
  const bool all = http.drain(std::chrono::milliseconds(static_cast<int64_t>(choice.grace * 1000)));
  if (!all) std::cerr << "hypic: some requests did not end within --grace " << choice.grace << " s\n";
  const int status = all ? 0 : 1;
  ends_with(status);
  return status;
}

std::string url_of(const HttpServer& http, const DoorChoice& choice) {
  const std::string& host = choice.server.address;
  const bool six = host.find(':') != host.npos;
  return str("http://", six ? "[" : "", host, six ? "]" : "", ":", http.port());
}

}  // namespace hypic
