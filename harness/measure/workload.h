// What a TTFT cell asks: prompts of a workload, what the cache has seen before, and what a run must
// then compute.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "models/spec.h"
#include "serving/mode.h"
#include "serving/planner.h"

namespace hypic {

struct Workload {
  std::string dataset;  // one of dataset_shapes(): lengths of its rows; empty: `segments` segments
                        // of `tokens`
  int64_t segments = 4;
  int64_t tokens = 1024;
  int64_t question = 64;  // tokens, never cached
  int64_t system = 0;     // tokens of an instruction before the segments, itself a segment; 0: none
  int64_t rows = 1;       // prompts
  int64_t divide = 1;     // of a dataset: every length divided by this, for small machines

  // "4x1024+64", "8+4x1024+64" with an instruction, "hotpotqa", "hotpotqa/32".
  std::string label() const;
};

struct CellPrompt {
  std::string id;
  std::vector<Tokens> segments;  // [instruction] documents … question
  bool instruction = false;      // the first segment stays where it is in another order
};

struct CellPrompts {
  std::vector<CellPrompt> prompts;
  std::string source;  // where tokens and lengths come from
};

// Names that Workload::dataset may have.
std::vector<std::string> dataset_shapes();

// Token ids are random but for a dataset's rows in `data`, a file that load_dataset reads; one of
// another dataset is not used. The same call gives the same prompts. Error: an unknown dataset, a
// bad file, a prompt longer than the model's positions. `progress` hears of each row that is tokenized; it may throw.
CellPrompts cell_prompts(const Workload& workload, const std::string& model, const ModelSpec& spec,
                         const std::string& data,
                         const std::function<void(double, const std::string&)>& progress = {});

// The dataset that the rows of a file are of. Error: a bad file.
std::string dataset_of(const std::string& data);

// What the cache has seen before a timed run.
struct CacheState {
  enum class Kind : uint8_t {
    cold,                     // nothing
    warm_prefix,              // this very prompt
    warm_prefix_other_order,  // its documents in another order: what a prefix cache meets in
                              // retrieval
    warm_segment,             // each segment by itself
    missed,                   // the same but for `missed` of the documents
  };
  Kind kind = Kind::cold;
  int64_t missed = 0;

  std::string name() const;  // "cold", …, "missed=3"
};

// A mode with what it is measured on: "MODE@STATE". Without @STATE a mode stands as it is used:
// full cold, prefix warm_prefix_other_order, segments warm_segment.
struct CellMode {
  Mode mode;
  CacheState cache;

  std::string name() const { return mode.name + "@" + cache.name(); }
};

// Error: an unknown mode or state; one that the mode has no use for (a prefix cache holds no single
// segments, full recompute nothing at all); rotate=built_at, whose results depend on what the cache
// saw first.
CellMode cell_mode(std::string_view text);

// What fills the cache before a run: segments by themselves, or a whole prompt.
struct Priming {
  std::vector<Tokens> segments;
  std::vector<Tokens> prompt;
};

// Error: more documents are to miss than there are.
Priming priming(const CellPrompt& prompt, const CacheState& cache);

// What the prompt then must compute, jump over and find, by the definition of the mode alone.
Counters expected_counters(const std::vector<Tokens>& prompt, const Mode& mode,
                           const Priming& primed);

// Of them the tokens that the cache held and the mode took: those of a cached prefix, or of segments long enough to
// reuse that are cached, their seams among them.
int64_t found_tokens(const std::vector<Tokens>& prompt, const Mode& mode, const Priming& primed);

// "" where they agree, else the first that differs: "seam is 24, the cell's plan says 32".
std::string difference(const Counters& counted, const Counters& expected);

}  // namespace hypic
