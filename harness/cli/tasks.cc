#include "datasets/tasks.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "core/check.h"
#include "core/file.h"
#include "core/json.h"
#include "core/philox.h"
#include "harness/cli/commands.h"
#include "harness/word_encoder.h"
#include "models/tokenizer.h"

namespace hypic {
namespace {

struct Options {
  std::string task, mix, split = "train", tokenizer, out = "-";
  TaskShape shape;
  int64_t rows = 10, sequences = 1000, length = 512;
  int questions = 1;
  uint64_t seed = 1;
};

class Output {
 public:
  explicit Output(const std::string& path) : path_(path) {
    if (path == "-") return;
    file_.open(path, std::ios::binary);
    require(file_.good(), path, ": cannot be written");
  }
  std::ostream& stream() { return path_ == "-" ? std::cout : file_; }
  void close() {
    stream().flush();
    require(stream().good(), path_, ": cannot be written; is the disk full?");
  }

 private:
  std::string path_;
  std::ofstream file_;
};

TaskSplit split_named(const std::string& name) { return name == "test" ? TaskSplit::test : TaskSplit::train; }

void write_rows(const Options& options) {
  std::optional<Tokenizer> tokenizer;
  std::optional<WordEncoder> encoder;
  CountTokens count = count_words;
  if (!options.tokenizer.empty()) {
    tokenizer = Tokenizer::load(options.tokenizer);
    encoder.emplace(*tokenizer);
    count = [&](std::string_view text) { return encoder->count(text); };
  }
  const Task task = task_named(options.task);
  Output out(options.out);
  for (int64_t i = 0; i < options.rows; ++i) {
    const TaskRow row =
        task_row(task, options.shape, split_named(options.split), options.seed, i, count, options.questions);
    nlohmann::ordered_json json = {
        {"id", row.id}, {"documents", row.documents}, {"questions", nlohmann::ordered_json::array()}};
    for (const TaskQuestion& question : row.questions)
      json["questions"].push_back({{"text", question.text}, {"answer", question.answer}});
    out.stream() << json << "\n";
  }
  out.close();
}

struct Part {
  Task task;
  int segments[2], tokens[2];  // from, to
  double weight;
};

std::vector<Part> read_mix(const std::string& path) {
  const nlohmann::json mix = parse_json(read_file(path, size_t{1} << 20), path);
  require(mix.is_array(), path, ": a mix is a list of {task, segments: [from, to], tokens: [from, to], weight}");
  std::vector<Part> parts;
  try {
    for (const nlohmann::json& each : mix) {
      Part part{.task = task_named(each.at("task").get<std::string>()), .weight = each.at("weight").get<double>()};
      for (const auto& [name, range, low, high] :
           {std::tuple{"segments", part.segments, 2, 32}, std::tuple{"tokens", part.tokens, 16, 4096}}) {
        for (int i = 0; i < 2; ++i) {
          const nlohmann::json& value = each.at(name).at(size_t(i));
          require(each.at(name).size() == 2 && is_integer_in(value, i == 0 ? low : range[0], high), path, ": part ",
                  parts.size(), ": \"", name, "\" is [from, to] within ", low, " and ", high);
          range[i] = value.get<int>();
        }
      }
      require(part.weight > 0, path, ": part ", parts.size(), ": \"weight\" must be above 0");
      for (const auto& [key, value] : each.items())
        require(key == "task" || key == "segments" || key == "tokens" || key == "weight", path, ": part ",
                parts.size(), ": unknown key \"", key, "\"");
      parts.push_back(part);
    }
  } catch (const nlohmann::json::exception& error) {
    fail(path, ": part ", parts.size(), ": ", error.what(),
         "; a mix is a list of {task, segments: [from, to], tokens: [from, to], weight}");
  }
  require(!parts.empty(), path, ": the mix has no part");
  return parts;
}

// What predicting a token counts as.
enum : uint8_t { kPadding = 0, kContext = 1, kAnswer = 2 };

// Random numbers of a sequence, apart from those of its row.
std::array<uint32_t, 4> bits_of(uint64_t seed, int64_t index, uint32_t n) {
  return philox({uint32_t(index), uint32_t(uint64_t(index) >> 32), n, 0x6d6978},
                {uint32_t(seed), uint32_t(seed >> 32)});
}

// The part of a sequence, by weight.
const Part& part_of(const std::vector<Part>& parts, uint64_t seed, int64_t index) {
  double at = 0;
  for (const Part& part : parts) at += part.weight;
  at *= bits_of(seed, index, 0)[0] * 0x1p-32;
  const Part* part = parts.data();
  while (part != &parts.back() && at >= part->weight) at -= part++->weight;
  return *part;
}

// The n-th shape drawn for a sequence.
TaskShape shape_of(const Part& part, uint64_t seed, int64_t index, uint32_t n) {
  const auto between = [](const int(&range)[2], uint32_t bits) {
    return range[0] + int(uint64_t(bits) * uint32_t(range[1] - range[0] + 1) >> 32);
  };
  const auto bits = bits_of(seed, index, n);
  return {between(part.segments, bits[1]), between(part.tokens, bits[2])};
}

// Documents, then questions with answers while they fit. Returns whether one did; if not, nothing is written.
bool fill(const TaskRow& row, WordEncoder& encoder, int32_t end_of_text, int64_t length, uint16_t* ids,
          uint8_t* classes) {
  std::vector<int32_t> text;
  for (const std::string& document : row.documents) encoder.append(document, text);
  int64_t at = 0;
  for (const TaskQuestion& question : row.questions) {
    encoder.append(question.text, text);
    const int64_t context = std::ssize(text);
    encoder.append(question.answer, text);
    text.push_back(end_of_text);
    if (at + std::ssize(text) > length) break;
    for (int64_t i = 0; i < std::ssize(text); ++i, ++at) {
      ids[at] = uint16_t(text[i]);
      classes[at] = i < context ? kContext : kAnswer;
    }
    text.clear();
  }
  return at > 0;
}

void write_mix(const Options& options) {
  require(!options.tokenizer.empty(), "--mix needs --tokenizer");
  const Tokenizer tokenizer = Tokenizer::load(options.tokenizer);
  require(tokenizer.vocab_size() <= 65536, options.tokenizer, ": more than 65536 tokens do not fit 16 bits");
  const std::vector<int32_t> end = tokenizer.encode("<|endoftext|>");
  require(end.size() == 1, options.tokenizer, ": has no token <|endoftext|>");
  const std::vector<Part> parts = read_mix(options.mix);
  Output out(options.out);
  std::vector<uint16_t> ids(size_t(options.sequences * options.length), uint16_t(end[0]));
  std::vector<uint8_t> classes(ids.size(), kPadding);
  constexpr int64_t kBlock = 64;
  constexpr uint32_t kAttempts = 128;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      WordEncoder encoder(tokenizer);
      const CountTokens count = [&](std::string_view text) { return encoder.count(text); };
      for (int64_t begin; (begin = next.fetch_add(kBlock)) < options.sequences;) {
        for (int64_t i = begin; i < std::min(begin + kBlock, options.sequences); ++i) {
          uint16_t* const to = ids.data() + i * options.length;
          const Part& part = part_of(parts, options.seed, i);
          for (uint32_t attempt = 0;; ++attempt) {
            require(attempt < kAttempts, options.mix, ": part ", &part - parts.data(), ": hardly a row fits ",
                    options.length, " tokens; give a larger --length or smaller shapes");
            const TaskShape shape = shape_of(part, options.seed, i, attempt);
            const int64_t size = int64_t{shape.segments} * shape.tokens;
            // Where the part allows, no sequence is mostly padding.
            if (size > options.length || (size < options.length * 3 / 8 && attempt < kAttempts / 2)) continue;
            const TaskRow row =
                task_row(part.task, shape, split_named(options.split), options.seed, uint64_t(i), count, 1 << 20);
            if (fill(row, encoder, end[0], options.length, to, classes.data() + i * options.length)) break;
          }
        }
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
      next = options.sequences;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  out.stream().write(reinterpret_cast<const char*>(ids.data()), std::streamsize(ids.size() * 2));
  out.stream().write(reinterpret_cast<const char*>(classes.data()), std::streamsize(classes.size()));
  out.close();
  const auto share = [&](uint8_t what) {
    return 100.0 * double(std::count(classes.begin(), classes.end(), what)) / double(classes.size());
  };
  std::cerr << options.mix << ": " << ids.size() << " tokens, " << int(share(kAnswer) + 0.5) << " % of answers, "
            << int(share(kPadding) + 0.5) << " % padding\n";
}

}  // namespace

void add_tasks(CLI::App& app, int&) {
  CLI::App* command =
      app.add_subcommand("tasks", "Write rows of the synthetic tasks, or training data of a mix of them");
  const auto options = std::make_shared<Options>();
  std::string known;
  for (const Task task : kTasks) known += (known.empty() ? "" : ", ") + std::string(task_name(task));
  CLI::Option* task = command->add_option("--task", options->task, "Write rows as JSON Lines: " + known);
  CLI::Option* mix = command->add_option(
      "--mix", options->mix,
      "Write training data: JSON, a list of {task, segments: [from, to], tokens: [from, to], weight}");
  task->excludes(mix);
  const auto number = [&](const char* name, auto& value, int64_t low, int64_t high, const char* what) {
    return command->add_option(name, value, what)->check(CLI::Range(low, high))->capture_default_str();
  };
  number("--segments", options->shape.segments, 2, 32, "Documents of a row")->needs(task);
  number("--tokens", options->shape.tokens, 16, 4096, "Tokens of a document, about")->needs(task);
  number("--rows", options->rows, 1, int64_t{1} << 32, "Rows")->needs(task);
  number("--questions", options->questions, 1, 1000, "At most so many a row; the first one is scored")->needs(task);
  number("--sequences", options->sequences, 1, int64_t{1} << 32, "Sequences, one row each")->needs(mix);
  number("--length", options->length, 32, 1 << 20, "Tokens of a sequence")->needs(mix);
  command->add_option("--split", options->split, "Whose values")
      ->check(CLI::IsMember({"train", "test"}))
      ->capture_default_str();
  number("--seed", options->seed, 0, int64_t{1} << 62, "Another seed, other rows");
  command->add_option("--tokenizer", options->tokenizer, "Count tokens with it (default for rows: count words)");
  command
      ->add_option("--out", options->out,
                   "File; - is standard output. Of a mix: uint16 ids [sequences, length], little-endian, then "
                   "uint8 [sequences, length]: 0 padding, 1 context, 2 answer")
      ->capture_default_str();
  command->callback([options] {
    require(!options->task.empty() || !options->mix.empty(), "tasks: give --task or --mix");
    options->mix.empty() ? write_rows(*options) : write_mix(*options);
  });
}

}  // namespace hypic
