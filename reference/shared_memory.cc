#include "reference/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <random>

#include "core/backend.h"
#include "core/check.h"
#include "core/file_descriptor.h"

namespace hypic::reference {
namespace {

constexpr std::string_view kPrefix = "memfd:";

uint8_t* map(int fd, int64_t bytes) {
  void* const memory = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) throw OutOfMemory(str("out of memory: ", bytes, " bytes to share: ", std::strerror(errno)));
  return static_cast<uint8_t*>(memory);
}

class Mapped final : public SharedMemory {
 public:
  Mapped(FileDescriptor file, int64_t bytes, std::string handle)
      : SharedMemory(map(file.fd(), bytes), bytes, std::move(handle)), file_(std::move(file)) {}
  ~Mapped() override { ::munmap(data(), static_cast<size_t>(size())); }

 private:
  const FileDescriptor file_;
};

class PlainCopies final : public Copies {
 public:
  void wait_for(Event& event) override { event.wait(); }
  void copy(const BytesCopy& piece) override { std::memcpy(piece.to, piece.from, static_cast<size_t>(piece.bytes)); }
  std::vector<uint64_t> checksums(std::span<const BytesCopy> pieces) override {
    std::vector<uint64_t> sums;
    for (const BytesCopy& piece : pieces) sums.push_back(checksum(piece.from, piece.bytes));
    return sums;
  }
  std::unique_ptr<Event> record() override { return nullptr; }
};

}  // namespace

std::unique_ptr<SharedMemory> share_memory(int64_t bytes) {
  // By its random name a file is told from another that has its number later.
  std::random_device random;
  const std::string name = str("hypic-", random(), "-", random());
  FileDescriptor file(::memfd_create(name.c_str(), MFD_CLOEXEC));
  if (!file || ::ftruncate(file.fd(), bytes) != 0)
    throw OutOfMemory(str("out of memory: ", bytes, " bytes to share: ", std::strerror(errno)));
  const std::string handle = str(kPrefix, ::getpid(), ":", file.fd(), ":", bytes, ":", name);
  return std::make_unique<Mapped>(std::move(file), bytes, handle);
}

std::unique_ptr<SharedMemory> open_shared_memory(const std::string& handle) {
  require(handle.starts_with(kPrefix), "shared memory: no handle of a CPU backend");
  std::array<int64_t, 3> numbers{};  // process, file, bytes
  const char* at = handle.data() + kPrefix.size();
  const char* const end = handle.data() + handle.size();
  for (int64_t& number : numbers) {
    const auto [after, error] = std::from_chars(at, end, number);
    require(error == std::errc() && after != end && *after == ':' && number >= 0, "shared memory: a damaged handle");
    at = after + 1;
  }
  const auto [process, number, bytes] = numbers;
  const std::string path = str("/proc/", process, "/fd/", number),
                    name = str("/memfd:", std::string(at, end), " (deleted)");
  std::string target(512, '\0');
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  require(length > 0, "shared memory of process ", process, ": ", std::strerror(errno));
  target.resize(static_cast<size_t>(length));
  require(target == name, "shared memory of process ", process, ": it is gone");
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  require(static_cast<bool>(file), "shared memory of process ", process, ": ", std::strerror(errno));
  struct stat found {};
  require(::fstat(file.fd(), &found) == 0 && bytes > 0 && found.st_size >= bytes, "shared memory of process ", process,
          ": it has fewer than ", bytes, " bytes");
  return std::make_unique<Mapped>(std::move(file), bytes, handle);
}

std::unique_ptr<Copies> make_copies() { return std::make_unique<PlainCopies>(); }

}  // namespace hypic::reference
