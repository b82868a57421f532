#include "harness/drivers/quality.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "core/check.h"
#include "datasets/dataset.h"
#include "harness/drivers/quality_items.h"
#include "harness/drivers/quality_rows.h"
#include "harness/drivers/quality_summary.h"
#include "harness/measure/distance.h"
#include "harness/measure/pool_sizes.h"
#include "harness/measure/prompts.h"
#include "harness/measure/tolerance.h"
#include "harness/model_choice.h"
#include "models/end_tokens.h"
#include "serving/memory.h"

namespace hypic {
namespace quality {
namespace {

namespace fs = std::filesystem;

struct Settings {
  std::string name;   // of the case
  std::string model;  // as it was asked for
  ModelChoice choice;
  std::vector<Cell> cells;
  std::vector<std::vector<hypic::Item>> loaded;  // by cell: rows of a dataset
  std::vector<CellMode> modes;
  int64_t batch = 0, states = 0;
  int32_t chunk = 0;
  uint64_t seed = 0;
  Scored scored;
  Faults faults;
  ItemLog* log = nullptr;
};

// A mode as it is asked for here: with all documents cached, of a prefix cache this very prompt.
CellMode warm(const std::string& text) {
  require(text.find('@') == text.npos, "mode \"", text, "\": takes no cache state here; all documents are cached");
  CellMode mode = cell_mode(text);
  require(mode.mode.reuse != Reuse::none, "mode \"", text, "\": full recompute runs anyway, twice");
  if (mode.mode.reuse == Reuse::prefix) mode.cache.kind = CacheState::Kind::warm_prefix;
  return mode;
}

// As a mode takes it: a prefix cache needs one snapshot, behind all documents.
CellPrompt as_asked(const CellPrompt& prompt, const Mode& mode) {
  if (mode.reuse != Reuse::prefix) return prompt;
  CellPrompt one{prompt.id, {{}, prompt.segments.back()}, false};
  for (size_t i = 0; i + 1 < prompt.segments.size(); ++i)
    one.segments[0].insert(one.segments[0].end(), prompt.segments[i].begin(), prompt.segments[i].end());
  return one;
}

// Without the folders before it.
std::string short_name(const std::string& model) {
  const fs::path path(model);
  return (path.has_filename() ? path : path.parent_path()).filename();
}

int64_t token_count(const std::vector<Tokens>& segments) {
  int64_t n = 0;
  for (const Tokens& tokens : segments) n += static_cast<int64_t>(tokens.size());
  return n;
}

class CellRun {
 public:
  CellRun(const Settings& settings, const Model& model, const Cell& cell, std::vector<Item> items,
          const Tokenizer& tokenizer)
      : settings_(settings),
        model_(model),
        cell_(cell),
        items_(std::move(items)),
        tokenizer_(tokenizer),
        stop_(end_tokens(settings.choice.model, model.spec().vocabulary)),
        batch_(settings.batch),
        full_(cell_mode("full")) {
    EngineOptions options;
    options.max_rows = settings.chunk;
    options.faults = settings.faults;
    const Backend& backend = model.backend();
    for (;; batch_ = (batch_ + 1) / 2) {  // as many at once as there is memory for
      options.pools = pools();
      const MemoryNeed need =
          memory_need(model.spec(), backend.compute_dtype(), backend.state_dtype(), options.pools, options.max_rows);
      if (batch_ == 1 || static_cast<uint64_t>(need.total() - need.weights) <= backend.available_bytes()) break;
    }
    engine_.emplace(model, options);
  }

  int64_t batch() const { return batch_; }

