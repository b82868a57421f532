#include "serving/command_queue.h"

namespace hypic {

void CommandQueue::run(std::function<void()> command) {
  std::packaged_task<void()> task(std::move(command));
  std::future<void> done = task.get_future();
  {
    const std::scoped_lock lock(mutex_);
    if (closed_) return;
    commands_.push_back(std::move(task));
  }
  woken_.notify_all();
  done.get();
}

}  // namespace hypic
