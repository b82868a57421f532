#include "serving/residue_writer.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

namespace hypic {

ResidueWriter::ResidueWriter(const ResidueReader& expected, std::function<void()> before_write)
    : expected_(expected), before_write_(std::move(before_write)), thread_([this] { run(); }) {}

ResidueWriter::~ResidueWriter() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ResidueWriter::push(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void ResidueWriter::remove(std::string path) { push({.residue = nullptr, .path = std::move(path), .header = {}}); }

std::vector<std::string> ResidueWriter::done() {
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, {});
}

std::vector<std::string> ResidueWriter::not_removed() {
  const std::lock_guard lock(mutex_);
  return std::exchange(not_removed_, {});
}

void ResidueWriter::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return jobs_.empty() && !busy_; });
}

void ResidueWriter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !jobs_.empty() || ends_; });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    lock.unlock();
    const bool reports = job.residue != nullptr;
    std::string outcome = perform(job);
    job = {};  // its memory is free before anybody hears of it
    lock.lock();
    busy_ = false;
    if (reports)
      done_.push_back(std::move(outcome));
    else if (!outcome.empty())
      not_removed_.push_back(std::move(outcome));
    changed_.notify_all();
  }
}

std::string ResidueWriter::perform(Job& job) {
  try {
    if (!job.residue) {
      require(unlink(job.path.c_str()) == 0 || errno == ENOENT, job.path, ": cannot remove: ", std::strerror(errno));
    } else if (job.path.empty()) {
      job.residue->bytes();
    } else {
      if (before_write_) before_write_();
      write_residue_file(job.path, expected_, job.header, job.residue->bytes(), job.used);
    }
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace hypic
