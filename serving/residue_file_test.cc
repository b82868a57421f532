#include "serving/residue_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "core/temporary_folder.h"
#include "models/spec.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;

class ResidueFiles : public testing::Test {
 protected:
  ResidueFiles() {
    payload_.resize(layout_.bytes(Part::op, 5).total());
    for (size_t i = 0; i < payload_.size(); ++i) payload_[i] = static_cast<uint8_t>(i * 7);
    write_residue_file(path(), reader_, header_, payload_);
  }

  std::string path() const { return folder_ + "/one.residue"; }
  std::string bytes() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void put(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
  }

  // "" where it was read, else "foreign" or "damaged"; any other error is a failure.
  std::string verdict() const {
    try {
      std::vector<uint8_t> payload(payload_.size());
      read_residue_payload(path(), reader_, header_, payload);
      EXPECT_EQ(payload, payload_);
      return "";
    } catch (const ForeignFile& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return "foreign";
    } catch (const DamagedFile& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(path())) << error.what();
      return "damaged";
    }
  }

  // Small enough to flip every byte.
  const ResidueLayout layout_{[] {
                                ModelSpec spec;
                                spec.layers = {kLinearLayer, kAttentionLayer};
                                spec.attention.kv_heads = 1;
                                spec.attention.head_dim = 4;
                                spec.linear.key_heads = spec.linear.value_heads = 2;
                                spec.linear.key_dim = spec.linear.value_dim = 4;
                                spec.linear.conv_width = 4;
                                return spec;
                              }(),
                              DType::f32, DType::f32, ResidueFormat::full};
  const ResidueReader reader_{Sha256().add(std::string("model")).digest(), layout_, 100};
  const ResidueHeader header_{Part::op, 2, 1, 0, {5, 6, 7, 8, 9}};
  std::vector<uint8_t> payload_;
  const TemporaryFolder made_;
  const std::string& folder_ = made_.path();
};

TEST_F(ResidueFiles, ComeBack) {
  EXPECT_EQ(verdict(), "");
  EXPECT_EQ(fs::file_size(path()), residue_file_bytes(layout_, Part::op, 5));
  const ResidueHeader header = read_residue_header(path(), reader_);
  EXPECT_EQ(header.tokens, header_.tokens);
  EXPECT_EQ(header.first, 2);
  EXPECT_EQ(header.tail, 1);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

// One bit of every byte, one byte after another.
TEST_F(ResidueFiles, NoFlippedByteGoesUnnoticed) {
  const std::string sound = bytes();
  for (size_t i = 0; i < sound.size(); ++i) {
    std::string damaged = sound;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
    put(damaged);
    const bool foreign = i < 12 || (48 <= i && i < 80);  // magic, version, identity
    EXPECT_EQ(verdict(), foreign ? "foreign" : "damaged") << "byte " << i;
  }
  put(sound);
  EXPECT_EQ(verdict(), "");
}

TEST_F(ResidueFiles, TruncatedAtAnyByteOrTooLongIsDamaged) {
  const std::string sound = bytes();
  for (size_t i = 0; i < sound.size(); ++i) {
    put(sound.substr(0, i));
    EXPECT_EQ(verdict(), "damaged") << i << " bytes";
  }
  put(sound + "x");
  EXPECT_EQ(verdict(), "damaged");
}

// Sizes that a header claims are checked before memory is taken for them.
TEST_F(ResidueFiles, ImpossibleSizesAreRefused) {
  const std::string sound = bytes();
  for (const uint64_t size : {uint64_t{0}, uint64_t{101}, uint64_t{1} << 40, ~uint64_t{0}}) {
    for (const size_t at : {32, 40}) {  // tokens, payload bytes
      std::string changed = sound;
      std::memcpy(changed.data() + at, &size, sizeof(size));
      put(changed);
      EXPECT_EQ(verdict(), "damaged") << size;
    }
  }
}

TEST_F(ResidueFiles, OthersAreNotOurs) {
  const ResidueReader other{Sha256().add(std::string("another")).digest(), layout_, 100};
  EXPECT_THROW(read_residue_header(path(), other), ForeignFile);
  put("");
  EXPECT_EQ(verdict(), "damaged");
  put(std::string(4096, 'x'));
  EXPECT_EQ(verdict(), "foreign");
  // Another layout of the same name.
  write_residue_file(path(), reader_, header_, payload_);
  ModelSpec spec;
  spec.layers = {kLinearLayer};
  spec.linear.key_heads = spec.linear.value_heads = 1;
  spec.linear.key_dim = spec.linear.value_dim = 4;
  const ResidueLayout narrow(spec, DType::f32, DType::f32, ResidueFormat::full);
  EXPECT_THROW(read_residue_header(path(), {reader_.identity, narrow, 100}), DamagedFile);
  // The residue of other tokens under this name.
  std::vector<uint8_t> payload(payload_.size());
  EXPECT_THROW(read_residue_payload(path(), reader_, {Part::op, 2, 1, 0, {5, 6, 7, 8, 10}}, payload), DamagedFile);
}

TEST_F(ResidueFiles, OddKindsOfFilesAreErrors) {
  EXPECT_THROW(read_residue_header(folder_, reader_), Error);
  EXPECT_THROW(read_residue_header(folder_ + "/none", reader_), Error);
  fs::create_symlink(path(), folder_ + "/link");
  EXPECT_THROW(read_residue_header(folder_ + "/link", reader_), Error);
  ASSERT_EQ(mkfifo((folder_ + "/pipe").c_str(), 0600), 0);
  EXPECT_THROW(read_residue_header(folder_ + "/pipe", reader_), Error);
}

// Two caches of one process, and what a process of the same id left behind.
TEST_F(ResidueFiles, WritersDoNotDisturbEachOther) {
  const std::string other = str(path(), ".part-", getpid());
  std::ofstream(other) << "another's";
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i)
    writers.emplace_back([&] {
      for (int n = 0; n < 20; ++n) {
        EXPECT_NO_THROW(write_residue_file(path(), reader_, header_, payload_));
        EXPECT_EQ(verdict(), "");
      }
    });
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(fs::file_size(other), 9);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2);
}

