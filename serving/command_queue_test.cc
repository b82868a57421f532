#include "serving/command_queue.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "core/check.h"

namespace hypic {
namespace {

// Runs commands until it ends, what came by then included.
class Owner {
 public:
  Owner() : thread_([this] { loop(); }) {}
  ~Owner() { end(); }
  void end() {
    {
      const std::scoped_lock lock(mutex_);
      ends_ = true;
      commands.close();
    }
    woken_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  std::thread::id id() const { return thread_.get_id(); }

 private:
  void loop() {
    for (bool ends = false; !ends;) {
      CommandQueue::Commands now;
      {
        std::unique_lock lock(mutex_);
        woken_.wait(lock, [&] { return ends_ || !commands.empty(); });
        ends = ends_;
        now = commands.take();
      }
      for (auto& command : now) command();
    }
  }

  std::mutex mutex_;
  std::condition_variable woken_;
  bool ends_ = false;

 public:
  CommandQueue commands{mutex_, woken_};

 private:
  std::thread thread_;
};

TEST(CommandQueue, RunsOnTheOwnersThreadBeforeItReturns) {
  Owner owner;
  const std::thread::id wanted = owner.id();
  int64_t sum = 0;  // the owner's alone
  std::vector<std::thread> others;
  for (int i = 1; i <= 8; ++i)
    others.emplace_back([&, i] {
      for (int n = 0; n < 100; ++n) {
        bool ran = false;
        owner.commands.run([&] {
          EXPECT_EQ(std::this_thread::get_id(), wanted);
          sum += i;
          ran = true;
        });
        EXPECT_TRUE(ran);
      }
    });
  for (std::thread& one : others) one.join();
  EXPECT_EQ(sum, 3600);
}

TEST(CommandQueue, SaysWhatACommandThrows) {
  Owner owner;
  EXPECT_THROW(owner.commands.run([] { fail("no"); }), Error);
  owner.end();
  owner.commands.run([] { FAIL() << "nobody is there to run it"; });
}

}  // namespace
}  // namespace hypic
