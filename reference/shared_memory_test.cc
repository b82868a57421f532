#include "reference/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "core/check.h"
#include "reference/cpu_backend.h"

namespace hypic {
namespace {

TEST(SharedMemory, AnotherProcessWritesToIt) {
  const auto backend = reference::make_cpu_backend();
  const std::unique_ptr<SharedMemory> memory = backend->share(100'000);
  ASSERT_EQ(memory->size(), 100'000);
  ASSERT_LE(memory->handle().size(), 256u);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      const auto other = reference::make_cpu_backend();
      const std::unique_ptr<SharedMemory> opened = other->open_shared(memory->handle());
      const std::string text = "from there";
      other->copies()->copy({opened->data() + 99'000, text.data(), static_cast<int64_t>(text.size())});
      _exit(opened->size() == 100'000 ? 0 : 1);
    } catch (const std::exception&) {
      _exit(2);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(memory->data()) + 99'000), "from there");
}

TEST(SharedMemory, OnlyWhatIsSharedIsOpened) {
  const auto backend = reference::make_cpu_backend();
  auto memory = backend->share(4096);
  const std::string handle = memory->handle();
  EXPECT_EQ(backend->open_shared(handle)->size(), 4096);
  for (const std::string& wrong :
       {std::string(), std::string("memfd:"), std::string("memfd:1:2"), handle + "0", std::string("memfd:-1:-1:-1:x"),
        std::string("cuda:x"), str("memfd:", getpid(), ":0:10:hypic-1-1")})
    EXPECT_THROW(backend->open_shared(wrong), Error) << wrong;
  const size_t bytes = handle.find(":4096:");
  EXPECT_THROW(backend->open_shared(std::string(handle).replace(bytes, 6, ":8192:")), Error);
  memory.reset();
  EXPECT_THROW(backend->open_shared(handle), Error);
}

TEST(SharedMemory, BytesAreCopiedAndSummed) {
  const auto backend = reference::make_cpu_backend();
  std::vector<uint8_t> bytes(1000);
  std::iota(bytes.begin(), bytes.end(), uint8_t{1});
  std::vector<uint8_t> to(1000, 0xff);
  backend->copy_bytes(
      std::vector<BytesCopy>{{to.data(), bytes.data() + 500, 500}, {to.data() + 500, bytes.data(), 500}});
  EXPECT_EQ(std::memcmp(to.data(), bytes.data() + 500, 500), 0);
  EXPECT_EQ(std::memcmp(to.data() + 500, bytes.data(), 500), 0);
  const auto copies = backend->copies();
  const auto sums =
      copies->checksums(std::vector<BytesCopy>{{nullptr, bytes.data(), 1000}, {nullptr, to.data(), 1000}});
  EXPECT_NE(sums[0], sums[1]);
  for (const int64_t size : {1, 7, 8, 9, 500, 999}) {
    const uint64_t sum = checksum(bytes.data(), size);
    for (int64_t i = 0; i < size; ++i) {
      bytes[static_cast<size_t>(i)] ^= 4;
      EXPECT_NE(checksum(bytes.data(), size), sum);
      bytes[static_cast<size_t>(i)] ^= 4;
    }
    EXPECT_EQ(checksum(bytes.data(), size), sum);
  }
}

}  // namespace
}  // namespace hypic
