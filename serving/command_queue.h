// Commands of other threads for the one that alone may touch a thing, such as an engine.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <utility>

namespace hypic {

class CommandQueue {
 public:
  // What the owner waits with for whatever there is to do; they outlive it.
  CommandQueue(std::mutex& mutex, std::condition_variable& woken) : mutex_(mutex), woken_(woken) {}

  // Has the owner's thread run it, and waits for that; nothing once it is closed. Error: what it throws. Not on the
  // owner's thread.
  void run(std::function<void()> command);

  // For the owner, with the mutex: what it is to run then without it.
  using Commands = std::deque<std::packaged_task<void()>>;
  bool empty() const { return commands_.empty(); }
  Commands take() { return std::exchange(commands_, {}); }
  // From now on nothing new comes; what is there must still be run.
  void close() { closed_ = true; }

 private:
  std::mutex& mutex_;
  std::condition_variable& woken_;
  Commands commands_;
  bool closed_ = false;
};

}  // namespace hypic
