// Everything that the segment cache does to files of its folder beside reading them, in order, on a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "serving/host_memory.h"
#include "serving/residue_file.h"

namespace hypic {

class ResidueWriter {
 public:
  // `expected` refers to a layout that outlives the writer. `before_write`, if any, is called before each file.
  ResidueWriter(const ResidueReader& expected, std::function<void()> before_write);
  // Does what is left to do.
  ~ResidueWriter();
  ResidueWriter(const ResidueWriter&) = delete;
  ResidueWriter& operator=(const ResidueWriter&) = delete;

  // Brings it into its format and, with a path, writes the file. The caller bounds how much is under way.
  struct Job {
    std::shared_ptr<HostResidue> residue;
    std::string path;
    ResidueHeader header;
    int64_t used = 0;  // as in write_residue_file
  };
  void push(Job job);
  void remove(std::string path);

  // What became of the jobs that are done since the last call, in the order in which they were pushed: empty, or why
  // it failed.
  std::vector<std::string> done();
  // Why files that were to be removed since the last call are still there.
  std::vector<std::string> not_removed();
  // Waits until nothing is left to do.
  void drain();

 private:
  void run();
  std::string perform(Job& job);

  const ResidueReader expected_;
  const std::function<void()> before_write_;
  std::mutex mutex_;  // of what follows, but for the thread
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // without a residue: a file to remove
  std::vector<std::string> done_, not_removed_;
  bool busy_ = false, ends_ = false;
  std::thread thread_;  // last: it uses all of these
};

}  // namespace hypic
