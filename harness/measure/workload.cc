#include "harness/measure/workload.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <random>
#include <span>

#include "core/check.h"
#include "datasets/dataset.h"
#include "harness/measure/prompts.h"
#include "harness/model_choice.h"

namespace hypic {
namespace {

// Quantiles of 5, 50 and 95 %.
struct Spread {
  double low, median, high;
  // The u-quantile, 0 ≤ u ≤ 1: geometric between the three.
  double at(double u) const {
    return u < 0.5 ? low * std::pow(median / low, 2 * u)
                   : median * std::pow(high / median, 2 * u - 1);
  }
};

// Rows of LongBench in tokens of Qwen3, cut as longbench_prompt does: documents a row, tokens a
// document; medians of the text before them and of the question with the text around it.
struct Shape {
  const char* name;
  Spread documents, tokens;
  int64_t instruction, question;
};

constexpr Shape kShapes[] = {
    {"hotpotqa", {5, 10, 10}, {129, 901, 5482}, 28, 47},
    {"triviaqa", {8, 21, 23}, {199, 796, 1423}, 28, 393},
    {"multi_news", {2, 3, 5}, {56, 663, 2107}, 19, 15},
    {"gov_report", {9, 16, 31}, {512, 527, 560}, 21, 14},
};

const Shape& shape_named(const std::string& name) {
  std::string known;
  for (const Shape& shape : kShapes) {
    if (name == shape.name) return shape;
    known += str(known.empty() ? "" : ", ", shape.name);
  }
  fail("unknown dataset \"", name, "\"; known: ", known);
}

int64_t whole(double x, int64_t divide) {
  return std::max<int64_t>(1, std::llround(x / static_cast<double>(divide)));
}

// Row `row` of `rows`: quantiles at even steps, so that few rows stand for all, documents in a
// random order.
std::vector<int64_t> lengths_of(const Shape& shape, const Workload& w, int64_t row,
                                std::mt19937_64& bits) {
  const double u = (static_cast<double>(row) + 0.5) / static_cast<double>(w.rows);
  const int64_t documents = std::llround(shape.documents.at(u));
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < documents; ++i)
    lengths.push_back(
        whole(shape.tokens.at((static_cast<double>(i) + 0.5) / static_cast<double>(documents)),
              w.divide));
  for (size_t i = lengths.size(); i > 1; --i) std::swap(lengths[i - 1], lengths[bits() % i]);
  lengths.insert(lengths.begin(), whole(static_cast<double>(shape.instruction), w.divide));
  lengths.push_back(whole(static_cast<double>(shape.question), w.divide));
  return lengths;
}

CellPrompts random_cell(const Workload& w, const ModelSpec& spec) {
  CellPrompts all;
  all.source =
      w.dataset.empty() ? "random tokens" : str("random tokens in lengths as of ", w.dataset);
  std::mt19937_64 bits(1);
  uint64_t seed = 0;
  for (int64_t row = 0; row < w.rows; ++row) {
    std::vector<int64_t> lengths;
    if (w.dataset.empty()) {
      if (w.system > 0) lengths.push_back(w.system);
      lengths.insert(lengths.end(), w.segments, w.tokens);
      lengths.push_back(w.question);
    } else {
      lengths = lengths_of(shape_named(w.dataset), w, row, bits);
    }
    CellPrompt& prompt = all.prompts.emplace_back();
    prompt.id = str(w.label(), " row ", row);
    prompt.instruction = w.system > 0 || !w.dataset.empty();
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    require(tokens < spec.max_positions, prompt.id, ": ", tokens, " tokens exceed the model's ",
            spec.max_positions, " positions");
    for (const int64_t n : lengths)
      prompt.segments.push_back(random_tokens(n, spec.vocabulary, ++seed));
  }
  return all;
}

bool is_of(const std::string& dataset, const std::string& name) {
  return dataset == name || dataset == name + "_e";
}

// The first rows of the file; none where it is of another dataset.
CellPrompts rows_of(const Workload& w, const std::string& model, const std::string& data,
                    const std::function<void(double, const std::string&)>& progress) {
  CellPrompts all;
  const std::vector<Item> items = load_dataset(data);
  if (!is_of(items.front().dataset, w.dataset)) return all;
  const Tokenizer tokenizer = tokenizer_for(model);
  const auto count = [&](std::string_view text) { return tokenizer.encode(text).size(); };
  for (const Item& item : items) {
    if (static_cast<int64_t>(all.prompts.size()) == w.rows) break;
    if (progress)
      progress(0, str("tokenizes ", w.label(), ", row ", all.prompts.size() + 1, " of ",
                      std::min<int64_t>(w.rows, static_cast<int64_t>(items.size()))));
    CellPrompt& prompt = all.prompts.emplace_back();
    prompt.id = item.id;
    prompt.instruction = true;
    for (const std::string& segment : longbench_prompt(item, count).segments) {
      Tokens tokens = tokenizer.encode(segment);
      if (w.divide > 1) tokens.resize(std::min(tokens.size(), tokens.size() / w.divide + 1));
      if (!tokens.empty()) prompt.segments.push_back(std::move(tokens));
    }
  }
  all.source = data;
  return all;
}

int64_t total(const std::vector<Tokens>& segments) {
  int64_t n = 0;
  for (const Tokens& tokens : segments) n += static_cast<int64_t>(tokens.size());
  return n;
}

// The segments but the question, which ends a prompt.
std::span<const Tokens> before_question(const std::vector<Tokens>& prompt) {
  return std::span(prompt).first(prompt.empty() ? 0 : prompt.size() - 1);
}

bool among(const Tokens& tokens, std::span<const Tokens> all) {
  return std::find(all.begin(), all.end(), tokens) != all.end();
}

// As a segment, by itself.
bool is_cached(const Tokens& segment, const Priming& primed) {
  return among(segment, primed.segments) || among(segment, before_question(primed.prompt));
}

CacheState cache_state(std::string_view text, const std::string& where) {
  using Kind = CacheState::Kind;
  for (const Kind kind :
       {Kind::cold, Kind::warm_prefix, Kind::warm_prefix_other_order, Kind::warm_segment})
    if (text == CacheState{kind}.name()) return {kind};
  constexpr std::string_view kMissed = "missed=";
  CacheState state{Kind::missed};
  const char* end = text.data() + text.size();
  const bool missed = text.starts_with(kMissed);
  const auto [stop, error] = missed
                                 ? std::from_chars(text.data() + kMissed.size(), end, state.missed)
                                 : std::from_chars_result{end, {}};
  require(missed && error == std::errc{} && stop == end && state.missed >= 0, "mode \"", where,
          "\": unknown cache state \"", text,
          "\"; known: cold, warm_prefix, warm_prefix_other_order, warm_segment, missed=K");
  return state;
}

}  // namespace

