#include "reports/line_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/check.h"
#include "core/file.h"
#include "core/sha256.h"

namespace hypic {
namespace {

constexpr std::string_view kSealBegin = "{\"sha256\":\"", kSealEnd = "\",";
constexpr std::size_t kDigest = 64, kSeal = kSealBegin.size() + kDigest + kSealEnd.size();

std::string sealed(const std::string& json) {
  const std::string digest = hex(Sha256().add(json.data(), json.size()).digest());
  return str(kSealBegin, digest, kSealEnd, std::string_view(json).substr(1));
}

}  // namespace

std::string unsealed(std::string_view line) {
  std::string json = "{" + std::string(line.substr(std::min(line.size(), kSeal)));
  require(sealed(json) == line, "damaged or edited: its sha256 does not fit the rest of it");
  return json;
}

LineLog::LineLog(const std::string& path, bool keep, std::size_t max_bytes,
                 const std::function<void(const std::string&)>& read)
    : path_(path), max_bytes_(max_bytes) {
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  require(file_ >= 0, path_, ": cannot open: ", std::strerror(errno));
  try {
    require(::flock(file_, LOCK_EX | LOCK_NB) == 0, path_,
            ": another run writes here; wait for it or choose another directory");
    require(keep || ::ftruncate(file_, 0) == 0, path_, ": cannot empty the file: ", std::strerror(errno));
    const std::string text = read_file(path_, max_bytes_);
    for (std::size_t line = 1, end; (end = text.find('\n', size_)) != std::string::npos; ++line) {
      try {
        read(unsealed(std::string_view(text).substr(size_, end - size_)));
      } catch (const Error& error) {
        fail(path_, ":", line, ": ", error.what(),
             "; take the line out to run its case again, or start over without --resume");
      }
      size_ = end + 1;
    }
    require(::ftruncate(file_, static_cast<off_t>(size_)) == 0, path_,
            ": cannot drop the cut last line: ", std::strerror(errno));
  } catch (...) {
    ::close(file_);
    throw;
  }
}

LineLog::~LineLog() { ::close(file_); }

void LineLog::append(const std::vector<std::string>& jsons) {
  std::string lines;
  for (const std::string& json : jsons) lines += sealed(json) + "\n";
  require(size_ + lines.size() <= max_bytes_, path_, ": full: at most ", max_bytes_, " bytes");
  errno = 0;
  const ssize_t written = ::write(file_, lines.data(), lines.size());
  if (written != static_cast<ssize_t>(lines.size()) || ::fdatasync(file_) != 0) {
    const std::string reason = errno ? std::strerror(errno) : "only a part was written; is the disk full?";
    const bool restored = ::ftruncate(file_, static_cast<off_t>(size_)) == 0;
    fail(path_, ": cannot append: ", reason, restored ? "" : "; its last line is cut");
  }
  size_ += lines.size();
}

}  // namespace hypic
