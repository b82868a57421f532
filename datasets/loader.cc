#include "datasets/loader.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "core/check.h"
#include "datasets/dataset.h"
#include "datasets/rows.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Strings = std::vector<std::string>;

constexpr size_t kMaxTextBytes = size_t{4} << 30;
constexpr size_t kShots = 8, kShotWords = 800;
constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) + 1 - begin);
}

void append_utf8(std::string& text, uint32_t c) {
  const auto rest = [&](int shift) { text += char(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) {
    text += char(c);
  } else if (c < 0x800) {
    text += char(0xC0 | c >> 6);
    rest(0);
  } else if (c < 0x10000) {
    text += char(0xE0 | c >> 12);
    rest(6), rest(0);
  } else {
    text += char(0xF0 | c >> 18);
    rest(12), rest(6), rest(0);
  }
}

// A list of strings as Python's repr writes it, such as ['a', "it's"]; JSON's is one too.
class PythonList {
 public:
  explicit PythonList(std::string_view text) : text_(trimmed(text)) {}

  Strings parse() {
    Strings out;
    take('[');
    for (skip(); !peek(']'); skip()) {
      out.push_back(string());
      skip();
      if (!peek(']')) take(',');
    }
    take(']');
    require(at_ == text_.size(), kWhat);
    return out;
  }

 private:
  static constexpr const char* kWhat = "the string is no list of strings";

  bool peek(char c) const { return at_ < text_.size() && text_[at_] == c; }
  char next() {
    require(at_ < text_.size(), kWhat);
    return text_[at_++];
  }
  void take(char c) { require(next() == c, kWhat); }
  void skip() {
    while (at_ < text_.size() && kWhiteSpace.find(text_[at_]) != kWhiteSpace.npos) ++at_;
  }

  std::string string() {
    const char quote = next();
    require(quote == '\'' || quote == '"', kWhat);
    std::string out;
    for (char c; (c = next()) != quote;) c == '\\' ? escape(out) : out.push_back(c);
    return out;
  }

  void escape(std::string& out) {
    constexpr std::string_view kNames = "ntrabfv0\\'\"/", kValues("\n\t\r\a\b\f\v\0\\'\"/", 12);
    const char c = next();
    const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      require(kNames.find(c) != kNames.npos, kWhat);
      out += kValues[kNames.find(c)];
      return;
    }
    uint32_t code = 0;
    for (int i = 0; i < digits; ++i) {
      const char digit = next();
      require(std::isxdigit(static_cast<unsigned char>(digit)), kWhat);
      code = code << 4 | (digit <= '9' ? digit - '0' : (digit | 32) - 'a' + 10);
    }
    require(code < 0x110000 && (code < 0xD800 || code > 0xDFFF), kWhat);
    append_utf8(out, code);
  }

  std::string_view text_;
  size_t at_ = 0;
};

Strings answers_of(const json& value) {
  if (!value.is_string()) return value.get<Strings>();
  return PythonList(value.get_ref<const std::string&>()).parse();
}

// The first answer and its aliases, each once.
Strings answers_of(const json& answer, const json& aliases) {
  Strings out{answer.get<std::string>()};
  for (const json& alias : aliases)
    if (const auto text = alias.get<std::string>();
        std::find(out.begin(), out.end(), text) == out.end())
      out.push_back(text);
  return out;
}

void append_passage(std::string& context, int number, std::string_view text) {
  if (!context.empty()) context += '\n';
  context += str("Passage ", number, ":\n", text);
}

std::string text_of(const json& sentences) {
  if (sentences.is_string()) return sentences.get<std::string>();
  std::string text;
  for (const json& sentence : sentences) {
    const auto& next = sentence.get_ref<const std::string&>();
    const bool apart = text.empty() || next.empty() ||
                       kWhiteSpace.find(next[0]) != kWhiteSpace.npos ||
                       kWhiteSpace.find(text.back()) != kWhiteSpace.npos;
    text += apart ? next : " " + next;
  }
  return text;
}

