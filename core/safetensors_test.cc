#include "core/safetensors.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/temporary_folder.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;

class SafetensorsTest : public testing::Test {
 protected:
  static std::string file_of(const std::string& header, const std::string& data) {
    const uint64_t n = header.size();
    return std::string(reinterpret_cast<const char*>(&n), 8) + header + data;
  }
  std::string put(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
    return path_;
  }
  std::string bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // One tensor "x" with that entry over 24 bytes of data.
  static std::string with_entry(const std::string& entry) {
    return file_of("{\"x\":" + entry + "}", std::string(24, '\1'));
  }
  void expect_refused(const std::string& content, const std::string& what) const {
    put(content);
    expect_refused_at(path_, what);
  }
  static void expect_refused_at(const std::string& path, const std::string& what) {
    try {
      const Safetensors file(path);
      ADD_FAILURE() << "accepted; expected: " << what;
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with(path + ": ")) << message;
      EXPECT_NE(message.find(what), std::string::npos) << message << "\nexpected: " << what;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }

  const TemporaryFolder made_;
  const fs::path folder_ = made_.path();
  const std::string path_ = folder_ / "model.safetensors";
};

TEST_F(SafetensorsTest, RoundTripOfEveryDtype) {
  std::vector<std::vector<char>> memory;
  std::vector<std::pair<std::string, Tensor>> tensors;
  int i = 0;
  for (const DType dtype :
       {DType::u8, DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32}) {
    std::vector<char>& held = memory.emplace_back(6 * size_of(dtype));
    for (char& byte : held) byte = static_cast<char>(37 * ++i);
    // Names out of order, so that file order differs from name order.
    tensors.emplace_back(str(name_of(dtype), "\"\n é"), Tensor(held.data(), dtype, {2, 3}));
  }
  tensors.emplace_back("empty", Tensor(memory[0].data(), DType::f32, {0, 5}));
  tensors.emplace_back("scalar", Tensor(memory[1].data(), DType::f64, {}));
  tensors.emplace_back("rank 5", Tensor(memory[0].data(), DType::u8, {1, 2, 1, 3, 1}));
  write_safetensors(path_, tensors);
  EXPECT_FALSE(fs::exists(path_ + ".part"));

  const Safetensors file(path_);
  EXPECT_EQ(file.path(), path_);
  EXPECT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, written] : tensors) {
    const Tensor& read = file.tensors().at(name);
    EXPECT_EQ(read.dtype, written.dtype) << name;
    EXPECT_EQ(read.shape_string(), written.shape_string()) << name;
    EXPECT_TRUE(read.contiguous()) << name;
    EXPECT_EQ(std::memcmp(read.data, written.data, written.bytes()), 0) << name;
  }
}

TEST_F(SafetensorsTest, NoTensorsAndMetadata) {
  write_safetensors(path_, {});
  EXPECT_TRUE(Safetensors(path_).tensors().empty());
  put(file_of(
      R"({"__metadata__":{"format":"pt"},"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
      "\7"));
  EXPECT_EQ(Safetensors(path_).tensors().size(), 1u);
}

TEST_F(SafetensorsTest, MovesKeepTheFileMapped) {
  float x = 2.5;
  write_safetensors(path_, {{"x", Tensor(&x, {1})}});
  Safetensors a(path_), b(std::move(a));
  put("other");  // the map is private; a new file is not read
  write_safetensors(folder_ / "second", {{"y", Tensor(&x, {1, 1})}});
  a = Safetensors(folder_ / "second");
  a = std::move(b);
  EXPECT_EQ(a.path(), path_);
  EXPECT_EQ(a.tensors().begin()->first, "x");
}

TEST_F(SafetensorsTest, RefusesWhatIsNoFile) {
  expect_refused_at(folder_ / "absent", "cannot open: No such file");
  expect_refused_at(folder_, "not a regular file");
  expect_refused("", "0 bytes are too few");
  expect_refused("1234567", "7 bytes are too few");
}

TEST_F(SafetensorsTest, RefusesBadHeaders) {
  expect_refused(std::string(8, '\xff') + "{}", "does not fit the file");
  expect_refused(std::string("\x03\0\0\0\0\0\0\0{}", 10), "does not fit the file");
  for (const char* header : {"", "{", "nonsense", "{} {}", "{\"x\":}", "\xff\xfe{}"})
    expect_refused(file_of(header, ""), "not valid JSON");
  for (const char* header : {"[]", "3", "null"})
    expect_refused(file_of(header, ""), "not a JSON object");
}

