// Residues that workers share beyond their own memory: a folder on a common file system, or Redis (rpc/redis_store.h).
// What it holds is untrusted as far as damage goes, and never required: whatever is missing, slow or damaged is a miss.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/sha256.h"
#include "serving/planner.h"

namespace hypic {

// Values by name. Implementations are used by one thread; none throws.
class ResidueStore {
 public:
  virtual ~ResidueStore() = default;
  // The value, if it is there and has exactly as many bytes.
  virtual std::optional<std::vector<uint8_t>> get(const std::string& name, int64_t bytes) = 0;
  virtual void put(const std::string& name, std::span<const uint8_t> value) = 0;
  // What went wrong last, one line; empty: nothing since it was asked.
  virtual std::string error() = 0;
};

// One file a value, written beside and renamed. Nothing is ever deleted: the folder's owner does that, by age say.
class FolderStore final : public ResidueStore {
 public:
  // Error: a folder that cannot be made.
  explicit FolderStore(const std::string& folder);
  std::optional<std::vector<uint8_t>> get(const std::string& name, int64_t bytes) override;
  void put(const std::string& name, std::span<const uint8_t> value) override;
  std::string error() override { return std::exchange(error_, {}); }

 private:
  const std::string folder_;
  std::string error_;
};

// What a residue is stored under and as: a digest over all that follows, the name's own digest, then the layers end to
// end, as in StreamLayout. `identity`: of model, dtypes and form.
std::string residue_name(const Sha256::Digest& identity, const Tokens& tokens, int32_t first, int32_t tail);
inline constexpr int64_t kStoredHead = 64;
std::vector<uint8_t> stored_residue(const std::string& name, std::span<const uint8_t> layers);
// The layers' bytes within a stored value; empty: it is damaged, or another's.
std::span<const uint8_t> layers_of(const std::string& name, std::span<const uint8_t> value);

}  // namespace hypic
