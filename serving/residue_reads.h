// Files of the segment cache's folder that are read before somebody needs them, on threads of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "serving/host_memory.h"
#include "serving/residue_file.h"

namespace hypic {

// One file, read and checked once, by whoever comes first. For several threads.
class ResidueRead {
 public:
  // `expected` refers to a layout that outlives it; `to` has as many bytes as the payload.
  ResidueRead(const ResidueReader& expected, std::string path, ResidueHeader header, std::shared_ptr<HostResidue> to);
  ResidueRead(const ResidueRead&) = delete;
  ResidueRead& operator=(const ResidueRead&) = delete;

  // Reads it, or waits for whoever does.
  void perform();
  bool done() const { return done_; }
  // perform()s. Throws what read_residue_payload threw.
  const std::shared_ptr<HostResidue>& residue();
  int64_t bytes() const { return to_->size(); }

 private:
  const ResidueReader expected_;
  const std::string path_;
  const ResidueHeader header_;
  const std::shared_ptr<HostResidue> to_;
  std::once_flag once_;
  std::exception_ptr failure_;
  std::atomic<bool> done_ = false;
};

class ResidueReads {
 public:
  // `before_read`, if any, is called before each file.
  explicit ResidueReads(std::function<void()> before_read);
  // What has not begun is not read.
  ~ResidueReads();
  ResidueReads(const ResidueReads&) = delete;
  ResidueReads& operator=(const ResidueReads&) = delete;

  // It stays its owners': where none is left when its turn comes, it is not read.
  void push(const std::shared_ptr<ResidueRead>& read);
  // Called after each file from now on, by the thread that read it, which must not wait; empty: nobody is. The one
  // before is not called any more.
  void on_read(std::function<void()> call);

 private:
  void run();

  const std::function<void()> before_read_;
  std::mutex mutex_;  // of what follows, but for the threads
  std::condition_variable changed_;
  std::deque<std::weak_ptr<ResidueRead>> waiting_;
  std::function<void()> on_read_;
  bool ends_ = false;
  std::vector<std::thread> threads_;  // last: they use all of these
};

}  // namespace hypic
