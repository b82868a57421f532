#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <optional>

#include "core/file.h"
#include "harness/backends.h"
#include "harness/cli/run_options.h"
#include "harness/cli/serving_options.h"
#include "harness/rpc/commands.h"
#include "harness/rpc/tls_options.h"
#include "serving/bootstrap.h"
#include "serving/combine_worker.h"
#include "serving/residue_store.h"
#include "serving/rpc/redis_store.h"
#include "serving/rpc/worker_server.h"
#include "serving/scatter_worker.h"
#include "serving/tcp_transport.h"

namespace hypic {
namespace {

struct Options {
  EngineChoice engine;
  RankOptions ranks;
  TlsFiles tls;
  std::string role = "scatter", store, key_file, listen = str("127.0.0.1:", kControlPort), data = "127.0.0.1:0";
  int64_t waiting = 256, transfer_mib = 1024;
  double patience = 2, first_patience = 30;
  std::string transport = "tcp";
};

// "folder:PATH" or "redis:HOST:PORT"; null where it is empty.
std::unique_ptr<ResidueStore> store_of(const std::string& text) {
  if (text.empty()) return nullptr;
  const std::string place = text.substr(std::min(text.size(), text.find(':') + 1));
  if (text.starts_with("folder:")) return std::make_unique<FolderStore>(place);
  require(text.starts_with("redis:"), "--store: must be folder:PATH or redis:HOST:PORT, is ", text);
  const HostPort server = host_port(place, "--store");
  return std::make_unique<RedisStore>(RedisOptions{.host = server.host, .port = server.port});
}

// That workers' packets carry; empty where there is no file.
std::string shared_key(const std::string& path) {
  if (path.empty()) return {};
  constexpr size_t kLeast = 16, kMost = 4096;
  std::string key;
  try {
    key = read_file(path, kMost);
  } catch (const Error& error) {
    fail("--key-file: ", error.what());
  }
  while (key.ends_with('\n') || key.ends_with('\r')) key.pop_back();
  require(key.size() >= kLeast, "--key-file: ", path, " holds ", key.size(), " bytes, at least ", kLeast,
          " are asked for; openssl rand -hex 32 makes some");
  return key;
}

bool is_loopback(const std::string& host) {
  return host.starts_with("127.") || host == "[::1]" || host == "::1" || host == "localhost";
}

int work(Options& options) {
  take_signals();
  const Role role = role_named(options.role);
  host_port(options.listen, "--listen");
  const HostPort data = host_port(options.data, "--data");
  require(options.store.empty() || role == Role::scatter, "--store: who combines has no use for it");
  const std::unique_ptr<ResidueStore> store = store_of(options.store);
  const Tls tls = read_tls(options.tls);
  const std::string key = shared_key(options.key_file);
  EngineChoice& chosen = options.engine;
  const std::vector<int> devices = options.ranks.chosen(chosen.backend);
  const std::string path = model_path(chosen.model);
  complete(chosen, spec_of(path));
  // Who is asked to scatter has been asked for good reason; whom the router sends a request may see it again.
  if (role == Role::scatter) chosen.engine.cache.admission = Admission::always;
  const Mode mode = mode_named(chosen.mode);
  require(mode.reuse == Reuse::segments, "--mode: ", chosen.mode,
          " reuses no segments, so there is nothing to scatter");
  ResidueIndex index(mode);
  chosen.engine.cache.on_change = [&](Part part, const Tokens& tokens, int32_t first, int32_t tail, bool here) {
    index.note(part, tokens, first, tail, here);
  };
  const auto milliseconds = [](double s) { return std::chrono::milliseconds(static_cast<int64_t>(s * 1000)); };
  const auto say = [](const std::string& line) { std::cerr << "hypic: " << line << std::endl; };
  std::string transport = options.transport;
  if (options.ranks.count > 1 && transport != "tcp") {
    say(str("--transport ", transport, " is for workers of one rank: with --tensor-parallel ", options.ranks.count,
            " residues go through host memory"));
    transport = "tcp";
  }
  const std::unique_ptr<Links> links =
      transport == "nccl" ? make_links(chosen.backend, devices.empty() ? 0 : devices[0]) : nullptr;
  const OpenModel open({path, chosen.backend, devices});
  const Model& model = open.model();
  Engine engine(model, chosen.engine);
  const bool ipc = transport == "ipc";
  const int64_t device_bytes = ipc || links ? options.transfer_mib << 20 : 0;
  TcpTransports transports({.send_timeout = milliseconds(options.patience),
                            .device = ipc ? &open.backend() : nullptr,
                            .links = links.get(),
                            .link_patience = {.progress = milliseconds(options.patience)},
                            .key = key,
                            .say = say});
  Metrics metrics;
  std::optional<ScatterWorker> scatter;
  std::optional<CombineWorker> combine;
  std::optional<TcpReceiver> receiver;
  WorkerServerOptions server{.address = options.listen, .identity = identity_of(path, model, mode, key), .tls = tls};
  if (role == Role::scatter) {
    scatter.emplace(
        engine, model, transports,
        ScatterOptions{.mode = mode,
                       .rows = chosen.engine.max_rows,
                       .staging_bytes = options.transfer_mib << 20,
                       .device_bytes = device_bytes,
                       .max_waiting = options.waiting,
                       .store = store.get(),
                       .identity = server.identity.digest(),
                       .say = say});
  } else {
    combine.emplace(
        engine, model, metrics,
        SchedulerOptions{.mode = mode, .max_waiting = options.waiting, .prompt_rows = chosen.engine.max_rows},
        InboxOptions{.bytes = options.transfer_mib << 20,
                     .device_bytes = device_bytes,
                     .first_patience = milliseconds(options.first_patience),
                     .patience = milliseconds(options.patience)});
    combine->scheduler().wait_until_warm();
    receiver.emplace(combine->sink(), data.host, data.port,
                     TcpOptions{.links = links.get(),
                                .link_patience = {.progress = milliseconds(options.patience)},
                                .key = key,
                                .say = [say](const std::string& why) { say("a sender of residues: " + why); }});
    // Of all interfaces no address is known that others reach; the router knows by which it reached this one.
    const bool any = data.host == "0.0.0.0" || data.host == "::";
    const std::string host = data.host.find(':') == data.host.npos ? data.host : "[" + data.host + "]";
    server.data_address = str(any ? "" : host, ":", receiver->port());
  }
  const WorkerServer door(scatter ? &*scatter : nullptr, combine ? &*combine : nullptr, index, server);
  const std::string host = options.listen.substr(0, options.listen.rfind(':'));
  say_ready(str("hypic worker, ", name_of(role), ", on ", host, ":", door.port()));
  if (!tls.on() && !is_loopback(host))
    say(str("anyone who reaches ", host, " may use this worker; --tls-ca, --tls-cert and --tls-key limit that"));
  if (receiver && key.empty() && !is_loopback(data.host))
    say(str("anyone who reaches ", data.host, " may send this worker residues; --key-file limits that"));
  wait_for_signal();
  ends_with(0);
  return 0;
}

}  // namespace

void add_worker(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("worker", "Compute segments for others, or answers with what others compute");
  const auto options = std::make_shared<Options>();
  command->add_option("--role", options->role, "scatter (default): computes and sends residues; combine: answers")
      ->check(CLI::IsMember({"scatter", "combine"}));
  add_engine_options(*command, options->engine);
  add_rank_options(*command, options->ranks);
  command->add_option("--listen", options->listen, "HOST:PORT for routers, port 0: any (default 127.0.0.1:7001)");
  command->add_option("--data", options->data, "combine: HOST:PORT for residues, port 0: any (default 127.0.0.1:0)");
  command
      ->add_option("--waiting", options->waiting, "Segments or requests that may wait; more are refused (default 256)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  command
      ->add_option(
          "--transfers", options->transfer_mib,
          "MiB of host memory for residues on their way, and with --transport ipc or nccl of the device's (default 1024)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  command
      ->add_option(
          "--transport", options->transport,
          "tcp (default): residues go through host memory; ipc: from device to device where both workers say so "
          "and are on one machine, else as tcp; nccl: where both say so and have a GPU each, on one machine or two")
      ->check(CLI::IsMember({"tcp", "ipc", "nccl"}));
  command->add_option("--store", options->store,
                      "scatter: residues that workers share, folder:PATH or redis:HOST:PORT");
  add_tls_options(*command, options->tls);
  command->add_option("--key-file", options->key_file,
                      "File with the key that all workers share: packets of residues carry its HMAC");
  command
      ->add_option(
          "--patience", options->patience,
          "Seconds without a byte of a residue that has begun to come, or that nothing is taken of (default 2)")
      ->check(CLI::Range(0.01, 600.0));
  command
      ->add_option("--first-patience", options->first_patience,
                   "combine: seconds until its first byte; then it is computed here (default 30)")
      ->check(CLI::Range(0.01, 600.0));
  command->callback([options, &status] { status = work(*options); });
}

}  // namespace hypic