  // Takes over what `earlier` has of whole items and runs the others.
  CellRows run(const std::vector<Row>& earlier, const std::function<void(double, const std::string&)>& progress) {
    std::map<std::string, std::map<std::string, Row>> finished;  // by item and mode; the last row of each counts
    for (const Row& row : earlier)
      if (row.cell == cell_.label()) finished[row.id][row.mode] = row;
    const auto whole = [&](const Item& item) {
      const auto found = finished.find(item.prompt.id);
      return found != finished.end() && found->second.size() == settings_.modes.size() + 3;
    };
    // Batches are the same whatever is left of them: pools were made for them.
    for (size_t begin = 0; begin < items_.size(); begin += static_cast<size_t>(batch_)) {
      const size_t end = std::min(items_.size(), begin + static_cast<size_t>(batch_));
      std::vector<const Item*> batch;
      for (size_t i = begin; i < end; ++i)
        if (!whole(items_[i])) batch.push_back(&items_[i]);
      if (batch.empty()) continue;
      const double share = static_cast<double>(begin) / static_cast<double>(items_.size());
      const double part = static_cast<double>(end - begin) / static_cast<double>(items_.size());
      const std::vector<Row> rows = run_batch(batch, [&](double done, const std::string& mode) {
        progress(share + done * part, str("items ", begin + 1, " to ", end, " of ", items_.size(), ", ", mode));
      });
      std::vector<nlohmann::ordered_json> lines;
      for (const Row& row : rows) {
        lines.push_back(to_json(row));
        finished[row.id][row.mode] = row;
      }
      if (settings_.log) settings_.log->append(settings_.name, lines);
    }
    CellRows all;
    for (const Item& item : items_)
      for (const auto& [mode, row] : finished.at(item.prompt.id)) all[mode].push_back(row);
    return all;
  }

  // Of the first items, one by one.
  StateErrors states(const std::function<void(double, const std::string&)>& progress) {
    StateErrors errors;
    const size_t count = std::min<size_t>(settings_.states, items_.size());
    for (size_t i = 0; i < count; ++i) {
      progress(static_cast<double>(i) / static_cast<double>(count), str("states, item ", i + 1, " of ", count));
      const CellPrompt& prompt = items_[i].prompt;
      engine_->flush();
      const auto full =
          engine_->run({{prompt.segments, 1}}, full_.mode, {.keep_state = true}).responses[0].state_before_question;
      for (const CellMode& mode : settings_.modes) {
        const CellPrompt asked = as_asked(prompt, mode.mode);
        prime({asked}, mode);
        const auto state =
            engine_->run({{asked.segments, 1}}, mode.mode, {.keep_state = true}).responses[0].state_before_question;
        std::vector<double>& sums = errors[mode.mode.name];
        sums.resize(full.size(), 0);
        for (size_t l = 0; l < full.size(); ++l)
          sums[l] += full[l].empty() ? std::numeric_limits<double>::quiet_NaN()
                                     : relative_error(state[l], full[l]) / static_cast<double>(count);
      }
    }
    return errors;
  }

  void finish() {
    engine_->flush();
    engine_->check_integrity();
  }

 private:
  // For batches of `batch_` items in whichever of the modes takes most.
  PoolSizes pools() const {
    PoolSizes most;
    for (size_t begin = 0; begin < items_.size(); begin += static_cast<size_t>(batch_)) {
      std::vector<CellPrompt> prompts, bare;
      int64_t new_tokens = 1;
      for (size_t i = begin; i < std::min(items_.size(), begin + static_cast<size_t>(batch_)); ++i) {
        prompts.push_back(items_[i].prompt);
        bare.push_back({items_[i].prompt.id, items_[i].bare, false});  // longer than a prompt that was cut short
        new_tokens = std::max(new_tokens, items_[i].new_tokens);
      }
      raise(most, pools_for(prompts, full_, settings_.chunk, new_tokens));
      raise(most, pools_for(bare, full_, settings_.chunk, new_tokens));
      for (const CellMode& mode : settings_.modes) {
        std::vector<CellPrompt> asked;
        for (const CellPrompt& prompt : prompts) asked.push_back(as_asked(prompt, mode.mode));
        raise(most, pools_for(asked, mode, settings_.chunk, new_tokens));
      }
    }
    most.state_slots += 1;  // the state that is kept for a look at it
    return most;
  }

  void prime(const std::vector<CellPrompt>& prompts, const CellMode& mode) {
    engine_->flush();
    std::vector<Tokens> segments;
    std::vector<Request> whole;
    for (const CellPrompt& prompt : prompts) {
      const Priming primed = priming(prompt, mode.cache);
      segments.insert(segments.end(), primed.segments.begin(), primed.segments.end());
      if (!primed.prompt.empty()) whole.push_back({.segments = primed.prompt, .logits = false});
    }
    if (!segments.empty()) engine_->warm(segments, mode.mode);
    if (!whole.empty()) engine_->run(whole, mode.mode);
  }