std::string Workload::label() const {
  if (!dataset.empty()) return divide == 1 ? dataset : str(dataset, "/", divide);
  return str(system > 0 ? str(system, "+") : "", segments, "x", tokens, "+", question);
}

std::vector<std::string> dataset_shapes() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

CellPrompts cell_prompts(const Workload& w, const std::string& model, const ModelSpec& spec,
                         const std::string& data,
                         const std::function<void(double, const std::string&)>& progress) {
  if (!w.dataset.empty()) shape_named(w.dataset);
  CellPrompts all;
  if (!w.dataset.empty() && !data.empty()) {
    require(has_tokenizer(model), model,
            ": has no tokenizer to read the data with; add tokenizer.json, or leave --data out");
    all = rows_of(w, model, data, progress);
  }
  if (all.prompts.empty()) all = random_cell(w, spec);
  for (const CellPrompt& prompt : all.prompts) {
    require(prompt.segments.size() >= 2, prompt.id, ": has no segment before its question");
    require(total(prompt.segments) < spec.max_positions, prompt.id, ": ", total(prompt.segments),
            " tokens exceed the model's ", spec.max_positions, " positions");
    for (const Tokens& tokens : prompt.segments)
      for (const int32_t token : tokens)
        require(token < spec.vocabulary, prompt.id, ": token ", token,
                " is outside the model's vocabulary of ", spec.vocabulary,
                "; the tokenizer does not belong to it");
  }
  return all;
}

std::string dataset_of(const std::string& data) { return load_dataset(data).front().dataset; }

std::string CacheState::name() const {
  switch (kind) {
    case Kind::cold:
      return "cold";
    case Kind::warm_prefix:
      return "warm_prefix";
    case Kind::warm_prefix_other_order:
      return "warm_prefix_other_order";
    case Kind::warm_segment:
      return "warm_segment";
    case Kind::missed:
      break;
  }
  return str("missed=", missed);
}