// A row's source: where the file is, and the dataset that it is read as.
struct Source {
  std::string dataset;
  fs::path folder;
};

Item read_longbench(const json& row, const Source& source) {
  const std::string dataset =
      source.dataset.empty() ? row.value("dataset", std::string()) : source.dataset;
  require(!dataset.empty(), "the row names no dataset; pass its name");
  return {row.at("_id").get<std::string>(), dataset, row.at("context").get<std::string>(),
          row.at("input").get<std::string>(), answers_of(row.at("answers"))};
}

// HotpotQA and 2WikiMultihopQA; the test sets have no answer.
Item read_titled_sentences(const json& row, const Source& source) {
  Item item{.dataset = source.dataset, .question = row.at("question").get<std::string>()};
  item.id = row.at(row.contains("_id") ? "_id" : "id").get<std::string>();
  const json& context = row.at("context");
  int number = 0;
  const auto add = [&](const json& title, const json& sentences) {
    append_passage(item.context, ++number, title.get<std::string>() + "\n" + text_of(sentences));
  };
  if (context.is_object())
    for (size_t i = 0; i < context.at("title").size(); ++i)
      add(context.at("title").at(i), context.at("sentences").at(i));
  else
    for (const json& passage : context) add(passage.at(0), passage.at(1));
  if (row.contains("answer")) item.answers = {row.at("answer").get<std::string>()};
  return item;
}

Item read_musique(const json& row, const Source& source) {
  Item item{.id = row.at("id").get<std::string>(),
            .dataset = source.dataset,
            .question = row.at("question").get<std::string>()};
  int number = 0;
  for (const json& paragraph : row.at("paragraphs"))
    append_passage(item.context, ++number,
                   paragraph.at("title").get<std::string>() + "\n" +
                       paragraph.at("paragraph_text").get<std::string>());
  if (row.contains("answer"))
    item.answers = answers_of(row.at("answer"), row.value("answer_aliases", json::array()));
  return item;
}

// The first `count` words of a file, with the white space between them.
std::string first_words(const fs::path& path, size_t count) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), path.string(), " cannot be opened; it is evidence of the row");
  std::string text;
  bool in_word = false;
  constexpr size_t kMaxBytes = size_t{1} << 20;  // evidence is text: 800 words are about 5 KiB
  for (int c; text.size() < kMaxBytes && (c = file.get()) != EOF;) {
    const bool space = kWhiteSpace.find(char(c)) != kWhiteSpace.npos;
    if (space && in_word && --count == 0) break;
    in_word = !space;
    text += char(c);
  }
  require(!file.bad(), path.string(), " cannot be read; it is evidence of the row");
  return std::string(trimmed(text));
}

// A row's block without its answer in `question`, and its answers; see add_shots.
Item read_triviaqa(const json& row, const Source& source) {
  const json& answer = row.at("Answer");
  Item item{.id = row.at("QuestionId").get<std::string>(),
            .dataset = source.dataset,
            .answers = answers_of(answer.at("Value"), answer.value("Aliases", json::array()))};
  fs::path evidence;
  for (const auto& [list, folder] :
       {std::pair{"EntityPages", "wikipedia"}, {"SearchResults", "web"}})
    for (const json& document : row.value(list, json::array()))
      if (evidence.empty() && document.contains("Filename")) {
        const fs::path name = document.at("Filename").get<std::string>();
        require(name.is_relative() && std::find(name.begin(), name.end(), "..") == name.end(),
                "the evidence's file name ", name.string(), " leaves its folder");
        evidence = source.folder / ".." / "evidence" / folder / name;
      }
  require(!evidence.empty(), "the row lists no evidence; use the archive triviaqa-rc");
  item.question = str("Passage:\n", first_words(evidence, kShotWords), "\nQuestion:\n",
                      row.at("Question").get<std::string>(), "\nAnswer:\n");
  return item;
}