  // Answers in a mode, its cache as the mode says; the counters must be what follows from the prompts.
  std::vector<Response> answers(const std::vector<const Item*>& items, const CellMode& mode, bool bare = false) {
    std::vector<CellPrompt> prompts;
    for (const Item* item : items)
      prompts.push_back(as_asked(bare ? CellPrompt{item->prompt.id, item->bare, false} : item->prompt, mode.mode));
    prime(prompts, mode);
    std::vector<Request> requests;
    Counters planned;
    for (size_t i = 0; i < items.size(); ++i) {
      requests.push_back({.segments = prompts[i].segments,
                          .max_tokens = static_cast<int32_t>(items[i]->new_tokens),
                          .stop = stop_,
                          .gaps = true});
      planned += expected_counters(prompts[i].segments, mode.mode, priming(prompts[i], mode.cache));
    }
    RunResult run = engine_->run(requests, mode.mode);
    const std::string differs = difference(run.counters, planned);
    require(differs.empty(), items[0]->prompt.id, " and ", items.size() - 1, " more, ", mode.mode.name, ": ", differs);
    return std::move(run.responses);
  }

  Row row(const Item& item, const std::string& mode, const Response& answer, const Response& full) const {
    if (!std::all_of(answer.logits.begin(), answer.logits.end(), [](double x) { return std::isfinite(x); }))
      throw InternalError(str(item.prompt.id, ", ", mode, ": logits are not finite"));
    Row row{short_name(settings_.model), cell_.label(), item.prompt.id, mode};
    Tokens said = answer.tokens;
    if (!said.empty() && std::find(stop_.begin(), stop_.end(), said.back()) != stop_.end()) said.pop_back();
    row.output = tokenizer_.decode(said, true);
    row.score = score(cell_, item, row.output);
    row.tokens = answer.tokens;
    row.gaps = answer.gaps;
    row.same_output = answer.tokens == full.tokens;
    row.same_bits = row.same_output && answer.logits == full.logits;
    row.same_first = answer.tokens.at(0) == full.tokens.at(0);
    row.kl = kl_divergence(full.logits, answer.logits);
    row.allowed = logit_tolerance(model_.backend(), model_.spec(), rms(answer.logits));
    row.total = row.computed = token_count(item.prompt.segments);
    if (mode == kFloor) row.total = row.computed = token_count(item.bare);
    return row;
  }

  // Every run of some items.
  std::vector<Row> run_batch(const std::vector<const Item*>& items,
                             const std::function<void(double, const std::string&)>& progress) {
    const double runs = static_cast<double>(settings_.modes.size() + 3);
    double done = 0;
    const auto say = [&](const std::string& mode) { progress(done++ / runs, mode); };
    std::vector<Row> rows;
    say("full");
    const std::vector<Response> full = answers(items, full_);
    for (size_t i = 0; i < items.size(); ++i) rows.push_back(row(*items[i], "full", full[i], full[i]));
    say(kAgain);
    again(items, full, rows);
    const bool invariant = model_.backend().batch_invariant();
    for (const CellMode& mode : settings_.modes) {
      const std::string& name = mode.mode.name;
      say(name);
      const std::vector<Response> all = answers(items, mode);
      for (size_t i = 0; i < items.size(); ++i) {
        Row& one = rows.emplace_back(row(*items[i], name, all[i], full[i]));
        const CellPrompt asked = as_asked(items[i]->prompt, mode.mode);
        one.computed = expected_counters(asked.segments, mode.mode, priming(asked, mode.cache)).computed();
        if (invariant && mode.mode.reuse == Reuse::prefix && !one.same_bits)
          throw InternalError(str(one.id, ": a prefix cache gives other bits than full recompute"));
      }
    }
    say(kFloor);
    const std::vector<Response> bare = answers(items, full_, true);
    for (size_t i = 0; i < items.size(); ++i) rows.push_back(row(*items[i], kFloor, bare[i], full[i]));
    return rows;
  }

  // Full recompute once more: in halves, each from its end.
  void again(const std::vector<const Item*>& items, const std::vector<Response>& full, std::vector<Row>& rows) {
    const size_t half = (items.size() + 1) / 2;
    for (size_t begin = 0; begin < items.size(); begin += half) {
      const size_t end = std::min(items.size(), begin + half);
      std::vector<const Item*> turned(items.begin() + begin, items.begin() + end);
      std::reverse(turned.begin(), turned.end());
      const std::vector<Response> all = answers(turned, full_);
      for (size_t i = 0; i < turned.size(); ++i) {
        const Row& one = rows.emplace_back(row(*turned[i], kAgain, all[i], full[end - 1 - i]));
        if (model_.backend().batch_invariant() && !one.same_bits)
          throw InternalError(str(one.id, ": full recompute gives other bits in another batch"));
      }
    }
  }