CellMode cell_mode(std::string_view text) {
  using Kind = CacheState::Kind;
  const std::string whole(text);
  const size_t at = text.find('@');
  CellMode cell;
  cell.mode = mode_named(text.substr(0, at));
  const Reuse reuse = cell.mode.reuse;
  if (at == text.npos)
    cell.cache.kind = reuse == Reuse::none     ? Kind::cold
                      : reuse == Reuse::prefix ? Kind::warm_prefix_other_order
                                               : Kind::warm_segment;
  else
    cell.cache = cache_state(text.substr(at + 1), whole);
  const Kind kind = cell.cache.kind;
  require(reuse != Reuse::none || kind == Kind::cold, "mode \"", whole,
          "\": full recompute caches nothing; it is cold");
  require(reuse != Reuse::prefix || (kind != Kind::warm_segment && kind != Kind::missed), "mode \"",
          whole,
          "\": a prefix cache holds no single segments; cold, warm_prefix and "
          "warm_prefix_other_order are its states");
  require(cell.mode.rotate != Rotate::built_at, "mode \"", whole,
          "\": with rotate=built_at results depend on what the cache saw first, so there is "
          "nothing to check them by");
  return cell;
}

Priming priming(const CellPrompt& prompt, const CacheState& cache) {
  using Kind = CacheState::Kind;
  const auto segments = before_question(prompt.segments);
  const auto documents = static_cast<int64_t>(segments.size()) - prompt.instruction;
  Priming primed;
  switch (cache.kind) {
    case Kind::cold:
      break;
    case Kind::warm_prefix:
      primed.prompt = prompt.segments;
      break;
    case Kind::warm_prefix_other_order:  // the first document last, so that none keeps its place
      primed.prompt = prompt.segments;
      require(documents > 1, prompt.id, ": a single document has no other order; ask for prefix@warm_prefix or ",
              "prefix@cold");
      std::rotate(primed.prompt.begin() + prompt.instruction,
                  primed.prompt.begin() + prompt.instruction + 1, primed.prompt.end() - 1);
      break;
    case Kind::warm_segment:
    case Kind::missed: {
      require(cache.missed <= documents, prompt.id, ": ", cache.missed, " of ", documents,
              " documents cannot miss");
      primed.segments.assign(segments.begin(), segments.end());
      for (int64_t k = cache.missed; k-- > 0;) {  // evenly among the documents, the last one first
        const int64_t i = (2 * k + 1) * documents / (2 * cache.missed);
        primed.segments.erase(primed.segments.begin() + prompt.instruction + i);
      }
      break;
    }
  }
  return primed;
}

Counters expected_counters(const std::vector<Tokens>& prompt, const Mode& mode,
                           const Priming& primed) {
  Counters c;
  const auto segments = before_question(prompt);
  c.context = static_cast<int64_t>(prompt.back().size());
  if (mode.reuse == Reuse::prefix) {
    const auto seen = before_question(primed.prompt);
    const size_t common =
        std::mismatch(segments.begin(), segments.end(), seen.begin(), seen.end()).first -
        segments.begin();
    for (size_t i = 0; i < segments.size(); ++i)
      (i < common ? c.prefix : c.context) += static_cast<int64_t>(segments[i].size());
    return c;
  }
  const int64_t seams = mode.head + mode.tail;
  int64_t start = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    const auto n = static_cast<int64_t>(segments[i].size());
    if (mode.reuse == Reuse::none || n <= seams) {
      c.context += n;
    } else {
      c.seam += seams;
      c.jumped += n - seams;
      c.jumps += 1;
      if (mode.rotate == Rotate::on && start > 0) c.rotated += n - seams;
      // What comes twice in a prompt is computed once.
      if (!is_cached(segments[i], primed) && !among(segments[i], segments.first(i))) c.isolated += n;
    }
    start += n;
  }
  return c;
}

int64_t found_tokens(const std::vector<Tokens>& prompt, const Mode& mode, const Priming& primed) {
  if (mode.reuse != Reuse::segments) return expected_counters(prompt, mode, primed).prefix;
  int64_t found = 0;
  for (const Tokens& segment : before_question(prompt)) {
    const auto n = static_cast<int64_t>(segment.size());
    if (n > mode.head + mode.tail && is_cached(segment, primed)) found += n;
  }
  return found;
}

std::string difference(const Counters& counted, const Counters& expected) {
  const std::pair<const char*, int64_t Counters::*> all[] = {
      {"isolated", &Counters::isolated}, {"seam", &Counters::seam},
      {"context", &Counters::context},   {"prefix", &Counters::prefix},
      {"jumped", &Counters::jumped},     {"jumps", &Counters::jumps},
      {"rotated", &Counters::rotated}};
  for (const auto& [name, member] : all)
    if (counted.*member != expected.*member)
      return str(name, " is ", counted.*member, ", the cell's plan says ", expected.*member);
  return "";
}

}  // namespace hypic
