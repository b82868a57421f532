#include "core/fuzz.h"
#include "models/spec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hypic::takes([&] {
    const std::string config(hypic::as_text(data, size));
    HYPIC_CHECK(hypic::spec_from_config(config, "config.json").layer_count() > 0);
  });
  return 0;
}
