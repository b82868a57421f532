#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "harness/measure/distance.h"
#include "harness/measure/tolerance.h"
#include "harness/model_choice.h"
#include "serving/engine.h"

namespace hypic {
namespace {

constexpr uint64_t kSeed = 11;
constexpr int32_t kSteps = 5;

struct Settings {
  ModelChoice choice;
  std::vector<int64_t> lengths;
  int64_t chunk = 0;
};

// Of each prompt, all in one run.
std::vector<std::vector<double>> logits_of(const Model& model, const std::vector<Tokens>& prompts,
                                           int64_t max_rows) {
  EngineOptions options;
  options.pools.state_slots = static_cast<int64_t>(prompts.size()) + 1;
  options.pools.operator_slots = 1;
  options.pools.pages = 0;
  std::vector<Request> requests;
  for (const Tokens& prompt : prompts) {
    options.pools.pages += static_cast<int64_t>(prompt.size()) / options.pools.page_size + 2;
    requests.push_back({{prompt}, 1});
  }
  options.max_rows = static_cast<int32_t>(max_rows);
  std::vector<std::vector<double>> logits;
  for (Response& response : Engine(model, options).run(requests, mode_named("full")).responses)
    logits.push_back(std::move(response.logits));
  return logits;
}

// How much less likely than the best the tokens are that greedy decode steps choose after a prompt, by prefill of the
// longer prompt: the largest difference of logits.
double regret(const Model& model, const Tokens& prompt) {
  EngineOptions options;
  const auto length = static_cast<int64_t>(prompt.size());
  options.pools = {.state_slots = 2, .operator_slots = 1, .pages = (length + kSteps) / 16 + 2, .page_size = 16};
  options.max_rows = static_cast<int32_t>(length);
  const Tokens tokens = Engine(model, options).run({{{prompt}, kSteps}}, mode_named("full")).responses[0].tokens;
  double worst = 0;
  Tokens longer = prompt;
  for (const int32_t token : tokens) {
    const std::vector<double> logits = logits_of(model, {longer}, length + kSteps)[0];
    worst = worse(worst, *std::max_element(logits.begin(), logits.end()) - logits[token]);
    longer.push_back(token);
  }
  return worst;
}

Result run(const Settings& settings, const ProgressFn& progress) {
  const OpenModel open(settings.choice);
  const Model& model = open.model();
  const ModelSpec& spec = model.spec();
  Result result;
  result.verdict = Verdict::pass;
  Table table{"Logits of the last token, against one whole prefill",
              {"tokens", "rms of the logits", str("in chunks of ", settings.chunk), "token by token", "beside others", "bound", "decoded tokens: logits below the best"},
              {}};
  double done = 0;
  for (const int64_t length : settings.lengths) {
    if (length >= spec.max_positions) continue;
    progress(done++ / static_cast<double>(settings.lengths.size()), str(length, " tokens"));
    const Tokens prompt = random_tokens(length, spec.vocabulary, kSeed);
    const std::vector<double> whole = logits_of(model, {prompt}, length)[0];
    const double size = rms(whole);
    if (!std::isfinite(size) || size == 0) {
      result.verdict = Verdict::fail;
      result.why = str(length, " tokens: the logits are ", size == 0 ? "all zero" : "not finite");
      return result;
    }
    const double bound = batch_tolerance(open.backend(), spec, size);
    std::vector<Cell> row = {Cell(length), Cell(size)};
    for (const auto& [name, rows] : {std::pair{"chunked", settings.chunk}, {"decoded", int64_t{1}}}) {
      const double difference = largest_difference(whole, logits_of(model, {prompt}, rows)[0]);
      result.values.push_back({str("difference.", name, ".", length), difference, "logits"});
      result.values.push_back({str("excess.", name, ".", length), excess(difference, bound), "bounds"});
      row.push_back(Cell(difference, Format::scientific));
    }
    const std::vector<Tokens> company = {random_tokens(37, spec.vocabulary, kSeed + 1), prompt,
                                         random_tokens(5, spec.vocabulary, kSeed + 2)};
    const double beside = largest_difference(whole, logits_of(model, company, length + 42)[1]);
    result.values.push_back({str("difference.batched.", length), beside, "logits"});
    result.values.push_back({str("excess.batched.", length), excess(beside, bound), "bounds"});
    row.push_back(Cell(beside, Format::scientific));
    row.push_back(bound == 0 ? Cell("equal") : Cell(bound, Format::scientific));
    if (length + kSteps < spec.max_positions) {
      const double below = regret(model, prompt);
      result.values.push_back({str("difference.continued.", length), below, "logits"});
      result.values.push_back({str("excess.continued.", length), excess(below, 2 * bound), "bounds"});  // both may be off
      row.push_back(Cell(below, Format::scientific));
    } else {
      row.emplace_back("–");
    }
    table.rows.push_back(std::move(row));
  }
  result.tables = {std::move(table)};
  result.note = str(spec.name, " on ", settings.choice.on(),
                    ", random tokens. Whole, in chunks, token by token and beside other prompts, the same "
                    "prompt must give the same logits: on a CPU backend the same bits. Greedy decode steps must choose what "
                    "prefill of the longer prompt finds most likely.");
  return result;
}

}  // namespace

// Parameters: model (random:qwen3.5-tiny), backend (cpu), tensor_parallel (1), devices, lengths ([1, 3, 4, 63, 64, 65, 200]), chunk (48).
// Values by length: difference.{chunked, decoded, batched, continued}, and excess.…, the same in units of what is allowed.
Work prepare_agreement(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
  Parameters parameters(suite_case.parameters, where + ".parameters");
  Settings settings;
  settings.choice = read_model_choice(parameters, context, Ranks::several);
  settings.lengths = parameters.integers("lengths", {1, 3, 4, 63, 64, 65, 200}, 1, 1 << 20);
  settings.chunk = parameters.integer("chunk", 48, 1, 1 << 20);
  parameters.refuse_others();
  return [settings](const ProgressFn& progress) { return run(settings, progress); };
}

}  // namespace hypic
