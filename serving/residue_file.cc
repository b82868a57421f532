#include "serving/residue_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <string_view>

namespace hypic {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers in the file are little-endian");

constexpr char kMagic[8] = {'h', 'y', 'p', 'i', 'c', 'R', 'E', 'S'};
constexpr uint32_t kVersion = 1;
constexpr int32_t kMaxSpan = 1 << 30;
constexpr int64_t kSecond = 1'000'000'000;  // in ns
constexpr std::string_view kUnfinished = ".part-";

// The file begins with it. Behind it: token ids (int32), a TableRow per section, SHA-256 over all
// before, payload.
struct Head {
  char magic[8];
  uint32_t version;
  uint8_t part, format;
  uint16_t reserved;
  int32_t first, tail, built_at;
  uint32_t sections;
  uint64_t tokens;
  uint64_t payload_bytes;
  Sha256::Digest identity;
  Sha256::Digest payload_digest;
};
static_assert(sizeof(Head) == 112);

struct TableRow {
  int32_t layer;
  uint8_t what, dtype, rank, reserved;
  int64_t shape[3];
};
static_assert(sizeof(TableRow) == 32);

template <class... Parts>
void damaged_unless(bool ok, const Parts&... parts) {
  if (!ok) throw DamagedFile(str(parts...));
}

std::string table_of(const std::vector<Section>& sections) {
  std::string table;
  for (const Section& section : sections) {
    HYPIC_CHECK(section.shape.size() <= std::size(TableRow{}.shape));
    TableRow row{section.layer,
                 static_cast<uint8_t>(section.what),
                 static_cast<uint8_t>(section.dtype),
                 static_cast<uint8_t>(section.shape.size()),
                 0,
                 {}};
    std::copy(section.shape.begin(), section.shape.end(), row.shape);
    table.append(reinterpret_cast<const char*>(&row), sizeof(row));
  }
  return table;
}

// Everything before the payload, its digest included.
std::string header_bytes(const ResidueReader& expected, const ResidueHeader& header,
                         uint64_t payload_bytes, const Sha256::Digest& payload_digest) {
  const int64_t tokens = static_cast<int64_t>(header.tokens.size());
  const std::vector<Section> sections = expected.layout.sections(header.part, tokens);
  Head head{};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  head.version = kVersion;
  head.part = static_cast<uint8_t>(header.part);
  head.format = static_cast<uint8_t>(expected.layout.format());
  head.first = header.first;
  head.tail = header.tail;
  head.built_at = header.built_at;
  head.sections = static_cast<uint32_t>(sections.size());
  head.tokens = static_cast<uint64_t>(tokens);
  head.payload_bytes = payload_bytes;
  head.identity = expected.identity;
  head.payload_digest = payload_digest;
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  bytes.append(reinterpret_cast<const char*>(header.tokens.data()), tokens * sizeof(int32_t));
  bytes += table_of(sections);
  const Sha256::Digest digest = Sha256().add(bytes.data(), bytes.size()).digest();
  return bytes.append(reinterpret_cast<const char*>(digest.data()), digest.size());
}

// Since 1970; 0 where it is absurd.
int64_t nanoseconds(const timespec& time) {
  constexpr int64_t kLatest = int64_t{1} << 33;  // seconds; nanoseconds must not overflow
  return time.tv_sec < 0 || time.tv_sec > kLatest ? 0 : time.tv_sec * kSecond + time.tv_nsec;
}

// Access time as it is, modification time in ns since 1970.
class Times {
 public:
  explicit Times(int64_t used)
      : times_{{0, UTIME_OMIT}, {static_cast<time_t>(used / kSecond), static_cast<long>(used % kSecond)}} {}
  operator const timespec*() const { return times_; }