// Gives every row the blocks of the rows after it as its few-shot examples.
void add_shots(std::vector<Item>& items) {
  const size_t shots = std::min(kShots, items.size() - 1);
  for (size_t i = 0; i < items.size(); ++i)
    for (size_t k = 1; k <= shots; ++k) {
      const Item& shot = items[(i + k) % items.size()];
      items[i].context += shot.question + shot.answers[0] + "\n";
    }
}

// Multi-News separates stories by |||||, its preprocessed files by a word; LongBench's answers lack
// the dash that every summary starts with.
Item make_multi_news(const std::string& id, std::string_view document, std::string_view summary) {
  Item item{.id = id, .dataset = "multi_news"};
  int number = 0;
  while (!document.empty()) {
    size_t end = document.size(), next = end;
    for (const std::string_view mark : {"|||||", "story_separator_special_tag"})
      if (const size_t at = document.find(mark); at < end) end = at, next = at + mark.size();
    const std::string_view story = trimmed(document.substr(0, end));
    if (!story.empty()) append_passage(item.context, ++number, story);
    document.remove_prefix(next);
  }
  summary = trimmed(summary);
  for (const std::string_view dash : {"–", "-"})
    if (summary.starts_with(dash)) summary = trimmed(summary.substr(dash.size()));
  item.answers = {std::string(summary)};
  return item;
}

std::string id_or(const json& row, const char* otherwise) {
  return row.contains("id") && row["id"].is_string() ? row["id"].get<std::string>() : otherwise;
}

Item read_document(const json& row, const Source& source) {
  const auto document = row.at("document").get<std::string>();
  const auto summary = row.at("summary").get<std::string>();
  const std::string id = id_or(row, "");
  if (source.dataset != "gov_report") return make_multi_news(id, document, summary);
  return {.id = id, .dataset = source.dataset, .context = document, .answers = {summary}};
}

// The paragraphs of sections in sections, or of a list of strings, or one string.
void append_paragraphs(std::string& text, const json& node) {
  if (node.is_string()) {
    const std::string_view paragraph = trimmed(node.get_ref<const std::string&>());
    if (!text.empty() && !paragraph.empty()) text += ' ';
    text += paragraph;
  } else if (node.is_array()) {
    for (const json& part : node) append_paragraphs(text, part);
  } else if (node.is_object()) {
    for (const char* part : {"paragraphs", "subsections"})
      if (node.contains(part)) append_paragraphs(text, node[part]);
  }
}

Item read_report(const json& row, const Source& source) {
  Item item{.id = id_or(row, ""), .dataset = source.dataset, .answers = {""}};
  append_paragraphs(item.context, row.at(row.contains("reports") ? "reports" : "report"));
  append_paragraphs(item.answers[0], row.at(row.contains("highlight") ? "highlight" : "summary"));
  require(!item.context.empty(), "the report holds no paragraph");
  return item;
}

struct Format {
  const char* name;
  const char* dataset;  // empty: the row says
  std::vector<const char*> fields;
  Item (*read)(const json& row, const Source& source);
};

// The first whose fields a row has.
const Format kFormats[] = {
    {"LongBench", "", {"input", "context", "answers"}, read_longbench},
    {"MuSiQue", "musique", {"paragraphs", "question"}, read_musique},
    {"2WikiMultihopQA", "2wikimqa", {"context", "question", "evidences"}, read_titled_sentences},
    {"HotpotQA", "hotpotqa", {"context", "question"}, read_titled_sentences},
    {"TriviaQA", "triviaqa", {"Question", "QuestionId", "Answer"}, read_triviaqa},
    {"Multi-News or GovReport", "multi_news", {"document", "summary"}, read_document},
    {"GovReport (GAO)", "gov_report", {"report", "highlight"}, read_report},
    {"GovReport (CRS)", "gov_report", {"reports", "summary"}, read_report},
    {"GovReport", "gov_report", {"report", "summary"}, read_report},
};

