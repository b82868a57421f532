#include "serving/residue_reads.h"

#include <utility>

namespace hypic {
namespace {

// One thread hashes more slowly than a disk reads.
constexpr int kThreads = 4;

}  // namespace

ResidueRead::ResidueRead(const ResidueReader& expected, std::string path, ResidueHeader header,
                         std::shared_ptr<HostResidue> to)
    : expected_(expected), path_(std::move(path)), header_(std::move(header)), to_(std::move(to)) {}

void ResidueRead::perform() {
  std::call_once(once_, [&] {
    try {
      read_residue_payload(path_, expected_, header_, to_->memory());
    } catch (...) {
      failure_ = std::current_exception();
    }
    done_ = true;
  });
}

const std::shared_ptr<HostResidue>& ResidueRead::residue() {
  perform();
  if (failure_) std::rethrow_exception(failure_);
  return to_;
}

ResidueReads::ResidueReads(std::function<void()> before_read) : before_read_(std::move(before_read)) {
  for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { run(); });
}

ResidueReads::~ResidueReads() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ResidueReads::push(const std::shared_ptr<ResidueRead>& read) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(read);
  }
  changed_.notify_one();
}

void ResidueReads::on_read(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  on_read_ = std::move(call);
}

void ResidueReads::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !waiting_.empty() || ends_; });
    if (ends_) return;
    std::shared_ptr<ResidueRead> read = waiting_.front().lock();
    waiting_.pop_front();
    if (!read) continue;
    lock.unlock();
    if (before_read_) before_read_();
    read->perform();
    read.reset();  // its memory is free before anybody hears of it, unless somebody wants it
    lock.lock();
    if (on_read_) on_read_();
  }
}

}  // namespace hypic
