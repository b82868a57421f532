// What the segment cache holds, as bytes outside the device: which tensors, in which order, in
// which dtype. Host memory and disk hold the same bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/backend.h"
#include "models/pools.h"
#include "models/spec.h"

namespace hypic {

// Of the numbers in residues: part of every identity under which they are kept or sent. To be raised with each change
// that makes a residue of the same tokens, model and dtypes another one: another order or precision of sums in a
// kernel that prefill runs, other sections, another meaning of one. Residues of before are then misses.
inline constexpr int kResidueNumerics = 1;

// How operators are kept outside the device; K, V, convolution tails and saved states always keep
// their dtype.
enum class ResidueFormat : uint8_t {
  full,          // as on the device
  T16,  // T float16 (its scalar decay is a logarithm apart), U as on the device
  compact,       // T float16, U float16 times a power of two per head
};
std::string_view name_of(ResidueFormat format);

// A residue is two entries of the cache; a snapshot after a whole prefix is one.
enum class Part : uint8_t { kv, op, prefix };
std::string_view name_of(Part part);

// One tensor of one layer.
struct Section {
  enum class What : uint8_t { k, v, T, U, U_scale, log_scale, tail, state, window };
  What what;
  int32_t layer = 0;
  DType dtype;  // as stored
  std::vector<int64_t> shape;

  int64_t size() const;
  int64_t bytes() const { return size() * size_of(dtype); }
  bool operator==(const Section&) const = default;
};

// Bytes by what they are for.
struct ResidueBytes {
  int64_t k = 0, v = 0, U = 0, T = 0, log_scale = 0, tails = 0, states = 0;
  int64_t operators() const { return U + T + log_scale; }  // without their tails
  int64_t total() const { return k + v + operators() + tails + states; }
};

// Pure: from a model's sizes and a backend's dtypes.
class ResidueLayout {
 public:
  ResidueLayout(const ModelSpec& spec, DType compute, DType state, ResidueFormat format);

  // In the order in which their bytes lie; tensors without elements are left out. `tokens`: of the
  // segment or prefix; operators do not depend on it.
  std::vector<Section> sections(Part part, int64_t tokens) const;
  ResidueBytes bytes(Part part, int64_t tokens) const;
  ResidueFormat format() const { return format_; }

 private:
  ModelSpec spec_;
  DType compute_, state_;
  ResidueFormat format_;
};

// Where an entry lies on the device.
struct Placement {
  std::vector<int32_t> pages;  // kv, prefix
  int32_t slot = kNone;        // op: operator slot; prefix: state slot
};

// The same tensors in the dtypes of the device.
std::vector<Section> device_form(const Pools& pools, const std::vector<Section>& sections);
int64_t bytes_of(const std::vector<Section>& sections);

// Device → host memory in two steps: copies, in `device_form`, which Backend::download_async makes in order and
// without waiting; then, where dtypes differ, rounding into `sections`, on the host alone. Rows of a page behind the
// last token are not read.
void enqueue_download(Backend& backend, const Pools& pools, const std::vector<Section>& device_form,
                      const Placement& from, uint8_t* to);
void narrow(const std::vector<Section>& device_form, const uint8_t* from,
            const std::vector<Section>& sections, uint8_t* to);
// Both at once; waits for the device.
std::vector<uint8_t> pack(Backend& backend, const Pools& pools,
                          const std::vector<Section>& sections, const Placement& from);

// Host memory → device. `lasting`: the bytes are of Backend::allocate_host and stay until an event that is recorded
// afterwards is done, but for copies that are enqueued later. Rows of a page behind the last token are not written.
void unpack(Backend& backend, const Pools& pools, const std::vector<Section>& sections,
            std::span<const uint8_t> bytes, const Placement& to, bool lasting = false);

// The same within the device, without the host: `bytes` lie in its memory, in `device_form`. To what is enqueued these
// are copies as others; nothing is waited for.
void enqueue_gather(Backend& backend, const Pools& pools, const std::vector<Section>& device_form,
                    const Placement& from, uint8_t* to);
void enqueue_scatter(Backend& backend, const Pools& pools, const std::vector<Section>& device_form, const uint8_t* from,
                     const Placement& to);

// Round to nearest even; beyond 65504 infinity, NaN stays NaN.
Float16 to_float16(float x);

}  // namespace hypic
