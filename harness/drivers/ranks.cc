#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "harness/driver.h"
#include "harness/measure/distance.h"
#include "harness/measure/routes.h"
#include "harness/measure/tolerance.h"
#include "harness/model_choice.h"
#include "serving/engine.h"

namespace hypic {
namespace {

constexpr uint64_t kSeed = 31;
constexpr int32_t kDecoded = 12;  // enough for recorded steps to be replayed

struct Settings {
  ModelChoice choice;
  std::vector<Mode> modes;
  std::vector<int64_t> lengths;
};

using Prompt = std::vector<Tokens>;

class Comparison {
 public:
  explicit Comparison(const Settings& settings)
      : settings_(settings),
        one_({settings.choice.model, settings.choice.backend, {settings.choice.devices[0]}}),
        ranks_(settings.choice),
        alone_(one_.model(), options()),
        together_(ranks_.model(), options()) {
    uint64_t seed = kSeed;
    for (const int64_t n : settings.lengths) prompt_.push_back(random_tokens(n, one_.model().spec().vocabulary, ++seed));
  }

  Result run(const ProgressFn& progress) {
    Result result;
    result.verdict = Verdict::pass;
    Table table{"Logits of the first token against one rank's, shares of what is allowed",
                {"mode", "rms of the logits", "cold", "cached", "rows to other experts"}, {}};
    double done = 0;
    for (const Mode& mode : settings_.modes) {
      progress(done++ / static_cast<double>(settings_.modes.size() + 1), mode.name);
      std::vector<Cell> row = {mode.name};
      std::vector<double> shares;
      SameRoutes routes(one_.backend());
      const std::vector<double> want = logits(alone_, mode, &routes);
      routes.follow(ranks_.backend());
      row.emplace_back(rms(want));
      for (const char* cache : {"cold", "cached"}) {
        const double share =
            excess(largest_difference(logits(together_, mode, &routes), want), allowed(want));
        result.values.push_back({str("excess.", mode.name, ".", cache), share, "bounds"});
        row.emplace_back(share, Format::compact, 2, share <= 1 ? Mark::none : Mark::bad);
      }
      row.emplace_back(routes.moved_share(), Format::percent);
      table.rows.push_back(std::move(row));
      for (Engine* engine : {&alone_, &together_}) {
        engine->flush();
        engine->check_integrity();
      }
    }
    progress(done / static_cast<double>(settings_.modes.size() + 1), "decode");
    result.values.push_back({"excess.decoded", decoded(), "bounds"});
    result.tables = {std::move(table)};
    result.note = str(one_.model().spec().name, " on ", settings_.choice.on(), " against one rank of the same backend, random tokens, ",
                      settings_.lengths.size() - 1, " segments and a question. A sum over ranks rounds elsewhere than one "
                      "product does, so both may be off by what is allowed from float64. Rows go to the experts that they "
                      "went to on one rank. Decoded: how much less likely than the best the tokens are that the ranks choose, by "
                      "prefill of the longer prompt on one rank.");
    return result;
  }

 private:
  EngineOptions options() const {
    EngineOptions options;
    options.pools = {.state_slots = 16, .operator_slots = 16, .pages = 8, .page_size = 16};
    for (const int64_t n : settings_.lengths) {
      options.pools.pages += 4 * (n / 16 + 2);
      options.max_rows += static_cast<int32_t>(n);
    }
    return options;
  }
  std::vector<double> logits(Engine& engine, const Mode& mode, RouteHook* routes) const {
    return engine.run({{prompt_, 1}}, mode, {.routes = routes}).responses[0].logits;
  }
  double allowed(const std::vector<double>& logits) const {
    return 2 * logit_tolerance(one_.backend(), one_.model().spec(), rms(logits));
  }

  double decoded() {
    const Mode& full = mode_named("full");
    Tokens longer;
    for (const Tokens& segment : prompt_) longer.insert(longer.end(), segment.begin(), segment.end());
    double worst = 0;
    const Tokens tokens = together_.run({{{longer}, kDecoded}}, full).responses[0].tokens;
    for (const int32_t token : tokens) {
      const std::vector<double> all = alone_.run({{{longer}, 1}}, full).responses[0].logits;
      worst = worse(worst, excess(*std::max_element(all.begin(), all.end()) - all[token], 2 * allowed(all)));
      longer.push_back(token);
    }
    return worst;
  }

  const Settings& settings_;
  const OpenModel one_, ranks_;
  Engine alone_, together_;
  Prompt prompt_;
};

}  // namespace

// Parameters: model (random:qwen3.5-tiny), backend (cpu), tensor_parallel (2), devices (0, 1, …), modes (full, prefix,
// transition_rope_seam), lengths ([12, 70, 33, 40, 9]), tokens of each segment, the question last.
// Values in units of what is allowed: by mode excess.MODE.cold and .cached, of logits from one rank's; excess.decoded, of
// the likelihood of decoded tokens. SKIP where there are fewer GPUs.
Work prepare_ranks(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
  nlohmann::json given = suite_case.parameters;
  if (!given.contains("tensor_parallel")) given["tensor_parallel"] = 2;
  Parameters parameters(given, where + ".parameters");
  Settings settings;
  settings.choice = read_model_choice(parameters, context, Ranks::several);
  require(settings.choice.devices.size() > 1, parameters.place("tensor_parallel"), ": must be 2 or more");
  for (const std::string& name : parameters.texts("modes", {"full", "prefix", "transition_rope_seam"}))
    settings.modes.push_back(mode_named(name));
  settings.lengths = parameters.integers("lengths", {12, 70, 33, 40, 9}, 1, 1 << 16);
  require(settings.lengths.size() >= 2 && settings.lengths.size() <= 8, parameters.place("lengths"),
          ": one to seven segments and a question are asked for");
  parameters.refuse_others();
  return [settings](const ProgressFn& progress) {
    require_gpus(settings.choice);
    return Comparison(settings).run(progress);
  };
}

}  // namespace hypic
