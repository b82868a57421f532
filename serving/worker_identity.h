// What workers and their router must share: residues of one could not be used by another otherwise.
#pragma once

#include <string>

#include "core/sha256.h"
#include "models/model.h"
#include "serving/mode.h"

namespace hypic {

struct WorkerIdentity {
  std::string model;     // random:NAME:SEED, or the folder: for people to read, and compared where it is random
  std::string weights;   // SHA-256 of what the checkpoint holds, or of random:NAME:SEED, hex
  std::string config;    // that of config.json
  std::string backend;   // NAME (COMPUTE, STATE): its dtypes
  std::string ranks;     // tensor-parallel ones
  std::string numerics;  // kResidueNumerics
  std::string mode;
  std::string key;  // what tells shared keys of packets apart without giving them away, or "none"
  bool operator==(const WorkerIdentity&) const = default;

  // Of what residues depend on: all but `model`, where weights and config are, and `key`.
  Sha256::Digest digest() const;
};

// `source` is what `model` was opened from; a folder's weights are read once more. `key`: of packets, empty: none.
WorkerIdentity identity_of(const std::string& source, const Model& model, const Mode& mode, const std::string& key = "");

// As far as a router knows it, that has no weights and no backend: what it cannot know stays empty.
WorkerIdentity identity_of(const std::string& source, const ModelSpec& spec, const Mode& mode);

// The first thing that differs, in words, with both values; empty: nothing does. What is empty in `ours` is not asked.
// `theirs` may come from elsewhere: long values are cut.
std::string difference(const WorkerIdentity& ours, const WorkerIdentity& theirs);

}  // namespace hypic
