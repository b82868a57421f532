#include "reports/result_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/check.h"
#include "core/file.h"
#include "core/sha256.h"
#include "reports/text.h"
#include "reports/write.h"

namespace hypic {
namespace {

// A line is the JSON of a result with the digest of it as the first field, so that a file that was
// edited or damaged on the disk is not taken for a measurement.
constexpr std::string_view kSealBegin = "{\"sha256\":\"", kSealEnd = "\",";
constexpr std::size_t kDigest = 64, kSeal = kSealBegin.size() + kDigest + kSealEnd.size();

std::string sealed(const std::string& json) {
  const std::string digest = hex(Sha256().add(json.data(), json.size()).digest());
  return str(kSealBegin, digest, kSealEnd, std::string_view(json).substr(1));
}

std::string unsealed(std::string_view line) {
  std::string json = "{" + std::string(line.substr(std::min(line.size(), kSeal)));
  require(sealed(json) == line, "damaged or edited: its sha256 does not fit the rest of it");
  return json;
}

}  // namespace

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
      try {
        const std::string json = unsealed(std::string_view(text).substr(size_, end - size_));
        finished_.push_back(result_from_json(json, "not a result"));
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

ResultLog::~ResultLog() { ::close(file_); }

void ResultLog::append(const Result& result) {
  const std::string line = sealed(to_json(result)) + "\n";
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
