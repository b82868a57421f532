#include "harness/cli/serving_options.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

namespace hypic {
namespace {

using namespace std::chrono_literals;

// A process that waits for signals, then runs `work`, which ends it.
class Child {
 public:
  explicit Child(const std::function<void()>& work) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    id_ = fork();
    if (id_ == 0) {
      signal(SIGINT, SIG_DFL);  // background jobs of a shell ignore it
      const sigset_t signals = block_signals();
      if (write(ready[1], "", 1) != 1) _exit(99);
      wait_for(signals);
      if (write(ready[1], "", 1) != 1) _exit(99);
      work();
      _exit(98);
    }
    close(ready[1]);
    told_ = ready[0];
    wait_until_told();
  }
  ~Child() { close(told_); }
  void send(int signal) { kill(id_, signal); }
  // Before the first time: until it waits; then: until it has taken a signal.
  void wait_until_told() {
    char byte;
    EXPECT_EQ(read(told_, &byte, 1), 1);
  }
  // As waitpid says it. `again` is sent until then, from time to time.
  int end(int again = 0) {
    int status = 0;
    while (waitpid(id_, &status, again ? WNOHANG : 0) == 0) {
      send(again);
      std::this_thread::sleep_for(50ms);
    }
    return status;
  }

 private:
  pid_t id_ = 0;
  int told_ = 0;
};

TEST(Signals, TheSameOneTwiceIsOne) {
  for (int i = 0; i < 300; ++i) {
    Child child([] {
      ends_with(3);
      _exit(3);
    });
    child.send(i % 2 == 0 ? SIGINT : SIGTERM);
    if (i % 3 != 0) std::this_thread::sleep_for(std::chrono::microseconds(10 * i));
    child.send(SIGINT);
    const int status = child.end();
    ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status) << " in round " << i;
    ASSERT_EQ(WEXITSTATUS(status), 3);
  }
}

TEST(Signals, AnotherOneEndsItAtOnce) {
  Child child([] { std::this_thread::sleep_for(1h); });
  child.send(SIGTERM);
  child.wait_until_told();
  const int status = child.end(SIGINT);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGINT);
}

TEST(Signals, AnotherOneKeepsTheExitCodeThatIsKnown) {
  Child child([] {
    ends_with(1);
    std::this_thread::sleep_for(1h);
  });
  child.send(SIGINT);
  child.wait_until_told();
  const int status = child.end(SIGINT);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

}  // namespace
}  // namespace hypic
