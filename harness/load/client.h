// An open-loop client: sends each request when it is due, whatever became of those before it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "harness/load/prompts.h"

namespace hypic::load {

struct Url {
  std::string host, port, path;  // path: "/…", empty where the address has none
};
// "http://HOST[:PORT][/PATH]". Error: another scheme, no host, a port that is none.
Url parse_url(const std::string& text);

// What became of a request. Times are seconds from the start of the run.
struct Record {
  int64_t index = 0;
  double scheduled = 0;           // when it was due
  double released = -1;           // when the client took it up: later is the client's own delay
  double sent = -1;               // when its last byte was given to the socket; after waiting for a connection
  std::vector<double> tokens_at;  // when each piece of the answer was read off the socket
  double ended = -1;
  int64_t prompt_tokens = -1, output_tokens = -1, cached_tokens = -1;  // by the server; -1: it did not say
  std::string error;                                                   // empty: answered in full
  bool ok() const { return error.empty(); }
};

struct ClientOptions {
  Url url;  // its path is where requests are posted
  Api api = Api::openai;
  double timeout = 60;                      // seconds from the scheduled time
  int64_t max_concurrency = 0;              // at once in flight, of all threads; the rest waits its turn; 0: no bound
  int threads = 1;                          // each with its own sockets; request i is of thread i mod threads
  const std::atomic<bool>* stop = nullptr;  // set: requests not yet sent are not sent, those in flight are dropped
  // Tokens that request i asks for: where the server counts another number, the answer is an error. Unset: any will do.
  std::function<int64_t(int64_t)> output_tokens = {};
};

// What a run gives away as it goes. Called from the threads of the client, one call at a time.
using RecordFn = std::function<void(const Record&)>;

// Sends body(i) at schedule[i] and returns when all have ended, by index. A request that was not sent has the error
// "not sent". Error: the host's name cannot be resolved.
std::vector<Record> run_load(const ClientOptions& options, const std::vector<double>& schedule,
                             const std::function<std::string(int64_t)>& body, const RecordFn& finished = {});

struct Reply {
  int status = 0;
  std::string body;
};
// Error: no answer.
Reply get(const Url& url, const std::string& path, double timeout = 30);
Reply post(const Url& url, const std::string& path, double timeout = 30);  // an empty body

}  // namespace hypic::load
