#include "reports/result_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/check.h"
#include "core/file.h"
#include "reports/text.h"
#include "reports/write.h"

namespace hypic {

ResultLog::ResultLog(const std::string& dir, bool keep) : path_(dir + "/results.jsonl") {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  require(!error, dir, ": cannot make the directory: ", error.message());
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  require(file_ >= 0, path_, ": cannot open: ", std::strerror(errno));
  try {
    require(::flock(file_, LOCK_EX | LOCK_NB) == 0, path_,
            ": another run writes here; wait for it or choose another directory");
    require(keep || ::ftruncate(file_, 0) == 0, path_, ": cannot empty the file: ", std::strerror(errno));
    const std::string text = read_file(path_, kMaxReportBytes);
    for (std::size_t line = 1, end; (end = text.find('\n', size_)) != std::string::npos; ++line) {
      finished_.push_back(result_from_json(std::string_view(text).substr(size_, end - size_),
                                           str(path_, ":", line)));
      size_ = end + 1;
    }
    require(::ftruncate(file_, static_cast<off_t>(size_)) == 0, path_,
            ": cannot drop the cut last line: ", std::strerror(errno));
  } catch (...) {
    ::close(file_);
    throw;
  }
}

ResultLog::~ResultLog() { ::close(file_); }

void ResultLog::append(const Result& result) {
  const std::string line = to_json(result) + "\n";
  require(size_ + line.size() <= kMaxReportBytes, path_, ": full: at most ", kMaxReportBytes,
          " bytes");
  errno = 0;
  const ssize_t written = ::write(file_, line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size()) || ::fdatasync(file_) != 0) {
    const std::string reason = errno ? std::strerror(errno) : "short write";
    const bool restored = ::ftruncate(file_, static_cast<off_t>(size_)) == 0;
    fail(path_, ": cannot append: ", reason, restored ? "" : "; its last line is cut");
  }
  size_ += line.size();
  finished_.push_back(result);
}

}  // namespace hypic