 private:
  timespec times_[2];
};

class File {
 public:
  File(const std::string& path, int flags) : path_(path) {
    fd_ = open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    require(fd_ >= 0, path_, ": cannot open: ", std::strerror(errno));
  }
  ~File() { close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int64_t size() const {
    struct stat info;
    require(fstat(fd_, &info) == 0 && S_ISREG(info.st_mode), path_, ": is not a regular file");
    return info.st_size;
  }
  void read(void* to, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      const ssize_t n = ::read(fd_, static_cast<char*>(to) + done, bytes - done);
      if (n < 0 && errno == EINTR) continue;
      require(n >= 0, path_, ": cannot read: ", std::strerror(errno));
      damaged_unless(n > 0, path_, ": is truncated");
      done += static_cast<size_t>(n);
    }
  }
  void write(const void* from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      const ssize_t n = ::write(fd_, static_cast<const char*>(from) + done, bytes - done);
      if (n < 0 && errno == EINTR) continue;
      require(n > 0, path_, ": cannot write: ", std::strerror(errno));
      done += static_cast<size_t>(n);
    }
  }
  void set_time(int64_t used) { futimens(fd_, Times(used)); }
  void sync() { require(fsync(fd_) == 0, path_, ": cannot write: ", std::strerror(errno)); }

 private:
  std::string path_;
  int fd_ = -1;
};

struct Opened {
  ResidueHeader header;
  Head head;
};

// Reads up to the payload.
Opened read_header(File& file, const std::string& path, const ResidueReader& expected) {
  const int64_t file_bytes = file.size();
  Opened opened;
  Head& head = opened.head;
  const int64_t begins = std::min<int64_t>(file_bytes, sizeof(kMagic));
  file.read(&head, begins);
  if (std::memcmp(head.magic, kMagic, begins) != 0) throw ForeignFile(str(path, ": is not a residue of hypic"));
  damaged_unless(file_bytes >= static_cast<int64_t>(sizeof(head)), path, ": ", file_bytes,
                 " bytes are too few for a residue; the file is truncated");
  file.read(reinterpret_cast<char*>(&head) + begins, sizeof(head) - begins);
  if (head.version != kVersion)
    throw ForeignFile(str(path, ": has version ", head.version, ", this program reads ", kVersion));
  if (head.identity != expected.identity)
    throw ForeignFile(str(path, ": belongs to another model, dtype, backend or format"));
  damaged_unless(head.part <= static_cast<uint8_t>(Part::prefix), path, ": part ", int{head.part},
                 " is unknown; the file is damaged");
  damaged_unless(0 < head.tokens && head.tokens <= static_cast<uint64_t>(expected.max_tokens), path,
                 ": ", head.tokens, " tokens, at most ", expected.max_tokens,
                 "; the file is damaged");
  damaged_unless(0 <= head.first && head.first < kMaxSpan && 0 <= head.tail &&
                     head.tail < kMaxSpan && 0 <= head.built_at &&
                     head.built_at <= expected.max_tokens,
                 path, ": span out of range; the file is damaged");
  const Part part = static_cast<Part>(head.part);
  const int64_t tokens = static_cast<int64_t>(head.tokens);
  const int64_t wanted = residue_file_bytes(expected.layout, part, tokens);
  damaged_unless(file_bytes == wanted, path, ": has ", file_bytes, " bytes, ", tokens,
                 " tokens of this model need ", wanted, "; the file is truncated or damaged");
  ResidueHeader& header = opened.header;
  header = {part, head.first, head.tail, head.built_at, Tokens(tokens)};
  file.read(header.tokens.data(), header.tokens.size() * sizeof(int32_t));
  // The rest must be what we would have written: table of sections and digest follow from the head.
  const std::string whole = header_bytes(expected, header, head.payload_bytes, head.payload_digest);
  damaged_unless(head.payload_bytes == static_cast<uint64_t>(wanted) - whole.size(), path,
                 ": its payload does not fit; the file is damaged");
  std::string rest(whole.size() - sizeof(head) - tokens * sizeof(int32_t), '\0');
  file.read(rest.data(), rest.size());
  damaged_unless(std::memcmp(&head, whole.data(), sizeof(head)) == 0 && whole.ends_with(rest), path,
                 ": its header does not match its checksum; the file is damaged");
  return opened;
}

}  // namespace