TEST_F(ResidueFiles, TellWhenTheyWereUsed) {
  constexpr int64_t kUsed = 1'700'000'000'123'456'789;
  write_residue_file(path(), reader_, header_, payload_, kUsed);
  EXPECT_EQ(time_of(path()), kUsed);
  set_time(path(), kUsed + 1);
  EXPECT_EQ(time_of(path()), kUsed + 1);
  EXPECT_EQ(verdict(), "");
  EXPECT_EQ(time_of(folder_ + "/none"), 0);
}

TEST(UnfinishedFiles, HaveNamesOfTheirOwn) {
  const std::string key(64, 'a');
  for (const char* name : {"-kv.residue.part-1", "-operator-8-0.residue.part-18446744073709551615"})
    EXPECT_TRUE(is_unfinished(key + name)) << name;
  for (const char* name : {"-kv.residue", "-kv.residue.part-1x", "-kv.part-1"})
    EXPECT_FALSE(is_unfinished(key + name)) << name;
  EXPECT_FALSE(is_unfinished("a.residue.part-1"));
}

// A writer that gives its file the time of an old entry is still at work.
TEST_F(ResidueFiles, AreAbandonedByTheTimeOfTheirLastChange) {
  const std::string part = str(folder_, "/", std::string(64, 'a'), "-kv.residue.part-1"), notes = folder_ + "/notes";
  for (const std::string& file : {part, notes}) {
    std::ofstream(file) << "x";
    set_time(file, 1);
  }
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  const int64_t now = time.tv_sec * int64_t{1'000'000'000}, hour = int64_t{3600} * 1'000'000'000;
  EXPECT_FALSE(is_abandoned(part, now));
  EXPECT_FALSE(is_abandoned(part, now + hour / 2));
  EXPECT_TRUE(is_abandoned(part, now + 2 * hour));
  EXPECT_FALSE(is_abandoned(notes, now + 2 * hour));
  EXPECT_FALSE(is_abandoned(part + "0", now + 2 * hour));
}

TEST_F(ResidueFiles, AFailedWriteLeavesNothing) {
  const std::string target = folder_ + "/folder";
  fs::create_directories(target + "/full");
  EXPECT_THROW(write_residue_file(target, reader_, header_, payload_), Error);
  EXPECT_THROW(write_residue_file(folder_ + "/none/x", reader_, header_, payload_), Error);
  for (const auto& entry : fs::directory_iterator(folder_))
    EXPECT_EQ(entry.path().string().find(".part-"), std::string::npos) << entry.path();
}

}  // namespace
}  // namespace hypic
