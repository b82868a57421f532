#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "harness/cli/serving_options.h"
#include "harness/rpc/commands.h"
#include "harness/rpc/tls_options.h"
#include "serving/rpc/peers.h"

namespace hypic {
namespace {

struct Options {
  DoorChoice door;
  std::string model = kDefaultModel, mode = "transition_rope_seam", policy = "lpt", file, bootstrap;
  std::vector<std::string> scatter, combine;
  TlsFiles tls;
  std::string tls_name;
  int64_t port = kControlPort;
  double prefill_timeout = 30;
};

// Those of fixed addresses, and names that stand for others.
struct Workers {
  std::vector<WorkerAddress> fixed;
  WorkerNames names;
};

Workers workers_of(const Options& options) {
  Workers all;
  std::vector<WorkerAddress>& workers = all.fixed;
  const auto add = [&](const std::vector<WorkerAddress>& more) {
    workers.insert(workers.end(), more.begin(), more.end());
  };
  if (!options.file.empty()) {
    std::ifstream file(options.file);
    require(file.good(), "--workers: ", options.file, ": cannot be read");
    add(workers_of_file(std::string(std::istreambuf_iterator<char>(file), {}), options.file));
  }
  const auto port = static_cast<uint16_t>(options.port);
  if (options.bootstrap == "slurm") add(workers_of_slurm(process_variables(), port));
  if (options.bootstrap == "lws") add(workers_of_lws(process_variables(), port));
  for (const auto& [role, names] : {std::pair(Role::combine, &options.combine), {Role::scatter, &options.scatter}})
    for (const std::string& name : *names) {
      const std::string option = str("--", name_of(role));
      if (name.starts_with("dns:")) {
        host_port(name.substr(4), option);
        all.names.names.push_back({role, name.substr(4)});
      } else {
        host_port(name, option);
        workers.push_back({role, name});
      }
    }
  const auto combines = [](const WorkerAddress& one) { return one.role == Role::combine; };
  require(std::any_of(workers.begin(), workers.end(), combines) ||
              std::any_of(all.names.names.begin(), all.names.names.end(), combines),
          "no worker that combines: give --combine, --workers or --bootstrap");
  return all;
}

int route(Options& options) {
  take_signals();
  const std::string path = model_path(options.model);
  const ModelSpec spec = spec_of(path);
  complete(options.door, options.model, path, spec);
  const Workers workers = workers_of(options);
  const PeerTls tls{read_tls(options.tls), options.tls_name};
  const RouterOptions routing{
      .mode = mode_named(options.mode),
      .policy = policy_named(options.policy),
      .max_waiting = options.door.max_waiting,
      .prefill_timeout = std::chrono::milliseconds(static_cast<int64_t>(options.prefill_timeout * 1000))};
  ServerOptions& server = options.door.server;
  nlohmann::ordered_json named = nlohmann::ordered_json::array();
  for (const WorkerAddress& worker : workers.fixed) named.push_back(str(name_of(worker.role), " ", worker.address));
  for (const WorkerAddress& name : workers.names.names) named.push_back(str(name_of(name.role), " dns:", name.address));
  server.info = nlohmann::ordered_json{{"model", server.model},
                                       {"mode", routing.mode.name},
                                       {"policy", name_of(routing.policy)},
                                       {"segment_separator", server.api.separator},
                                       {"max_positions", server.max_positions},
                                       {"max_new_tokens", server.max_new_tokens},
                                       {"max_waiting", routing.max_waiting},
                                       {"workers", std::move(named)}}
                    .dump();
  Metrics metrics;
  Router router(metrics, routing);
  const WorkerWatch watch(
      router, identity_of(path, spec, routing.mode), workers.fixed,
      [](const std::string& line) { std::cerr << "hypic: " << line << std::endl; }, workers.names, tls);
  HttpServer http(router, metrics, server);
  say_ready(str("hypic routes ", server.model, " on ", url_of(http, options.door)));
  return serve_until_signal(http, options.door);
}

}  // namespace

void add_router(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("router", "Answer over HTTP with workers");
  const auto options = std::make_shared<Options>();
  command->add_option("--model", options->model,
                      "The workers': its tokenizer and limits (default random:qwen3.5-tiny)");
  command->add_option("--mode", options->mode, "The workers' (default transition_rope_seam)");
  command->add_option("--combine", options->combine,
                      "HOST:PORT of a worker that combines, or dns:HOST:PORT; repeatable");
  command->add_option("--scatter", options->scatter, "HOST:PORT of one that scatters, or dns:HOST:PORT; repeatable");
  command->add_option("--workers", options->file, "File with a line \"ROLE HOST:PORT\" for each worker");
  command
      ->add_option("--bootstrap", options->bootstrap, "slurm or lws: workers from the environment, the first combines")
      ->check(CLI::IsMember({"slurm", "lws"}));
  command
      ->add_option("--worker-port", options->port,
                   "Port of each machine's first worker, for --bootstrap (default 7001)")
      ->check(CLI::Range(1, 65535));
  add_tls_options(*command, options->tls);
  command->add_option("--tls-name", options->tls_name,
                      "Name that workers' certificates are for (default: the host that each is called by)");
  command
      ->add_option("--policy", options->policy,
                   "Who computes a segment: lpt, by measured cost (default), or round_robin")
      ->check(CLI::IsMember({"lpt", "round_robin"}));
  command
      ->add_option("--prefill-timeout", options->prefill_timeout,
                   "Seconds for a worker's segments; then the one that combines computes them (default 30)")
      ->check(CLI::Range(0.01, 600.0));
  add_door_options(*command, options->door);
  command->callback([options, &status] { status = route(*options); });
}

}  // namespace hypic
