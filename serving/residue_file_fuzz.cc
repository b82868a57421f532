#include <cstring>

#include "core/fuzz.h"
#include "core/temporary_folder.h"
#include "serving/residue_file.h"

namespace hypic {
namespace {

// Small, so that files are.
ModelSpec small() {
  ModelSpec spec;
  spec.layers = {kLinearLayer, kAttentionLayer};
  spec.attention.kv_heads = 1;
  spec.attention.head_dim = 2;
  spec.linear.key_heads = spec.linear.value_heads = 1;
  spec.linear.key_dim = spec.linear.value_dim = 2;
  spec.linear.conv_width = 2;
  return spec;
}

// A file as it is; behind "sum:" one whose checksums are put right, which mutation never does.
std::string file_of(std::string_view input, const ResidueLayout& layout) {
  constexpr std::string_view kSum = "sum:";
  constexpr size_t kHead = 112, kPayloadDigest = 80, kTokens = 32, kPart = 12;
  if (!input.starts_with(kSum)) return std::string(input);
  std::string file(input.substr(kSum.size()));
  if (file.size() < kHead) return file;
  uint64_t tokens = 0;
  std::memcpy(&tokens, file.data() + kTokens, sizeof(tokens));
  const uint8_t part = static_cast<uint8_t>(file[kPart]);
  if (tokens > 100 || part > static_cast<uint8_t>(Part::prefix)) return file;
  int64_t payload = 0;
  for (const Section& section : layout.sections(static_cast<Part>(part), tokens))
    payload += section.bytes();
  const int64_t header = static_cast<int64_t>(file.size()) - payload;
  if (header < static_cast<int64_t>(kHead + sizeof(Sha256::Digest))) return file;
  const auto put = [&](size_t at, const Sha256::Digest& digest) {
    std::memcpy(file.data() + at, digest.data(), digest.size());
  };
  put(kPayloadDigest, Sha256().add(file.data() + header, payload).digest());
  const size_t at = header - sizeof(Sha256::Digest);
  put(at, Sha256().add(file.data(), at).digest());
  return file;
}

// What is read must be what would be written.
void check(const TemporaryFolder& folder, std::string_view input) {
  const ResidueLayout layout(small(), DType::f32, DType::f32, ResidueFormat::compact);
  const ResidueReader reader{Sha256().add(std::string("model")).digest(), layout, 100};
  const std::string bytes = file_of(input, layout);
  const std::string path = folder.write("x.residue", bytes);
  const ResidueHeader header = read_residue_header(path, reader);
  std::vector<uint8_t> payload(layout.bytes(header.part, static_cast<int64_t>(header.tokens.size())).total());
  read_residue_payload(path, reader, header, payload);
  const std::string again = folder.path() + "/again.residue";
  write_residue_file(again, reader, header, payload);
  std::ifstream file(again, std::ios::binary);
  const std::string written(std::istreambuf_iterator<char>(file), {});
  HYPIC_CHECK(written == bytes, "read ", bytes.size(), " bytes, wrote ", written.size());
}

}  // namespace
}  // namespace hypic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hypic::TemporaryFolder folder;
  hypic::takes([&] { hypic::check(folder, hypic::as_text(data, size)); });
  return 0;
}