TEST_F(SafetensorsTest, RefusesBadEntries) {
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return with_entry("{\"dtype\":" + dtype + ",\"shape\":" + shape +
                      ",\"data_offsets\":" + offsets + "}");
  };
  put(entry("\"F32\"", "[2,3]", "[0,24]"));
  EXPECT_EQ(Safetensors(path_).tensors().at("x").shape_string(), "[2, 3]");

  for (const char* missing :
       {"{}", "[]", "7", R"({"shape":[6],"data_offsets":[0,24]})",
        R"({"dtype":"F32","data_offsets":[0,24]})", R"({"dtype":"F32","shape":[6]})",
        R"({"dtype":4,"shape":[6],"data_offsets":[0,24]})",
        R"({"dtype":"F32","shape":6,"data_offsets":[0,24]})",
        R"({"dtype":"F32","shape":[6],"data_offsets":24})",
        R"({"dtype":"F32","shape":[6],"data_offsets":[0]})",
        R"({"dtype":"F32","shape":[6],"data_offsets":[0,12,24]})"})
    expect_refused(with_entry(missing), "tensor x: needs dtype, shape and data_offsets");
  for (const char* dtype : {"\"F8_E5M2\"", "\"f32\"", "\"\"", "\"BOOL\""})
    expect_refused(entry(dtype, "[2,3]", "[0,24]"), "is not supported (F64");
  for (const char* offsets : {"[-1,24]", "[0,-24]", "[0.0,24]", "[0,1e2]", "[\"0\",24]",
                              "[null,24]", "[0,18446744073709551616]"})
    expect_refused(entry("\"F32\"", "[2,3]", offsets),
                   "data_offsets must be non-negative integers");
  for (const char* offsets :
       {"[24,0]", "[1,25]", "[0,18446744073709551615]", "[18446744073709551592,24]"})
    expect_refused(entry("\"F32\"", "[2,3]", offsets), "lie outside the 24 bytes");
  for (const char* shape : {"[-2,-3]", "[2.0,3]", "[\"6\"]", "[null]", "[[6]]"})
    expect_refused(entry("\"F32\"", shape, "[0,24]"), "shape must be non-negative integers");
  for (const char* shape : {"[5]", "[7]", "[2,3,2]", "[]", "[0]", "[2,0,3]"})
    expect_refused(entry("\"F32\"", shape, "[0,24]"), "bytes, the header gives 24");
  for (const char* shape :
       {"[4611686018427387904,4]", "[65536,65536,65536,65536]", "[18446744073709551615]",
        "[9223372036854775808,0]", "[0,9223372036854775808]", "[4294967296,0,4294967296]"})
    expect_refused(entry("\"F32\"", shape, "[0,24]"), "shape overflows");
  expect_refused(entry("\"F32\"", "[1,1,1,1,1,6]", "[0,24]"), "rank 6, at most 5");
}

TEST_F(SafetensorsTest, RefusesOverlapsAndHoles) {
  const auto two = [](const std::string& a, const std::string& b, int bytes) {
    return file_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + a +
                       "},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + b + "}}",
                   std::string(bytes, '\1'));
  };
  put(two("[4,8]", "[0,4]", 8));
  EXPECT_EQ(Safetensors(path_).tensors().size(), 2u);
  expect_refused(two("[0,4]", "[0,4]", 8), "overlap");
  expect_refused(two("[0,4]", "[0,4]", 4), "overlap");
  expect_refused(two("[0,4]", "[2,6]", 6), "tensor b begins at byte 2");
  expect_refused(two("[0,4]", "[5,9]", 9), "tensor b begins at byte 5");
  expect_refused(two("[1,5]", "[5,9]", 9), "tensor a begins at byte 1");
  expect_refused(two("[0,4]", "[4,8]", 9), "end at byte 8 of 9");
  expect_refused(file_of("{}", "x"), "end at byte 0 of 1");
  const std::string one = R"("x":{"dtype":"U8","shape":[1],"data_offsets":)";
  expect_refused(file_of("{" + one + "[0,1]}," + one + "[1,2]}}", "xy"), "key \"x\" is given twice");
}

TEST_F(SafetensorsTest, RefusesDeepNesting) {
  const int depth = 1 << 20;
  expect_refused(file_of(std::string(depth, '['), ""), "nested deeper than");
  expect_refused(file_of("{\"x\":" + std::string(depth, '[') + std::string(depth, ']') + "}", ""),
                 "nested deeper than");
  expect_refused(with_entry("{\"dtype\":\"U8\",\"shape\":[" + std::string(depth, '[') +
                            std::string(depth, ']') + "],\"data_offsets\":[0,24]}"),
                 "nested deeper than");
}

// What a small file of two tensors holds.
std::string small_file(const std::string& path) {
  const float a[] = {1, 2, 3};
  const uint8_t b[] = {4, 5};
  write_safetensors(path, {{"a", Tensor(a, {3, 1})}, {"b", Tensor(b, {2})}});
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  const std::string whole = small_file(path_);
  for (size_t n = 0; n < whole.size(); ++n) {
    put(whole.substr(0, n));
    EXPECT_THROW(Safetensors{path_}, Error) << n << " bytes of " << whole.size();
  }
  put(whole + "x");
  EXPECT_THROW(Safetensors{path_}, Error);
}

// Any bytes are refused with an Error, or every tensor lies within them.
TEST_F(SafetensorsTest, ChangedBytesAreRefusedOrHarmless) {
  const std::string whole = small_file(path_);
  EXPECT_TRUE(rc::check([&] {
    std::string changed = whole;
    const int count = *rc::gen::inRange(1, 5);
    for (int i = 0; i < count; ++i)
      changed[*rc::gen::inRange<size_t>(0, changed.size())] ^=
          static_cast<char>(*rc::gen::inRange(1, 256));
    put(changed);
    try {
      const Safetensors file(path_);
      int64_t bytes = 0, sum = 0;
      for (const auto& [name, tensor] : file.tensors()) {
        bytes += tensor.bytes();
        for (int64_t i = 0; i < tensor.bytes(); ++i)
          sum += static_cast<const uint8_t*>(tensor.data)[i];
      }
      RC_ASSERT(bytes <= static_cast<int64_t>(whole.size()) && sum >= 0);
    } catch (const Error&) {
    }
  }));
}

TEST_F(SafetensorsTest, AFailedWriteIsAnErrorAndKeepsTheOldFile) {
  float x = 1;
  EXPECT_THROW(write_safetensors(folder_ / "absent" / "file", {{"x", Tensor(&x, {1})}}), Error);
  float four[4] = {};
  EXPECT_THROW(write_safetensors(path_, {{"x", Tensor(four, {2, 2}).columns(0, 1)}}),
               InternalError);
  EXPECT_FALSE(fs::exists(path_));
}

}  // namespace
}  // namespace hypic
