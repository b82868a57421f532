#include "serving/residue_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"

namespace hypic {
namespace {

using What = Section::What;

// The largest magnitude of a head lies in [2^14, 2^15] once scaled: no overflow by rounding, and 29
// binary orders below it are still normal.
constexpr int kTopExponent = 15;
constexpr int kLowestExponent = -126;  // of a scale: the smallest normal float

Tensor pool_tensor(const Pools& pools, const Section& section) {
  const AttentionPool& attention = pools.attention.at(section.layer);
  const LinearPool& linear = pools.linear.at(section.layer);
  switch (section.what) {
    case What::k:
      return attention.k;
    case What::v:
      return attention.v;
    case What::T:
      return linear.T;
    case What::U:
    case What::U_scale:
      return linear.U;
    case What::log_scale:
      return linear.log_scale;
    case What::tail:
      return linear.tail;
    case What::state:
      return linear.state;
    case What::window:
      return linear.window;
  }
  return {};
}

template <class T>
void narrow_numbers(const std::vector<T>& from, const std::vector<float>& scales, uint8_t* to) {
  const int64_t per_scale = static_cast<int64_t>(from.size() / scales.size());
  for (size_t i = 0; i < from.size(); ++i) {
    const Float16 x = to_float16(static_cast<float>(from[i] / scales[i / per_scale]));
    std::memcpy(to + i * sizeof(x), &x, sizeof(x));
  }
}

template <class T>
std::vector<T> widened(const uint8_t* from, const std::vector<float>& scales, int64_t size) {
  std::vector<T> to(size);
  const int64_t per_scale = size / static_cast<int64_t>(scales.size());
  for (int64_t i = 0; i < size; ++i) {
    Float16 x;
    std::memcpy(&x, from + i * sizeof(x), sizeof(x));
    to[i] = static_cast<T>(static_cast<float>(x)) * static_cast<T>(scales[i / per_scale]);
  }
  return to;
}

// A power of two per head, so that scaling itself rounds nothing.
template <class T>
std::vector<float> head_scales(const std::vector<T>& values, int64_t heads) {
  std::vector<float> scales(heads, 1.0f);
  const int64_t per_head = static_cast<int64_t>(values.size()) / heads;
  for (int64_t h = 0; h < heads; ++h) {
    double largest = 0;
    for (int64_t i = h * per_head; i < (h + 1) * per_head; ++i)
      largest = std::max(largest, std::abs(static_cast<double>(values[i])));
    if (largest == 0 || !std::isfinite(largest)) continue;
    int exponent;
    std::frexp(largest, &exponent);
    scales[h] = std::ldexp(1.0f, std::max(exponent - kTopExponent, kLowestExponent));
  }
  return scales;
}

template <class T>
std::vector<T> numbers_of(const uint8_t* from, int64_t size) {
  std::vector<T> numbers(size);
  std::memcpy(numbers.data(), from, size * sizeof(T));
  return numbers;
}

// Calls visit with float{} or double{}, the types that a state may have.
template <class Visitor>
void visit_state(DType dtype, Visitor&& visit) {
  HYPIC_CHECK(dtype == DType::f32 || dtype == DType::f64, "states are ", name_of(dtype));
  dtype == DType::f32 ? visit(float{}) : visit(double{});
}

}  // namespace

std::string_view name_of(ResidueFormat format) {
  switch (format) {
    case ResidueFormat::full:
      return "full";
    case ResidueFormat::T16:
      return "T16";
    case ResidueFormat::compact:
      return "compact";
  }
  return "?";
}

std::string_view name_of(Part part) {
  switch (part) {
    case Part::kv:
      return "kv";
    case Part::op:
      return "operator";
    case Part::prefix:
      return "prefix";
  }
  return "?";
}

int64_t Section::size() const {
  int64_t size = 1;
  for (const int64_t n : shape) size *= n;
  return size;
}

ResidueLayout::ResidueLayout(const ModelSpec& spec, DType compute, DType state,
                             ResidueFormat format)
    : spec_(spec), compute_(compute), state_(state), format_(format) {}

std::vector<Section> ResidueLayout::sections(Part part, int64_t tokens) const {
  std::vector<Section> sections;
  const auto add = [&](What what, int layer, DType dtype, std::vector<int64_t> shape) {
    sections.push_back({what, layer, dtype, std::move(shape)});
    if (sections.back().size() == 0) sections.pop_back();
  };
  const AttentionSpec& attention = spec_.attention;
  const LinearSpec& linear = spec_.linear;
  const FamilyTraits& family = traits(linear.family);
  const OperatorKind kind = operator_kind(family.decay, family.update);
  const int64_t H = linear.value_heads, dk = linear.key_dim, dv = linear.value_dim;
  const std::vector<int64_t> window = {linear.conv_width - 1, linear.conv_channels()};
  const DType narrow = format_ == ResidueFormat::full ? state_ : DType::f16;
  for (int l = 0; l < spec_.layer_count(); ++l) {
    if (part != Part::op && spec_.layers[l].attention) {
      const int64_t heads = attention.latent() ? 1 : attention.kv_heads;
      add(What::k, l, compute_, {tokens, heads, attention.key_width()});
      if (!attention.latent()) add(What::v, l, compute_, {tokens, heads, attention.head_dim});
    }
    if (!spec_.layers[l].linear) continue;
    if (part == Part::op) {
      if (kind == OperatorKind::diagonal) add(What::T, l, narrow, {H, dk});
      if (kind == OperatorKind::elementwise) add(What::T, l, narrow, {H, dk, dv});
      if (kind == OperatorKind::dense) add(What::T, l, narrow, {H, dk, dk});
      const bool compact = format_ == ResidueFormat::compact;
      if (compact) add(What::U_scale, l, DType::f32, {H});
      add(What::U, l, compact ? DType::f16 : state_, {H, dk, dv});
      if (has_log_scale(family.decay, family.update)) add(What::log_scale, l, state_, {H});
      add(What::tail, l, compute_, window);
    } else if (part == Part::prefix) {
      add(What::state, l, state_, {H, dk, dv});
      add(What::window, l, compute_, window);
    }
  }
  return sections;
}

ResidueBytes ResidueLayout::bytes(Part part, int64_t tokens) const {
  ResidueBytes bytes;
  for (const Section& section : sections(part, tokens)) {
    switch (section.what) {
      case What::k:
        bytes.k += section.bytes();
        break;
      case What::v:
        bytes.v += section.bytes();
        break;
      case What::T:
        bytes.T += section.bytes();
        break;
      case What::U:
      case What::U_scale:
        bytes.U += section.bytes();
        break;
      case What::log_scale:
        bytes.log_scale += section.bytes();
        break;
      case What::tail:
        bytes.tails += section.bytes();
        break;
      case What::state:
      case What::window:
        bytes.states += section.bytes();
        break;
    }
  }
  return bytes;
}

namespace {

// Calls visit(tensor, offset) for the pieces of pages that hold tokens: one for pages that follow one another.
template <class Visitor>
void for_pages(const Pools& pools, const Section& section, const std::vector<int32_t>& pages,
               Visitor&& visit) {
  const Tensor pool = pool_tensor(pools, section);
  const int64_t page_size = pools.sizes.page_size, tokens = section.shape[0];
  HYPIC_CHECK(static_cast<int64_t>(pages.size()) * page_size >= tokens && pool.contiguous());
  const Tensor rows = pool.reshape({pool[0] * page_size, pool[2], pool[3]});
  int64_t offset = 0;
  for (int64_t first = 0, last; first < tokens; first = last) {
    const int32_t page = pages[first / page_size];
    last = std::min(first + page_size, tokens);
    while (last < tokens && pages[last / page_size] == page + (last - first) / page_size)
      last = std::min(last + page_size, tokens);
    const Tensor piece = rows.rows(page * page_size, page * page_size + last - first);
    visit(piece, offset);
    offset += piece.bytes();
  }
  HYPIC_CHECK(offset == section.bytes());
}

bool in_pages(const Section& section) { return section.what == What::k || section.what == What::v; }

// Calls visit(tensor, bytes) for the pieces of an entry and where they lie behind `bytes`.
template <class Visitor>
void for_pieces(const Pools& pools, const std::vector<Section>& device_form, const Placement& placement,
                const uint8_t* bytes, Visitor&& visit) {
  for (const Section& section : device_form) {
    if (in_pages(section)) {
      for_pages(pools, section, placement.pages,
                [&](const Tensor& piece, int64_t offset) { visit(piece, bytes + offset); });
    } else {
      const Tensor tensor = pool_tensor(pools, section).at(placement.slot);
      HYPIC_CHECK(tensor.size() == section.size() && tensor.dtype == section.dtype && tensor.contiguous(),
                  tensor.shape_string());
      visit(tensor, bytes);
    }
    bytes += section.bytes();
  }
}

}  // namespace

int64_t bytes_of(const std::vector<Section>& sections) {
  int64_t bytes = 0;
  for (const Section& section : sections) bytes += section.bytes();
  return bytes;
}

std::vector<Section> device_form(const Pools& pools, const std::vector<Section>& sections) {
  std::vector<Section> form;
  for (const Section& section : sections) {
    if (section.what == What::U_scale) continue;
    form.push_back(section);
    form.back().dtype = pool_tensor(pools, section).dtype;
  }
  return form;
}

void enqueue_download(Backend& backend, const Pools& pools, const std::vector<Section>& device_form,
                      const Placement& from, uint8_t* to) {
  for_pieces(pools, device_form, from, to, [&](const Tensor& piece, const uint8_t* bytes) {
    backend.download_async(const_cast<uint8_t*>(bytes), piece);
  });
}

void narrow(const std::vector<Section>& device_form, const uint8_t* from,
            const std::vector<Section>& sections, uint8_t* to) {
  auto source = device_form.begin();
  std::vector<float> scales;  // of the U that follows
  for (const Section& section : sections) {
    HYPIC_CHECK(source != device_form.end() && source->layer == section.layer);
    if (section.what == What::U_scale) {
      visit_state(source->dtype, [&](auto type) {
        scales = head_scales(numbers_of<decltype(type)>(from, source->size()), section.size());
      });
      std::memcpy(to, scales.data(), section.bytes());
    } else {
      HYPIC_CHECK(source->what == section.what && source->size() == section.size());
      if (source->dtype == section.dtype) {
        std::memcpy(to, from, section.bytes());
      } else {
        visit_state(source->dtype, [&](auto type) {
          narrow_numbers(numbers_of<decltype(type)>(from, source->size()),
                         section.what == What::U ? scales : std::vector<float>{1}, to);
        });
      }
      from += source->bytes();
      ++source;
    }
    to += section.bytes();
  }
}

std::vector<uint8_t> pack(Backend& backend, const Pools& pools,
                          const std::vector<Section>& sections, const Placement& from) {
  const std::vector<Section> form = device_form(pools, sections);
  std::vector<uint8_t> copied(bytes_of(form));
  enqueue_download(backend, pools, form, from, copied.data());
  if (const auto event = backend.record()) event->wait();
  if (form == sections) return copied;
  std::vector<uint8_t> bytes(bytes_of(sections));
  narrow(form, copied.data(), sections, bytes.data());
  return bytes;
}

void unpack(Backend& backend, const Pools& pools, const std::vector<Section>& sections,
            std::span<const uint8_t> bytes, const Placement& to, bool lasting) {
  const auto upload = [&](const Tensor& tensor, const uint8_t* from) {
    lasting ? backend.upload_async(tensor, from) : backend.upload(tensor, from);
  };
  HYPIC_CHECK(static_cast<int64_t>(bytes.size()) == bytes_of(sections));
  const uint8_t* from = bytes.data();
  std::vector<float> scales;
  for (const Section& section : sections) {
    if (in_pages(section)) {
      for_pages(pools, section, to.pages,
                [&](const Tensor& piece, int64_t offset) { upload(piece, from + offset); });
    } else if (section.what == What::U_scale) {
      scales.resize(section.size());
      std::memcpy(scales.data(), from, section.bytes());
    } else {
      const Tensor tensor = pool_tensor(pools, section).at(to.slot);
      HYPIC_CHECK(tensor.size() == section.size(), tensor.shape_string());
      if (tensor.dtype == section.dtype) {
        upload(tensor, from);
      } else {
        visit_state(tensor.dtype, [&](auto type) {
          const auto wide = widened<decltype(type)>(
              from, section.what == What::U ? scales : std::vector<float>{1}, section.size());
          backend.upload(tensor, wide.data());
        });
      }
    }
    from += section.bytes();
  }
}

void enqueue_gather(Backend& backend, const Pools& pools, const std::vector<Section>& device_form,
                    const Placement& from, uint8_t* to) {
  std::vector<BytesCopy> pieces;
  for_pieces(pools, device_form, from, to, [&](const Tensor& piece, const uint8_t* bytes) {
    pieces.push_back({const_cast<uint8_t*>(bytes), piece.data, piece.bytes()});
  });
  backend.copy_bytes(pieces);
}

void enqueue_scatter(Backend& backend, const Pools& pools, const std::vector<Section>& device_form, const uint8_t* from,
                     const Placement& to) {
  std::vector<BytesCopy> pieces;
  for_pieces(pools, device_form, to, from, [&](const Tensor& piece, const uint8_t* bytes) {
    pieces.push_back({piece.data, bytes, piece.bytes()});
  });
  backend.copy_bytes(pieces);
}

Float16 to_float16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::abs(x);
  if (std::isnan(x)) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (magnitude >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00)};
  if (magnitude < 0x1p-14f)  // subnormal: multiples of 2⁻²⁴; 1024 of them are the first normal
    return {
        static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f)))};
  const uint32_t wide = bits & 0x7fffffff;
  const uint32_t rounded = wide + 0xfff + (wide >> 13 & 1);
  return {static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)))};
}

}  // namespace hypic
