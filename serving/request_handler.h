// Who answers requests: a scheduler on its engine, or a router with workers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "serving/engine.h"
#include "serving/metrics.h"

namespace hypic {

// What a request's owner hears, on the handler's thread: nothing that takes long may be done there.
struct Notice {
  enum class Kind { token, failed } kind = Kind::token;
  int32_t token = 0;
  bool last = false;  // of either kind: nothing comes after it
  Reused reused;
  int status = 500;  // failed: HTTP's, and one line
  std::string error;
};
using Listener = std::function<void(const Notice&)>;

// For several threads.
class RequestHandler {
 public:
  virtual ~RequestHandler() = default;
  // A number for cancel(); 0: the queue is full, or it drains.
  virtual uint64_t submit(Request request, Listener listener) = 0;
  // Its owner hears nothing more, except what is being said at this moment.
  virtual void cancel(uint64_t id) = 0;
  virtual void flush() = 0;  // empties the caches, and waits for that
  virtual void drain() = 0;  // from now on nothing new is taken; what runs or waits goes on
  virtual Load load() const = 0;
};

}  // namespace hypic
