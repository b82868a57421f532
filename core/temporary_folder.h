// A folder for files that nobody needs afterwards: it goes, with all in it, when its owner does.
#pragma once

#include <string>
#include <string_view>

namespace hypic {

class TemporaryFolder {
 public:
  // A new one in TMPDIR, or /tmp. Error: it cannot be made.
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }
  // The path of a file with these bytes; folders in its name are made. Error: it cannot be written.
  std::string write(const std::string& name, std::string_view bytes) const;

 private:
  std::string path_;
};

}  // namespace hypic