int64_t residue_file_bytes(const ResidueLayout& layout, Part part, int64_t tokens) {
  const std::vector<Section> sections = layout.sections(part, tokens);
  int64_t bytes = sizeof(Head) + tokens * sizeof(int32_t) + sections.size() * sizeof(TableRow) +
                  sizeof(Sha256::Digest);
  for (const Section& section : sections) bytes += section.bytes();
  return bytes;
}

void write_residue_file(const std::string& path, const ResidueReader& expected,
                        const ResidueHeader& header, std::span<const uint8_t> payload, int64_t used) {
  const std::string head = header_bytes(expected, header, payload.size(),
                                        Sha256().add(payload.data(), payload.size()).digest());
  HYPIC_CHECK(static_cast<int64_t>(head.size() + payload.size()) ==
              residue_file_bytes(expected.layout, header.part, header.tokens.size()));
  // Drawn, not counted: other threads, processes and machines may write into the folder, and process ids come again.
  std::random_device random;
  const std::string part = str(path, kUnfinished, uint64_t{random()} << 32 | random());
  File file(part, O_WRONLY | O_CREAT | O_EXCL);
  try {
    file.write(head.data(), head.size());
    file.write(payload.data(), payload.size());
    if (used > 0) file.set_time(used);
    file.sync();
    require(std::rename(part.c_str(), path.c_str()) == 0, path,
            ": cannot write: ", std::strerror(errno));
  } catch (...) {
    unlink(part.c_str());
    throw;
  }
  try {  // the name survives a crash; some file systems cannot do that for folders
    File(std::filesystem::path(path).parent_path().string(), O_RDONLY | O_DIRECTORY).sync();
  } catch (const Error&) {
  }
}

bool is_unfinished(const std::string& name) {
  constexpr size_t kHex = 2 * sizeof(Sha256::Digest);
  const auto all = [](std::string_view part, auto&& is) { return std::all_of(part.begin(), part.end(), is); };
  const std::string_view whole = name;
  const size_t part = whole.find(str(".residue", kUnfinished));
  if (part == name.npos || part < kHex) return false;
  const std::string_view number = whole.substr(whole.find(kUnfinished, part) + kUnfinished.size());
  return all(whole.substr(0, kHex), [](unsigned char c) { return std::isxdigit(c); }) &&
         all(number, [](unsigned char c) { return std::isdigit(c); });
}

bool is_abandoned(const std::string& path, int64_t now) {
  constexpr int64_t kAbandoned = 3600 * kSecond;
  struct stat info;
  if (!is_unfinished(std::filesystem::path(path).filename().string()) || lstat(path.c_str(), &info) != 0) return false;
  const int64_t changed = nanoseconds(info.st_ctim);
  return changed > 0 && now - changed > kAbandoned;
}

int64_t time_of(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 ? nanoseconds(info.st_mtim) : 0;
}

void set_time(const std::string& path, int64_t used) {
  utimensat(AT_FDCWD, path.c_str(), Times(used), AT_SYMLINK_NOFOLLOW);
}

ResidueHeader read_residue_header(const std::string& path, const ResidueReader& expected) {
  File file(path, O_RDONLY);
  return read_header(file, path, expected).header;
}

void read_residue_payload(const std::string& path, const ResidueReader& expected, const ResidueHeader& header,
                          std::span<uint8_t> to) {
  File file(path, O_RDONLY);
  const auto [found, head] = read_header(file, path, expected);
  damaged_unless(found.part == header.part && found.first == header.first &&
                     found.tail == header.tail && found.tokens == header.tokens,
                 path, ": holds another residue than its name says");
  HYPIC_CHECK(to.size() == head.payload_bytes);
  file.read(to.data(), to.size());
  damaged_unless(Sha256().add(to.data(), to.size()).digest() == head.payload_digest, path,
                 ": its payload does not match its checksum; the file is damaged");
}

}  // namespace hypic
