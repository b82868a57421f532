#include <signal.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "harness/backends.h"
#include "harness/cli/commands.h"
#include "harness/cli/run_options.h"
#include "harness/descriptors.h"
#include "harness/model_choice.h"
#include "models/end_tokens.h"
#include "serving/http_server.h"
#include "serving/memory.h"

namespace hypic {
namespace {

struct Options {
  std::string model = kDefaultModel, backend = "cpu", mode = "transition_rope_seam";
  std::string chat = "auto", tokenizer, key_file;
  ServerOptions server;
  SchedulerOptions scheduler;
  EngineOptions engine;
  int64_t port = 8000, tokens = 0, requests = 64, segments = 0, body_mib = 16, host_mib = 0, disk_mib = 0;
  double request_timeout = 600, grace = 60;
};

// A state a running request and a build, an operator a cached segment, pages for `tokens`.
PoolSizes pools_of(const Options& options, const ModelSpec& spec) {
  PoolSizes pools = options.engine.pools;
  const int64_t tokens =
      options.tokens > 0 ? options.tokens : std::min<int64_t>(int64_t{4} * spec.max_positions, 65536);
  pools.pages = (tokens + pools.page_size - 1) / pools.page_size + options.requests;
  pools.state_slots = 2 * options.requests;
  pools.operator_slots = options.segments > 0 ? options.segments : 2 * options.requests;
  return pools;
}

std::string read_key(const std::string& path) {
  std::ifstream file(path);
  std::string key;
  require(bool(std::getline(file, key)) && !key.empty(), "--api-key-file: ", path, " has no key in its first line");
  return key;
}

// The signals of an orderly end, for this thread to wait for: blocked before any other thread starts.
sigset_t block_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

int serve(Options& options) {
  const sigset_t signals = block_signals();
  signal(SIGPIPE, SIG_IGN);
  ServerOptions& server = options.server;
  constexpr int64_t kOtherFiles = 512;
  server.max_connections = std::max<int64_t>(raise_descriptors(server.max_connections + kOtherFiles) - kOtherFiles, 16);
  const std::string path = model_path(options.model);
  const ModelSpec spec = spec_of(path);
  options.scheduler.mode = mode_named(options.mode);
  server.port = static_cast<uint16_t>(options.port);
  server.max_body_bytes = options.body_mib << 20;
  server.request_timeout = std::chrono::milliseconds(static_cast<int64_t>(options.request_timeout * 1000));
  if (!options.key_file.empty()) server.api_key = read_key(options.key_file);
  if (server.model.empty()) server.model = options.model;
  server.vocabulary = spec.vocabulary;
  server.max_positions = spec.max_positions;
  server.api.chat = options.chat == "auto" ? chat_template_of(spec.model_type) : chat_template_named(options.chat);
  server.end_tokens = end_tokens(path);
  if (!options.tokenizer.empty())
    server.tokenizer = Tokenizer::load(options.tokenizer);
  else if (!path.starts_with("random:") && std::filesystem::exists(path + "/tokenizer.json"))
    server.tokenizer = Tokenizer::load(path);
  options.engine.pools = pools_of(options, spec);
  options.engine.cache.admission = kServerAdmission;
  options.engine.cache.host_bytes = options.host_mib << 20;
  options.engine.cache.disk_bytes = options.disk_mib << 20;
  options.scheduler.prompt_tokens = options.engine.max_rows;

  const std::unique_ptr<Backend> backend = make_backend(options.backend);
  const Model model = Model::open(*backend, path);
  Engine engine(model, options.engine);
  const PoolSizes& pools = options.engine.pools;
  server.info = nlohmann::ordered_json{{"model", server.model},
                                       {"model_type", spec.model_type},
                                       {"backend", backend->name()},
                                       {"mode", options.scheduler.mode.name},
                                       {"chat_template", name_of(server.api.chat)},
                                       {"tokenizer", server.tokenizer.has_value()},
                                       {"segment_separator", server.api.separator},
                                       {"max_positions", spec.max_positions},
                                       {"max_new_tokens", server.max_new_tokens},
                                       {"max_waiting", options.scheduler.max_waiting},
                                       {"chunk", options.engine.max_rows},
                                       {"state_slots", pools.state_slots},
                                       {"operator_slots", pools.operator_slots},
                                       {"pages", pools.pages},
                                       {"page_size", pools.page_size}}
                    .dump();
  Metrics metrics;
  Scheduler scheduler(engine, metrics, options.scheduler);
  HttpServer http(scheduler, metrics, server);
  scheduler.wait_until_warm();
  std::cout << "hypic serves " << server.model << " on http://" << server.address << ":" << http.port() << std::endl;
  if (server.api_key.empty() && !server.address.starts_with("127.") && server.address != "::1")
    std::cerr << "hypic: anyone who reaches " << server.address << " may ask; --api-key-file limits that\n";

  int signal = 0;
  sigwait(&signals, &signal);
  std::cout << "draining" << std::endl;
  // The next SIGINT ends it at once; SIGTERM may come twice, to the process and to its group.
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  pthread_sigmask(SIG_UNBLOCK, &interrupt, nullptr);
  const bool all = http.drain(std::chrono::milliseconds(static_cast<int64_t>(options.grace * 1000)));
  if (!all) std::cerr << "hypic: some requests did not end within --grace " << options.grace << " s\n";
  return all ? 0 : 1;
}

}  // namespace

void add_serve(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP, as OpenAI's clients speak it");
  const auto options = std::make_shared<Options>();
  ServerOptions& server = options->server;
  command->add_option("--model", options->model,
                      "random:NAME[:SEED], a folder, or OWNER/NAME in the Hub's cache (default random:qwen3.5-tiny)");
  add_backend_options(*command, options->backend, "Backend: cpu (default), cpu64, cuda (bfloat16) or cuda32");
  command->add_option("--mode", options->mode, "How segments are reused (default transition_rope_seam)");
  command->add_option("--served-name", server.model, "The model's name to clients (default: that of --model)");
  command->add_option("--tokenizer", options->tokenizer, "tokenizer.json, or a folder with one (default: the model's)");
  command->add_option("--chat-template", options->chat, "chatml, bailing, kimi or none (default: of the model's type)");
  command->add_option("--separator", server.api.separator, "Between segments in texts (default <<PIC_SEP>>)")
      ->check([](const std::string& text) { return text.empty() ? std::string("must not be empty") : std::string(); });
  command->add_option("--host", server.address, "Address to listen on (default 127.0.0.1)");
  command->add_option("--port", options->port, "Port, 0: any (default 8000)")->check(CLI::Range(0, 65535));
  command->add_option("--api-key-file", options->key_file, "File whose first line clients must send as a bearer token")
      ->check(CLI::ExistingFile);
  const auto at_least_one = CLI::Range(int64_t{1}, int64_t{1} << 31);
  command->add_option("--requests", options->requests, "Requests that run at once (default 64)")
      ->check(CLI::Range(1, 65536));
  command->add_option("--tokens", options->tokens, "Tokens of K and V in memory: of requests and of the cache")
      ->check(at_least_one);
  command->add_option("--cached-segments", options->segments, "Segments on the device, cached or running (default 128)")
      ->check(at_least_one);
  command->add_option("--chunk", options->engine.max_rows, "Rows of one forward at most (default 8192)")
      ->check(CLI::Range(1, 1 << 20));
  command
      ->add_option("--waiting", options->scheduler.max_waiting,
                   "Requests that may wait; more are told 429 (default 256)")
      ->check(at_least_one);
  command->add_option("--max-new-tokens", server.max_new_tokens, "Tokens of an answer at most (default 4096)")
      ->check(at_least_one);
  command->add_option("--max-body", options->body_mib, "MiB of a request's body at most (default 16)")
      ->check(CLI::Range(1, 256));
  command
      ->add_option("--request-timeout", options->request_timeout,
                   "Seconds until an answer must have ended (default 600)")
      ->check(CLI::Range(0.001, 1e6));
  command->add_option("--grace", options->grace, "Seconds for running requests after SIGTERM (default 60)")
      ->check(CLI::Range(0.0, 1e6));
  command->add_option("--host-cache", options->host_mib, "MiB of host memory for cached segments (default 0)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24));
  command->add_option("--disk-cache", options->disk_mib, "MiB on disk for them (default 0)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  command->add_option("--disk-folder", options->engine.cache.disk_folder, "Folder for them; needs --disk-cache");
  command->callback([options, &status] { status = serve(*options); });
}

}  // namespace hypic