  const Settings& settings_;
  const Model& model_;
  const Cell& cell_;
  const std::vector<Item> items_;
  const Tokenizer& tokenizer_;
  const Tokens stop_;
  int64_t batch_;
  const CellMode full_;
  std::optional<Engine> engine_;
};

std::string note(const Settings& settings, const Model& model, const std::vector<int64_t>& batches) {
  std::string text =
      str(settings.model, " on ", settings.choice.on(), ", greedy; documents cached, each built alone; ");
  for (size_t i = 0; i < batches.size(); ++i)
    text += str(i ? ", " : "", settings.cells[i].label(), " in batches of ", batches[i]);
  text += str(
      ".\nLoss: full recompute's score less the mode's, both on the same items; 95 %: percentile bootstrap over items, "
      "paired. Gap recovered: (mode − no context) / (full − no context). Same output: the very tokens of full "
      "recompute; KL and top-1 are of the first token. Length: the mode's answer over full recompute's, in tokens; "
      "outside 0.9 – 1.1 it is marked. Tokens reused: the share of the prompt that did not run through the model; the "
      "counters of every batch were what follows from its prompts. Full again: the same items in halves of a batch, in "
      "reverse.");
  const auto of_dataset = [](const Cell& cell) { return cell.task.empty(); };
  if (std::any_of(settings.cells.begin(), settings.cells.end(), of_dataset))
    text += " Prompts of datasets are LongBench's as plain text: hypic applies no chat template.";
  if (model.backend().batch_invariant()) text += " Full again and prefix gave the very bits of full recompute.";
  if (settings.choice.model.starts_with("random:"))
    text += " Weights are random.";
  else if (end_tokens(settings.choice.model, model.spec().vocabulary).empty())
    text += " The model names no eos_token_id: each answer runs to its limit, and of a task none is right.";
  return text;
}

Result run(const Settings& settings, ModelShelf& shelf, const ProgressFn& progress) {
  progress(0, "opens the model");
  const Model& model = shelf.open(settings.choice);
  const Tokenizer tokenizer = tokenizer_for(settings.choice.model);
  std::vector<Row> earlier;
  if (settings.log)
    for (const nlohmann::json& json : settings.log->earlier(settings.name))
      earlier.push_back(row_from_json(json, str(ItemLog::kFile, ", case ", settings.name)));
  std::vector<CellRows> rows;
  std::vector<StateErrors> states;
  std::vector<int64_t> batches;
  double done = 0;
  for (size_t c = 0; c < settings.cells.size(); ++c) {
    const Cell& cell = settings.cells[c];
    const std::string head = cell.label() + ", ";
    const auto say = [&](double share, const std::string& what) {
      progress((done + share) / static_cast<double>(settings.cells.size()), head + what);
    };
    CellRun one(settings, model, cell,
                items_of(cell, settings.loaded[c], tokenizer, model.spec(), settings.seed,
                         [&](size_t row) { say(0, str("tokenizes row ", row + 1)); }),
                tokenizer);
    rows.push_back(one.run(earlier, say));
    states.push_back(one.states(say));
    one.finish();
    batches.push_back(one.batch());
    ++done;
  }
  std::vector<std::string> names;
  for (const CellMode& mode : settings.modes) names.push_back(mode.mode.name);
  Result result = summarize(settings.cells, rows, states, names, settings.scored, settings.seed);
  result.note = note(settings, model, batches);
  return result;
}

Work skipped(const std::string& why) {
  return [why](const ProgressFn&) {
    Result result;
    result.verdict = Verdict::skip;
    result.why = why;
    return result;
  };
}

// The file with the rows of a dataset; "" where `data` has none of it.
std::string file_of(const std::string& dataset, const std::string& data) {
  std::error_code error;
  if (fs::is_directory(data, error)) {
    const std::string file = data + "/" + dataset + ".jsonl";
    return fs::exists(file, error) ? file : "";
  }
  const std::string has = data.empty() ? "" : dataset_of(data);
  return has == dataset || has == dataset + "_e" ? data : "";
}

}  // namespace

Work prepare(const SuiteCase& suite_case, const std::string& where, const DriverContext& context,
             const Faults& faults) {
  const std::string place = where + ".parameters";
  nlohmann::json rest = suite_case.parameters;
  const nlohmann::json cells = rest.contains("cells") ? rest["cells"] : nlohmann::json();
  rest.erase("cells");
  require(cells.is_array() && !cells.empty(), place, ".cells: must be an array of at least one cell");
  Parameters parameters(rest, place);
  const auto settings = std::make_shared<Settings>();
  settings->name = suite_case.name;
  settings->model = context.model.empty() ? parameters.text("model", kDefaultModel) : context.model;
  settings->choice = read_model_choice(parameters, context, Ranks::several);
  std::vector<std::string> all;
  for (const Mode& mode : modes())
    if (mode.reuse != Reuse::none) all.push_back(mode.name);
  std::set<std::string> names;
  for (const std::string& text : parameters.texts("modes", all)) {
    try {
      settings->modes.push_back(warm(text));
    } catch (const Error& error) {
      fail(place, ".modes: ", error.what());
    }
    require(names.insert(text).second, place, ".modes: \"", text, "\" appears twice");
  }
  settings->batch = parameters.integer("batch", 32, 1, 1 << 12);
  settings->chunk = static_cast<int32_t>(parameters.integer("chunk", 8192, 1, 1 << 24));
  settings->states = parameters.integer("states", 0, 0, 1 << 12);
  settings->seed = parameters.integer("seed", 7, 0, INT64_MAX);
  settings->scored.from = static_cast<double>(parameters.integer("scored_from", 80, 0, 100));
  settings->scored.rows = parameters.integer("scored_rows", 500, 1, 1 << 20);
  const bool optional = parameters.integer("optional", 0, 0, 1) == 1;
  parameters.refuse_others();
  settings->faults = faults;
  settings->log = context.items;
  std::set<std::string> labels;
  for (size_t i = 0; i < cells.size(); ++i) {
    settings->cells.push_back(read_cell(cells[i], str(place, ".cells[", i, "]")));
    const std::string label = settings->cells.back().label();
    require(labels.insert(label).second, place, ".cells[", i, "]: ", label, " appears twice");
  }

  const std::string& model = settings->choice.model;
  std::error_code error;
  if (optional && context.model.empty() && !model.starts_with("random:") && !fs::is_directory(model, error))
    return skipped(str("no checkpoint ", settings->model, " here; hf download ", settings->model,
                       " brings it, or --model names its folder"));
  spec_of(model);
  require(has_tokenizer(model), model, ": has no tokenizer.json to ask with");
  for (const Cell& cell : settings->cells) {
    std::vector<hypic::Item>& loaded = settings->loaded.emplace_back();
    if (!cell.task.empty()) continue;
    const std::string file = file_of(cell.dataset, context.data);
    const std::string missing = str("no rows of ", cell.dataset, context.data.empty() ? "" : str(" in ", context.data),
                                    "; --data names its file, or a folder with ", cell.dataset, ".jsonl");
    if (file.empty() && optional) return skipped(missing);
    require(!file.empty(), place, ".cells: ", missing);
    if (context.data_used) *context.data_used = true;
    loaded = load_dataset(file);
  }
  return
      [settings, shelf = ModelShelf::shared()](const ProgressFn& progress) { return run(*settings, *shelf, progress); };
}

}  // namespace quality

// Parameters: model (random:qwen3.5-tiny), backend (cpu), tensor_parallel (1), devices (0, 1, …), cells: {"task": fact, two_hop, headlines, figures, distance
// or latest, "segments": 8, "tokens": 64, "rows": 500} or {"dataset": …, "rows": 200, "max_tokens": what the model
// takes}, each with "new_tokens", of an answer at most; modes (all but full), batch (32, items at once; fewer where
// memory ends), chunk (8192, rows of a forward), states (0, items of each cell whose states are compared by layer),
// seed (7, of the tasks' rows and of intervals), scored_from (80) and scored_rows (500), from which on a cell is
// scored, optional (0; 1: SKIP without the checkpoint or the rows).
// Values: by cell n, full, floor (points), noise (share of items with the same output in another batching); by cell and
// mode, NAME.CELL.MODE, score, loss with loss_low and loss_high (points), recovered with _low and _high (share of the
// gap between floor and full; NaN where there is none), same, top1 (shares), kl (nats), length (times), reused (share);
// state.CELL.MODE.layer_NN; scored (kinds) and scored.KIND (0, 1); over the scored cells, NaN without one,
// loss_scored.MODE with loss_scored_low and _high, reused_scored.MODE.
Work prepare_quality(const SuiteCase& suite_case, const std::string& where, const DriverContext& context) {
  return quality::prepare(suite_case, where, context, {});
}

}  // namespace hypic
