#include "reference/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>

#include "core/temporary_folder.h"

namespace hypic::reference {
namespace {

class AvailableMemory : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const { made_.write(path.substr(1), text); }

  const TemporaryFolder made_;
  const std::string& root_ = made_.path();
};

TEST_F(AvailableMemory, IsTheLeastOfMachineAndGroups) {
  EXPECT_EQ(available_memory(root_), SIZE_MAX);
  write("/proc/meminfo", "MemTotal:       9000 kB\nMemAvailable:   8000 kB\n");
  EXPECT_EQ(available_memory(root_), 8000 * 1024);
  write("/proc/self/cgroup", "4:memory:/old\n0::/pod/job\n");
  EXPECT_EQ(available_memory(root_), 8000 * 1024);
  write("/sys/fs/cgroup/pod/job/memory.max", "max\n");
  write("/sys/fs/cgroup/pod/job/memory.current", "1000\n");
  EXPECT_EQ(available_memory(root_), 8000 * 1024);
  write("/sys/fs/cgroup/pod/memory.max", "5000000\n");
  write("/sys/fs/cgroup/pod/memory.current", "2000000\n");
  EXPECT_EQ(available_memory(root_), 3000000);
  write("/sys/fs/cgroup/pod/memory.stat", "anon 7\ninactive_file 500000\n");
  EXPECT_EQ(available_memory(root_), 3500000);
  write("/sys/fs/cgroup/memory.max", "1000\n");  // of a container that sees its own group as the root
  write("/sys/fs/cgroup/memory.current", "2000\n");
  EXPECT_EQ(available_memory(root_), 0);
}

}  // namespace
}  // namespace hypic::reference
