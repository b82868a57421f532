#include "serving/residue_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>

#include "core/check.h"
#include "core/file_descriptor.h"

namespace hypic {
FolderStore::FolderStore(const std::string& folder) : folder_(folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require(std::filesystem::is_directory(folder, error), folder, ": is no folder and cannot be made one");
}

std::optional<std::vector<uint8_t>> FolderStore::get(const std::string& name, int64_t bytes) {
  const std::string path = folder_ + "/" + name;
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info;
  if (!file || ::fstat(file.fd(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != bytes) return std::nullopt;
  std::vector<uint8_t> value(bytes);
  for (size_t done = 0; done < value.size();) {
    const ssize_t n = ::read(file.fd(), value.data() + done, value.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      error_ = str(path, ": cannot be read: ", n == 0 ? "it is shorter now" : std::strerror(errno));
      return std::nullopt;
    }
    done += static_cast<size_t>(n);
  }
  return value;
}

void FolderStore::put(const std::string& name, std::span<const uint8_t> value) {
  const std::string path = folder_ + "/" + name;
  std::random_device random;
  const std::string part = str(path, ".part-", uint64_t{random()} << 32 | random());
  const auto give_up = [&] {
    error_ = str(path, ": cannot be written: ", std::strerror(errno));
    ::unlink(part.c_str());
  };
  const FileDescriptor file(::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return give_up();
  for (size_t done = 0; done < value.size();) {
    const ssize_t n = ::write(file.fd(), value.data() + done, value.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return give_up();
    done += static_cast<size_t>(n);
  }
  if (std::rename(part.c_str(), path.c_str()) != 0) give_up();
}

std::string residue_name(const Sha256::Digest& identity, const Tokens& tokens, int32_t first, int32_t tail) {
  Sha256 sha;
  sha.add(identity.data(), identity.size()).add(int64_t{first}).add(int64_t{tail});
  return hex(sha.add(tokens.data(), tokens.size() * sizeof(int32_t)).digest());
}

std::vector<uint8_t> stored_residue(const std::string& name, std::span<const uint8_t> layers) {
  std::vector<uint8_t> value(kStoredHead + layers.size());
  const Sha256::Digest own = Sha256().add(name).digest();
  std::copy(own.begin(), own.end(), value.begin() + static_cast<int64_t>(own.size()));
  std::copy(layers.begin(), layers.end(), value.begin() + kStoredHead);
  const Sha256::Digest all = Sha256().add(value.data() + own.size(), value.size() - own.size()).digest();
  std::copy(all.begin(), all.end(), value.begin());
  return value;
}

std::span<const uint8_t> layers_of(const std::string& name, std::span<const uint8_t> value) {
  constexpr size_t kDigest = sizeof(Sha256::Digest);
  static_assert(kStoredHead == 2 * kDigest);
  if (value.size() < kStoredHead) return {};
  const Sha256::Digest own = Sha256().add(name).digest();
  const Sha256::Digest all = Sha256().add(value.data() + kDigest, value.size() - kDigest).digest();
  const bool sound =
      std::equal(all.begin(), all.end(), value.begin()) && std::equal(own.begin(), own.end(), value.begin() + kDigest);
  return sound ? value.subspan(kStoredHead) : std::span<const uint8_t>();
}

}  // namespace hypic
