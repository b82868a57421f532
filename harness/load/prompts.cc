#include "harness/load/prompts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/check.h"
#include "core/file.h"
#include "harness/assets.h"

namespace hypic::load {
namespace {

constexpr uint64_t kQuestions = uint64_t{1} << 62;  // ids of questions; those of a trace are below 2^32

// SplitMix64 (Steele, Lea, Flood 2014): a stream for each (seed, id), without state to warm up.
class Bits {
 public:
  Bits(uint64_t seed, uint64_t id) : state_(seed * 0x9E3779B97F4A7C15u ^ (id + 0x632BE59BD9B4E019u)) { next(); }
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return next() % n; }

 private:
  uint64_t state_;
};

// `text` as the inside of a JSON string.
std::string escaped(const std::string& text) {
  const std::string quoted = nlohmann::json(text).dump();
  return quoted.substr(1, quoted.size() - 2);
}

// Unlike any other id's: its digits in base 20, as consonants and vowels that can be read out.
std::string name_of(uint64_t id) {
  static constexpr std::string_view first = "bdfgklmnprstvz", second = "aeiou";
  std::string name;
  do {
    name += first[id % first.size()];
    id /= first.size();
    name += second[id % second.size()];
    id /= second.size();
  } while (id > 0);
  name[0] = static_cast<char>(name[0] - 'a' + 'A');
  return name;
}

}  // namespace

std::vector<Prompt> make_prompts(const Shape& shape, int64_t first, int64_t requests) {
  require(shape.pool == 0 || shape.pool >= shape.segments, "a pool of ", shape.pool, " passages is too small for ",
          shape.segments, " in a prompt");
  std::vector<Prompt> prompts;
  prompts.reserve(requests);
  for (int64_t i = first; i < first + requests; ++i) {
    Prompt& prompt = prompts.emplace_back();
    prompt.output_tokens = shape.output_tokens;
    Bits bits(shape.seed, kQuestions + i);
    while (static_cast<int64_t>(prompt.passages.size()) < shape.segments) {
      const uint64_t id = shape.pool == 0 ? i * shape.segments + prompt.passages.size() : bits.below(shape.pool);
      if (std::none_of(prompt.passages.begin(), prompt.passages.end(), [&](const Passage& p) { return p.id == id; }))
        prompt.passages.push_back({id, static_cast<int32_t>(shape.tokens)});
    }
    prompt.passages.push_back({kQuestions + i, static_cast<int32_t>(shape.question)});
  }
  return prompts;
}

std::vector<Prompt> make_prompts(const Trace& trace, int64_t first, int64_t requests, int64_t output_tokens) {
  HYPIC_CHECK(first >= 0 && first + requests <= static_cast<int64_t>(trace.requests.size()));
  std::vector<Prompt> prompts;
  prompts.reserve(requests);
  for (int64_t i = first; i < first + requests; ++i) {
    Prompt& prompt = prompts.emplace_back();
    for (const TraceSegment& segment : trace.requests[i].segments)
      if (segment.tokens > 0) prompt.passages.push_back({segment.id, segment.tokens});
    if (prompt.passages.empty()) prompt.passages.push_back({kQuestions + i, 1});
    prompt.output_tokens = output_tokens > 0 ? output_tokens : std::max<int64_t>(1, trace.requests[i].output_tokens);
  }
  return prompts;
}

Words::Words(std::string_view text) {
  std::istringstream in{std::string(text)};
  for (std::string word; in >> word;) words_.push_back(word);
  require(words_.size() >= 64, "a text of ", words_.size(), " words is too short to make passages of");
}

std::string Words::passage(const Passage& passage, uint64_t seed) const {
  const int64_t count = std::max<int64_t>(1, int64_t{passage.tokens} * 3 / 4);
  Bits bits(seed, passage.id);
  std::string text = name_of(passage.id);
  for (int64_t have = 1; have < count;) {
    const int64_t phrase = std::min<int64_t>(count - have, 6 + bits.below(10));
    const uint64_t start = bits.below(words_.size() - phrase);
    for (int64_t i = 0; i < phrase; ++i) text += ' ' + words_[start + i];
    have += phrase;
  }
  return text;
}

std::vector<int32_t> token_ids(const Passage& passage, uint64_t seed, int32_t low, int32_t high) {
  Bits bits(seed, passage.id);
  std::vector<int32_t> ids(passage.tokens);
  for (int32_t& id : ids) id = low + static_cast<int32_t>(bits.below(high - low));
  return ids;
}

Bodies::Bodies(const std::vector<Prompt>& prompts, const BodyOptions& options)
    : prompts_(prompts),
      options_(options),
      separator_(options.form == Form::text  ? escaped(options.separator)
                 : options.form == Form::ids ? ","
                                             : "],[") {
  HYPIC_CHECK(options.vocabulary > 256 && (options.form != Form::segments || options.api == Api::openai));
  std::string text;
  for (const char* file : {"essays", "gazette", "people", "machines", "towns"})
    text += read_file(asset(str("datasets/text/", file, ".txt")), 1 << 20) + "\n";
  const Words words(text);
  for (const Prompt& prompt : prompts)
    for (const Passage& passage : prompt.passages) {
      std::string& out = rendered_[passage.id][passage.tokens];
      if (!out.empty()) continue;
      if (options.form != Form::text) {
        for (const int32_t id : token_ids(passage, options.seed, 256, options.vocabulary))
          out += (out.empty() ? "" : ",") + std::to_string(id);
      } else {
        out = escaped(words.passage(passage, options.seed));
      }
    }
}

std::string Bodies::body(int64_t i) const {
  const Prompt& prompt = prompts_[i];
  const bool openai = options_.api == Api::openai;
  std::string body = "{";
  if (!options_.model.empty()) body += "\"model\":\"" + escaped(options_.model) + "\",";
  const Form form = options_.form;
  body += form == Form::segments ? "\"segments\":"
          : openai               ? "\"prompt\":"
          : form == Form::ids    ? "\"input_ids\":"
                                 : "\"text\":";
  body += form == Form::text ? "\"" : form == Form::ids ? "[" : "[[";
  for (size_t p = 0; p < prompt.passages.size(); ++p) {
    if (p > 0) body += separator_;
    body += rendered_.at(prompt.passages[p].id).at(prompt.passages[p].tokens);
  }
  body += form == Form::text ? "\"" : form == Form::ids ? "]" : "]]";
  const std::string tokens = std::to_string(prompt.output_tokens);
  body +=
      openai ? ",\"max_tokens\":" + tokens +
                   ",\"temperature\":0,\"ignore_eos\":true,\"stream\":true,\"stream_options\":{\"include_usage\":true}}"
             : ",\"sampling_params\":{\"max_new_tokens\":" + tokens +
                   ",\"temperature\":0,\"ignore_eos\":true},\"stream\":true}";
  return body;
}

}  // namespace hypic::load
