#include "serving/worker_identity.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "models/checkpoint.h"
#include "serving/residue_format.h"

namespace hypic {
namespace {

constexpr size_t kDigits = 12;  // of a digest, enough to tell two apart

bool is_random(const std::string& model) { return model.starts_with("random:"); }

// Of what may come from elsewhere, as much as a line holds.
std::string shown(const std::string& text) {
  constexpr size_t kMost = 100;
  return text.size() <= kMost ? text : text.substr(0, kMost) + "…";
}

std::string digest_of(const std::string& text) { return hex(Sha256().add(text).digest()); }

}  // namespace

Sha256::Digest WorkerIdentity::digest() const {
  return Sha256().add(weights).add(config).add(backend).add(ranks).add(numerics).add(mode).digest();
}

WorkerIdentity identity_of(const std::string& source, const Model& model, const Mode& mode, const std::string& key) {
  const Backend& backend = model.backend();
  const ModelSpec& spec = model.spec();
  return {.model = is_random(model.identity()) ? model.identity() : spec.name,
          .weights = is_random(source) ? digest_of(model.identity()) : hex(Checkpoint(source, spec).digest()),
          .config = digest_of(spec.config),
          .backend =
              str(backend.name(), " (", name_of(backend.compute_dtype()), ", ", name_of(backend.state_dtype()), ")"),
          .ranks = std::to_string(spec.ranks),
          .numerics = std::to_string(kResidueNumerics),
          .mode = mode.name,
          .key = key.empty() ? "none" : hex(hmac_sha256(key, {})).substr(0, kDigits)};
}

WorkerIdentity identity_of(const std::string& source, const ModelSpec& spec, const Mode& mode) {
  const bool seeded = std::count(source.begin(), source.end(), ':') > 1;
  return {.model = !is_random(source) ? spec.name : seeded ? source : source + ":0",
          .config = digest_of(spec.config),
          .numerics = std::to_string(kResidueNumerics),
          .mode = mode.name};
}

std::string difference(const WorkerIdentity& ours, const WorkerIdentity& theirs) {
  const auto differ = [](const char* what, const std::string& a, const std::string& b) {
    return str("differs in ", what, ": ours ", shown(a), ", theirs ", b.empty() ? "unknown" : shown(b));
  };
  // Digests say nothing to people but that they differ: with the model's name.
  const auto differ_in_digest = [&](const char* what, const std::string& a, const std::string& b) {
    return differ(what, str(shown(ours.model), " (", a.substr(0, kDigits), ")"),
                  str(shown(theirs.model), " (", b.substr(0, kDigits), ")"));
  };
  if ((is_random(ours.model) || is_random(theirs.model)) && ours.model != theirs.model)
    return differ("--model", ours.model, theirs.model);
  if (ours.config != theirs.config) return differ_in_digest("the config.json of --model", ours.config, theirs.config);
  if (ours.mode != theirs.mode) return differ("--mode", ours.mode, theirs.mode);
  if (ours.numerics != theirs.numerics)
    return differ("the version of residues, so one runs another version of hypic", ours.numerics, theirs.numerics);
  if (!ours.backend.empty() && ours.backend != theirs.backend)
    return differ("--backend", ours.backend, theirs.backend);
  if (!ours.ranks.empty() && ours.ranks != theirs.ranks) return differ("--tensor-parallel", ours.ranks, theirs.ranks);
  if (!ours.key.empty() && ours.key != theirs.key) return differ("--key-file", ours.key, theirs.key);
  if (!ours.weights.empty() && ours.weights != theirs.weights)
    return differ_in_digest("the weights of --model", ours.weights,
                            theirs.weights);
  return {};
}

}  // namespace hypic