const Format& recognise(const json& row) {
  require(row.is_object(), "a row must be an object, but this is ", row.type_name());
  for (const Format& format : kFormats)
    if (std::all_of(format.fields.begin(), format.fields.end(),
                    [&](const char* field) { return row.contains(field); }))
      return format;
  std::string fields, known;
  for (const auto& [key, value] : row.items())
    if (fields.size() < 200) fields += str(fields.empty() ? "" : ", ", json(key).dump());
  for (const Format& format : kFormats) {
    known += str(known.empty() ? "" : "; ", format.name, " (");
    for (size_t i = 0; i < format.fields.size(); ++i) known += str(i ? ", " : "", format.fields[i]);
    known += ")";
  }
  fail("the row's fields are ", fields.empty() ? "none" : fields, "; known formats are ", known);
}

Item read_row(const json& row, const Format& format, Source source) {
  const std::string dataset = format.dataset;
  const bool open =
      dataset.empty() || (format.read == read_document && source.dataset == "gov_report");
  require(open || source.dataset.empty() || source.dataset == dataset, "the row is of ", dataset,
          ", but ", source.dataset, " was asked for");
  if (!open) source.dataset = dataset;
  return format.read(row, source);
}

// What a file adds to `items`, under a bound on all that they hold.
class Loader {
 public:
  explicit Loader(std::string name) : name_(std::move(name)) {}

  void read_json(const std::string& path) {
    const Source source{name_, fs::path(path).parent_path()};
    RowReader rows(path);
    for (json row; rows.next(row);) {
      try {
        const Format& format = recognise(row);
        if (!format_) format_ = &format;
        require(format.read == format_->read, "the row is of ", format.name,
                ", but the rows before it of ", format_->name);
        add(read_row(row, format, source));
      } catch (const json::exception& error) {
        fail(rows.where(), ": ", error.what());
      } catch (const Error& error) {
        fail(rows.where(), ": ", error.what());
      }
    }
  }

  void read_lines(const std::string& documents, const std::string& summaries) {
    require(name_.empty() || name_ == "multi_news", documents, ": a .src file is Multi-News, but ",
            name_, " was asked for");
    RowReader document_rows(documents), summary_rows(summaries);
    std::string document, summary;
    while (document_rows.next_line(document)) {
      require(summary_rows.next_line(summary), summaries, ": has fewer lines than ", documents);
      add(make_multi_news(str(items_.size() + 1), document, summary));
    }
    require(!summary_rows.next_line(summary), summaries, ": has more lines than ", documents);
  }

  std::vector<Item> finish(const std::string& path) && {
    require(!items_.empty(), path, ": holds no row");
    if (needs_shots()) add_shots(items_);
    return std::move(items_);
  }

 private:
  bool needs_shots() const { return format_ && format_->read == read_triviaqa; }

  void add(Item item) {
    bytes_ += item.context.size() + item.question.size() * (needs_shots() ? 1 + kShots : 1);
    require(bytes_ <= kMaxTextBytes, "the rows hold over ", kMaxTextBytes >> 30,
            " GiB of text; split the file");
    items_.push_back(std::move(item));
  }

  std::string name_;
  const Format* format_ = nullptr;  // of all rows
  std::vector<Item> items_;
  size_t bytes_ = 0;
};

}  // namespace

std::vector<Item> load_dataset(const std::string& path, const std::string& name) {
  Loader loader(name.empty() ? "" : std::string(dataset_traits(name).name));
  const std::string file = fs::path(path).filename().string();
  std::error_code error;
  if (fs::is_directory(path, error)) {
    std::set<std::string> files;
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
      if (it->path().extension() == ".json") files.insert(it->path().string());
    require(!error, path, ": cannot be listed: ", error.message());
    require(!files.empty(), path, ": the folder holds no .json file");
    for (const std::string& each : files) loader.read_json(each);
  } else if (const size_t src = file.rfind(".src"); src != file.npos) {
    std::string summaries = file;
    summaries.replace(src, 4, ".tgt");
    loader.read_lines(path, (fs::path(path).parent_path() / summaries).string());
  } else {
    loader.read_json(path);
  }
  return std::move(loader).finish(path);
}

}  // namespace hypic
