// A worker's door for routers: gRPC, with the standard health service. Without TLS neither encrypted nor guarded:
// loopback, or a network of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "serving/combine_worker.h"
#include "serving/residue_index.h"
#include "serving/rpc/tls.h"
#include "serving/scatter_worker.h"
#include "serving/worker_identity.h"

namespace hypic {

struct WorkerServerOptions {
  std::string address = "127.0.0.1:0";  // HOST:PORT; port 0: any that is free
  WorkerIdentity identity;
  std::string data_address;  // of a worker that combines; an empty host: that by which it is reached
  Tls tls;                   // on: callers must show a certificate of its authority
  int max_threads = 512;     // of calls, of which each takes one while it lasts; more wait
};

class WorkerServer {
 public:
  // One of the workers, or none, is null; all outlive it. Error: the address cannot be used.
  WorkerServer(ScatterWorker* scatter, CombineWorker* combine, ResidueIndex& index, const WorkerServerOptions& options);
  // Ends all calls.
  ~WorkerServer();
  int port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hypic
