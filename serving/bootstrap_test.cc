#include "serving/bootstrap.h"

#include <gtest/gtest.h>

#include <map>

#include "core/check.h"

namespace hypic {
namespace {

std::vector<std::string> said(const std::vector<WorkerAddress>& workers) {
  std::vector<std::string> lines;
  for (const WorkerAddress& worker : workers) lines.push_back(str(name_of(worker.role), " ", worker.address));
  return lines;
}

using Lines = std::vector<std::string>;

Variables of(const std::map<std::string, std::string>& values) {
  return [values](const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? std::string() : found->second;
  };
}

TEST(Bootstrap, File) {
  EXPECT_EQ(said(workers_of_file("# two\ncombine a:7001\n\n scatter [::1]:7002  # here\n", "f")),
            (Lines{"combine a:7001", "scatter [::1]:7002"}));
  for (const char* wrong : {"", "scatter a:1", "combine a", "combine a:0", "combine a:70000", "combine a:1 b",
                            "combine", "both a:1", "combine :1", "combine a:x"})
    EXPECT_THROW(workers_of_file(wrong, "f"), Error) << wrong;
}

TEST(Bootstrap, SlurmNodes) {
  EXPECT_EQ(slurm_nodes("gpu[01-03,7],login"), (Lines{"gpu01", "gpu02", "gpu03", "gpu7", "login"}));
  EXPECT_EQ(slurm_nodes("a"), Lines{"a"});
  EXPECT_EQ(slurm_nodes("a[9-11]"), (Lines{"a9", "a10", "a11"}));
  for (const char* wrong : {"a[1", "a[]", "a[3-1]", "a[x]", "[1]", "a,,b", "a[1]b", "a[0-999999999]", "a[-1]"})
    EXPECT_THROW(slurm_nodes(wrong), Error) << wrong;
}

TEST(Bootstrap, Slurm) {
  EXPECT_EQ(said(workers_of_slurm(of({{"SLURM_JOB_NODELIST", "n[1-3]"}, {"SLURM_TASKS_PER_NODE", "2(x2),1"}}), 7001)),
            (Lines{"combine n1:7001", "scatter n1:7002", "scatter n2:7001", "scatter n2:7002", "scatter n3:7001"}));
  // A step of fewer nodes than the job.
  EXPECT_EQ(
      said(workers_of_slurm(
          of({{"SLURM_JOB_NODELIST", "n[1-3]"}, {"SLURM_STEP_NODELIST", "n2"}, {"SLURM_STEP_TASKS_PER_NODE", "1"}}),
          80)),
      Lines{"combine n2:80"});
  for (const char* tasks : {"", "2", "2(x9999999)", "x", "2(x3", "0(x3)", "1,1"})
    EXPECT_THROW(workers_of_slurm(of({{"SLURM_JOB_NODELIST", "n[1-3]"}, {"SLURM_TASKS_PER_NODE", tasks}}), 1), Error)
        << tasks;
}

TEST(Bootstrap, LeaderWorkerSet) {
  EXPECT_EQ(said(workers_of_lws(of({{"LWS_LEADER_ADDRESS", "hypic-0.hypic.default"}, {"LWS_GROUP_SIZE", "3"}}), 7001)),
            (Lines{"combine hypic-0.hypic.default:7001", "scatter hypic-0-1.hypic.default:7001",
                   "scatter hypic-0-2.hypic.default:7001"}));
  EXPECT_THROW(workers_of_lws(of({}), 7001), Error);
  EXPECT_THROW(workers_of_lws(of({{"LWS_LEADER_ADDRESS", "a"}, {"LWS_GROUP_SIZE", "0"}}), 7001), Error);
}

TEST(Bootstrap, Dns) {
  EXPECT_EQ(said(workers_of_dns(Role::scatter, "127.0.0.1:7005")), Lines{"scatter 127.0.0.1:7005"});
  EXPECT_THROW(workers_of_dns(Role::scatter, "no such host:1"), Error);
}

}  // namespace
}  // namespace hypic
