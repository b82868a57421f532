#include "datasets/tasks.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <utility>

#include "core/check.h"
#include "core/philox.h"

namespace hypic {
namespace {

constexpr std::string_view kTaskNames[] = {"fact", "two_hop", "headlines", "figures", "distance", "latest"};

// Beyond so many documents, `headlines` asks for the first word of each only.
constexpr int kWholeHeadlines = 8;
// So many documents does `figures` ask for.
constexpr int kFigures = 4;

// What a value is. All are two words or two two-digit numbers; every word has one use.
enum class Kind { title, person, place, figure };

constexpr std::string_view kTitleFirst[] = {"Amber", "Azure", "Bold",  "Brave", "Calm",  "Cold", "Coral", "Dark",
                                            "Deep",  "Dusty", "Early", "Faded", "Fair",  "Gold", "Grand", "Green",
                                            "Grey",  "High",  "Iron",  "Ivory", "Jade",  "Keen", "Light", "Lost",
                                            "Lunar", "Misty", "Noble", "Olive", "Pale",  "Pink", "Proud", "Quiet",
                                            "Rapid", "Royal", "Rusty", "Salt",  "Sharp", "Silk", "Solar", "Steel"};
constexpr std::string_view kTitleSecond[] = {
    "Anchor", "Apple", "Arrow",  "Barrel", "Basket", "Beacon", "Bear",  "Bell",  "Boat",  "Bridge",
    "Candle", "Crane", "Crown",  "Drum",   "Eagle",  "Falcon", "Fox",   "Harp",  "Hawk",  "Heron",
    "Horse",  "Kite",  "Ladder", "Lamp",   "Lion",   "Mirror", "Moon",  "Otter", "Owl",   "Pearl",
    "Raven",  "River", "Rose",   "Shell",  "Ship",   "Spear",  "Tiger", "Tower", "Whale", "Wolf"};
constexpr std::string_view kPersonFirst[] = {
    "Ada",  "Alan",  "Anna", "Ben",  "Carl", "Clara", "Cora", "Dan",   "Dora", "Edna", "Ella", "Emil",  "Erik", "Eva",
    "Finn", "Flora", "Hugo", "Ida",  "Ivan", "Jack",  "Jane", "Joan",  "Lars", "Lena", "Leo",  "Maria", "Mona", "Nina",
    "Nora", "Otto",  "Paul", "Rita", "Rosa", "Ruth",  "Sara", "Simon", "Tina", "Tom",  "Vera", "Wanda"};
constexpr std::string_view kPersonSecond[] = {
    "Abbot", "Baker", "Barnes", "Bond",  "Brook", "Carter", "Chase", "Cole", "Cooper", "Cross",
    "Dale",  "Dixon", "Drake",  "Ellis", "Ford",  "Foster", "Grant", "Hall", "Harris", "Hart",
    "Hayes", "Holt",  "Hunt",   "Lane",  "Lloyd", "Marsh",  "Mason", "Moss", "Nash",   "Parker",
    "Reed",  "Rice",  "Shaw",   "Stone", "Tate",  "Turner", "Ward",  "Webb", "Wood",   "Young"};
constexpr std::string_view kPlaceFirst[] = {"Black", "Broad", "Cape",   "East", "Far",   "Fort",  "Great", "Holy",
                                            "Inner", "Lake",  "Little", "Long", "Lower", "Mount", "New",   "North",
                                            "Outer", "Point", "Port",   "Red",  "Saint", "South", "Upper", "West"};
constexpr std::string_view kPlaceSecond[] = {
    "Alton",  "Arden",  "Barrow", "Benton", "Canton", "Corby",  "Dalton", "Dover",  "Elgin",  "Harlow", "Kendal",
    "London", "Luton",  "Milton", "Newton", "Norton", "Oxford", "Paris",  "Ripon",  "Selby",  "Stoke",  "Sutton",
    "Truro",  "Walton", "York",   "Bergen", "Boston", "Lisbon", "Madrid", "Vienna", "Warsaw", "Weston"};

constexpr std::string_view kRelations[][4] = {
    {},
    {"captain", "owner", "author", "doctor"},
    {"home", "school", "office", "market"},
    {"price", "weight", "total", "length"},
};
// Wordings of a sentence or question; %1, %2, … are filled in. A value comes after what it is found by.
using Wordings = std::string_view[3];
// %1 relation, %2 subject, %3 value
constexpr Wordings kTold = {" The %1 of %2 is %3.", " %2 has the %1 %3.", " For %2 the %1 is %3."};
constexpr Wordings kToldNow = {" The %1 of %2 is now %3.", " %2 has now the %1 %3.", " For %2 the %1 is now %3."};
// %1 relation, %2 subject; by kind
constexpr Wordings kAskFact[] = {
    {},
    {"Who is the %1 of %2?", "For %2, who is the %1?", "Give the %1 of %2."},
    {"Where is the %1 of %2?", "For %2, where is the %1?", "Give the %1 of %2."},
    {"What is the %1 of %2?", "For %2, what is the %1?", "Give the %1 of %2."},
};
// %1 relation of the person, %2 relation that names the person, %3 thing
constexpr Wordings kAskHop = {"Where is the %1 of the %2 of %3?", "For the %2 of %3, where is the %1?",
                              "Give the %1 of the %2 of %3."};
// %1 "all headlines" or "the first words of all headlines"
constexpr Wordings kAskHeadlines = {"List %1 in order.", "In order, what are %1?", "Give %1 in order."};
// %1 what, %2 headline
constexpr Wordings kAskHeadlinesAfter = {"List %1 after %2 in order.", "In order, what are %1 after %2?",
                                         "Give %1 after %2 in order."};
// %1 relation, %2 headlines
constexpr Wordings kAskFigures = {"Give the %1 of each of %2.", "What is the %1 of each of %2?",
                                  "For each of %2, what is the %1?"};
// %1 "after" or "before", %2 headline
constexpr Wordings kAskNeighbour = {"Which headline comes right %1 %2?", "Give the headline right %1 %2.",
                                    "What comes right %1 %2?"};
// %1 "latest" or "first", %2 relation, %3 thing
constexpr Wordings kAskOneOf = {"What is the %1 %2 of %3?", "For %3, what is the %1 %2?", "Give the %1 %2 of %3."};

constexpr std::string_view kFiller[] = {
    " Rain fell.",
    " It was late.",
    " People came and went.",
    " The wind was very low.",
    " It was a good day.",
    " Then the sun came out.",
    " A dog slept by the door.",
    " The road was long and dry.",
    " Many letters were sent that week.",
    " There was bread on the table.",
    " The clock on the wall had stopped.",
    " They talked about the rain and the road.",
    " In the evening there was music by the fire.",
    " The door was open and the wind came in.",
    " A good week went by and then the snow came.",
    " Many people said that it was very late for snow.",
};

// A stream of random numbers of one row.
class Random {
 public:
  Random(uint64_t seed, uint64_t index, uint32_t stream)
      : counter_{0, uint32_t(index), uint32_t(index >> 32), stream}, key_{uint32_t(seed), uint32_t(seed >> 32)} {}

  int below(int n) {
    if (at_ == 4) {
      block_ = philox(counter_, key_);
      ++counter_[0];
      at_ = 0;
    }
    return int(uint64_t(block_[at_++]) * uint32_t(n) >> 32);
  }
  int between(int low, int high) { return low + below(high - low + 1); }
  template <class T, size_t n>
  const T& of(const T (&all)[n]) {
    return all[below(int(n))];
  }
  template <class T>
  void shuffle(std::vector<T>& all) {
    for (int i = int(all.size()) - 1; i > 0; --i) std::swap(all[i], all[below(i + 1)]);
  }

 private:
  std::array<uint32_t, 4> counter_, block_{};
  std::array<uint32_t, 2> key_;
  int at_ = 4;
};

// The numbers of first and second parts of a kind.
std::pair<int, int> sizes_of(Kind kind) {
  switch (kind) {
    case Kind::title:
      return {int(std::size(kTitleFirst)), int(std::size(kTitleSecond))};
    case Kind::person:
      return {int(std::size(kPersonFirst)), int(std::size(kPersonSecond))};
    case Kind::place:
      return {int(std::size(kPlaceFirst)), int(std::size(kPlaceSecond))};
    case Kind::figure:
      break;
  }
  return {90, 100};  // 10 00 to 99 99
}

// One pair of eight is of the test split, without any rule that a model could learn.
TaskSplit split_of(Kind kind, int first, int second) {
  return philox({uint32_t(first), uint32_t(second), uint32_t(kind), 0}, {6, 8})[0] % 8 == 0 ? TaskSplit::test
                                                                                            : TaskSplit::train;
}

std::string two_digits(int n) { return {char('0' + n / 10), char('0' + n % 10)}; }

// The values that a row uses, each once: of the split, and while there are any, with parts that no
// other value of the row has, so that a part is enough to tell them apart.
class Values {
 public:
  Values(TaskSplit split, Random& random) : split_(split), random_(random) {}

  std::string draw(Kind kind) {
    const auto [firsts, seconds] = sizes_of(kind);
    auto& [pairs, used_first, used_second] = used_[int(kind)];
    for (int attempt = 0;; ++attempt) {
      const int first = random_.below(firsts), second = random_.below(seconds);
      if (split_of(kind, first, second) != split_) continue;
      if (attempt < 3 * kPatience && pairs.contains({first, second})) continue;
      if (attempt < 2 * kPatience && used_first.contains(first)) continue;
      if (attempt < kPatience && used_second.contains(second)) continue;
      pairs.insert({first, second});
      used_first.insert(first);
      used_second.insert(second);
      return text_of(kind, first, second);
    }
  }

 private:
  static constexpr int kPatience = 1000;

  static std::string text_of(Kind kind, int first, int second) {
    const auto words = [](std::string_view a, std::string_view b) { return str(a, " ", b); };
    switch (kind) {
      case Kind::title:
        return words(kTitleFirst[first], kTitleSecond[second]);
      case Kind::person:
        return words(kPersonFirst[first], kPersonSecond[second]);
      case Kind::place:
        return words(kPlaceFirst[first], kPlaceSecond[second]);
      case Kind::figure:
        break;
    }
    return two_digits(10 + first) + two_digits(second);
  }

  struct Used {
    std::set<std::pair<int, int>> pairs;
    std::set<int> first, second;
  };
  TaskSplit split_;
  Random& random_;
  std::array<Used, 4> used_;
};

// "The `relation` of `subject` is `value`".
struct Fact {
  std::string subject;
  std::string_view relation;
  Kind kind;
  std::string value;
};

struct Document {
  std::string headline;
  std::vector<std::string> sentences;  // what must be in it
};

class RowMaker {
 public:
  RowMaker(Task task, const TaskShape& shape, TaskSplit split, uint64_t seed, uint64_t index, const CountTokens& count)
      : shape_(shape),
        count_(count),
        random_(seed, index,
                uint32_t(task) | uint32_t(split) << 3 | uint32_t(shape.segments) << 4 | uint32_t(shape.tokens) << 12),
        more_(seed, index, 0x80000000u | uint32_t(task)),
        values_(split, random_) {
    for (const std::string_view sentence : kFiller) filler_tokens_.push_back(int(count(sentence)));
    training_ = split == TaskSplit::train;
    uneven_ = training_ && more_.below(2) == 0;
  }

  TaskRow make(Task task) {
    switch (task) {
      case Task::fact:
        add_titles();
        add_facts();
        break;
      case Task::two_hop:
        make_two_hop();
        break;
      case Task::headlines:
        add_titles();
        ask_headlines();
        add_facts();
        break;
      case Task::figures:
        make_figures();
        break;
      case Task::distance:
        add_titles();
        ask_neighbours();
        add_facts();
        break;
      case Task::latest:
        make_latest();
        break;
    }
    random_.shuffle(facts_);
    for (const Fact& fact : facts_) ask(kAskFact[int(fact.kind)], {fact.relation, fact.subject}, fact.value);
    TaskRow row;
    for (const Document& document : documents_) row.documents.push_back(written(document));
    row.questions = std::move(questions_);
    return row;
  }

 private:
  // How many facts a document has room for, its headline and a filler sentence aside.
  int facts_of_document() const { return std::clamp(shape_.tokens / 16, 1, 4); }

  void add_titles() {
    for (int i = 0; i < shape_.segments; ++i) documents_.push_back({values_.draw(Kind::title), {}});
  }

  // A fact of `kind` about the document, its sentence put in.
  Fact add_fact(Document& document, Kind kind, std::string_view relation) {
    Fact fact{document.headline, relation, kind, values_.draw(kind)};
    document.sentences.push_back(worded(kTold, {relation, fact.subject, fact.value}));
    return fact;
  }

  // One of the wordings, filled in.
  std::string worded(const Wordings& wordings, std::initializer_list<std::string_view> parts) {
    const std::string_view wording = random_.of(wordings);
    std::string text;
    for (size_t i = 0; i < wording.size(); ++i) {
      if (wording[i] == '%')
        text += parts.begin()[wording[++i] - '1'];
      else
        text += wording[i];
    }
    return text;
  }

  void ask(const Wordings& wordings, std::initializer_list<std::string_view> parts, std::string_view answer) {
    questions_.push_back({str("Question: ", worded(wordings, parts), " Answer:"), str(" ", answer, ".")});
  }

  // Facts of any kind for all documents, up to their room, to be asked for in the end.
  void add_facts() {
    std::vector<std::pair<Kind, std::string_view>> all;
    for (const Kind kind : {Kind::person, Kind::place, Kind::figure})
      for (const std::string_view relation : kRelations[int(kind)]) all.emplace_back(kind, relation);
    for (Document& document : documents_) {
      random_.shuffle(all);
      for (int i = 0; i < facts_of_document(); ++i) facts_.push_back(add_fact(document, all[i].first, all[i].second));
    }
  }

  // More facts for a document, of one kind and not of the relation that it has already.
  void add_facts(Document& document, Kind kind) {
    for (const std::string_view relation : kRelations[int(kind)]) {
      const bool has = std::any_of(document.sentences.begin(), document.sentences.end(), [&](const std::string& told) {
        return told.find(str(" ", relation, " ")) != told.npos;
      });
      if (!has && std::ssize(document.sentences) < facts_of_document())
        facts_.push_back(add_fact(document, kind, relation));
    }
  }

  void ask_headlines() {
    const bool whole = shape_.segments <= kWholeHeadlines;
    std::string answer;
    for (const Document& document : documents_) {
      if (!answer.empty()) answer += ", ";
      answer += whole ? document.headline : document.headline.substr(0, document.headline.find(' '));
    }
    ask(kAskHeadlines, {whole ? "all headlines" : "the first words of all headlines"}, answer);
    // To train on: the rest of the list after a headline, which a document's number does not tell.
    std::vector<int> starts;
    for (int i = 0; i + 1 < shape_.segments; ++i) starts.push_back(i);
    more_.shuffle(starts);
    starts.resize(training_ ? std::min<size_t>(starts.size(), 3) : 0);
    for (const int start : starts) {
      std::string rest;
      for (int i = start + 1; i < shape_.segments; ++i) {
        if (!rest.empty()) rest += ", ";
        rest += whole ? documents_[i].headline : documents_[i].headline.substr(0, documents_[i].headline.find(' '));
      }
      ask(kAskHeadlinesAfter, {whole ? "all headlines" : "the first words of all headlines", documents_[start].headline},
          rest);
    }
  }

  // Of each two neighbours one is asked for by the other.
  void ask_neighbours() {
    std::vector<int> order;
    for (int i = 1; i < shape_.segments; ++i) order.push_back(i);
    random_.shuffle(order);
    for (const int i : order) {
      const bool after = random_.below(2) == 0;
      const std::string &given = documents_[after ? i - 1 : i].headline,
                        &wanted = documents_[after ? i : i - 1].headline;
      ask(kAskNeighbour, {after ? "after" : "before", given}, wanted);
    }
  }

  void make_figures() {
    add_titles();
    const std::string_view relation = random_.of(kRelations[int(Kind::figure)]);
    std::vector<Fact> facts;
    for (Document& document : documents_) facts.push_back(add_fact(document, Kind::figure, relation));
    random_.shuffle(facts);
    // All in groups, the last one smaller.
    for (int begin = 0; begin < shape_.segments; begin += kFigures) {
      std::string titles, answer;
      for (int i = begin; i < std::min(begin + kFigures, shape_.segments); ++i) {
        const std::string_view separator = i > begin ? ", " : "";
        titles += str(separator, facts[i].subject);
        answer += str(separator, facts[i].subject, " ", facts[i].value);
      }
      ask(kAskFigures, {relation, titles}, answer);
    }
    for (Document& document : documents_) add_facts(document, Kind::person);
  }

  // Documents of things, and documents of the persons that they name.
  void make_two_hop() {
    std::vector<std::pair<Fact, Fact>> hops;
    for (int i = 0; i < shape_.segments / 2; ++i) {
      Document thing{values_.draw(Kind::title), {}};
      const Fact first = add_fact(thing, Kind::person, random_.of(kRelations[int(Kind::person)]));
      add_facts(thing, Kind::figure);
      Document person{first.value, {}};
      const Fact second = add_fact(person, Kind::place, random_.of(kRelations[int(Kind::place)]));
      add_facts(person, Kind::place);
      hops.emplace_back(first, second);
      documents_.push_back(std::move(thing));
      documents_.push_back(std::move(person));
    }
    if (shape_.segments % 2 == 1) {
      documents_.push_back({values_.draw(Kind::title), {}});
      add_facts(documents_.back(), Kind::figure);
    }
    random_.shuffle(documents_);
    random_.shuffle(hops);
    for (const auto& [first, second] : hops) {
      // The answer spells the bridge out and then says what the second document says.
      const std::string answer = str(first.value, ". The ", second.relation, " of ", first.value, " is ", second.value);
      ask(kAskHop, {second.relation, first.relation, first.subject}, answer);
    }
  }

  void make_latest() {
    add_titles();
    const std::string_view relation = random_.of(kRelations[int(Kind::figure)]);
    const int room = std::min(facts_of_document(), 2);
    // More than a document names, so that the latest value need not be in the last one.
    const int things = std::max(room + (shape_.segments > 2), shape_.segments * room * 2 / 5);
    struct Thing {
      std::string name;
      std::vector<std::string> values;
    };
    std::vector<Thing> all(things);
    for (Thing& thing : all) thing.name = values_.draw(Kind::title);
    for (Document& document : documents_) {
      std::vector<int> order(things);
      for (int i = 0; i < things; ++i) order[i] = i;
      random_.shuffle(order);
      for (int i = 0; i < room; ++i) {
        Thing& thing = all[order[i]];
        const std::string& value = thing.values.emplace_back(values_.draw(Kind::figure));
        document.sentences.push_back(worded(kToldNow, {relation, thing.name, value}));
      }
    }
    std::erase_if(all, [](const Thing& thing) { return thing.values.size() < 2; });  // nothing to tell apart
    random_.shuffle(all);
    for (const std::string_view which : {"latest", "first"}) {
      for (const Thing& thing : all) {
        const std::string& value = which == "latest" ? thing.values.back() : thing.values.front();
        ask(kAskOneOf, {which, relation, thing.name}, value);
      }
    }
  }

  // Headline, sentences and filler among them up to the size. Sizes vary, so that places do not
  // follow from numbers.
  std::string written(const Document& document) {
    const int shortest = *std::min_element(filler_tokens_.begin(), filler_tokens_.end());
    HYPIC_CHECK(shortest > 0);
    const int least = (shape_.tokens * 85 + 99) / 100 + shortest - 1;  // filler may leave so much out
    int left = random_.between(least, std::max(least, shape_.tokens + shape_.tokens / 10));
    const std::string head = str("# ", document.headline, ".");
    if (uneven_) left += more_.between(-shape_.tokens * 2 / 5, shape_.tokens * 2 / 5);
    left -= int(count_(head)) + int(count_("\n"));
    std::vector<std::string_view> sentences(document.sentences.begin(), document.sentences.end());
    for (const std::string_view sentence : sentences) left -= int(count_(sentence));
    while (left >= shortest) {
      const int i = random_.below(int(std::size(kFiller)));
      if (filler_tokens_[i] > left) continue;
      left -= filler_tokens_[i];
      sentences.push_back(kFiller[i]);
    }
    random_.shuffle(sentences);
    std::string text = head;
    for (const std::string_view sentence : sentences) text += sentence;
    return text + "\n";
  }

  TaskShape shape_;
  const CountTokens& count_;
  Random random_, more_;  // the latter of what is in training rows only
  bool training_ = false, uneven_ = false;
  Values values_;
  std::vector<int> filler_tokens_;
  std::vector<Document> documents_;
  std::vector<Fact> facts_;  // to be asked for after the questions of the task
  std::vector<TaskQuestion> questions_;
};

}  // namespace

std::string_view task_name(Task task) { return kTaskNames[int(task)]; }

Task task_named(std::string_view name) {
  for (const Task task : kTasks)
    if (task_name(task) == name) return task;
  std::string known;
  for (const Task task : kTasks) known += str(known.empty() ? "" : ", ", task_name(task));
  fail("no task is called \"", name, "\"; known: ", known);
}

TaskRow task_row(Task task, const TaskShape& shape, TaskSplit split, uint64_t seed, uint64_t index,
                 const CountTokens& count, int questions) {
  require(shape.segments >= 2 && shape.segments <= 32, "a task of ", shape.segments, " documents: give 2 to 32");
  require(shape.tokens >= 16 && shape.tokens <= 4096, "documents of ", shape.tokens, " tokens: give 16 to 4096");
  TaskRow row = RowMaker(task, shape, split, seed, index, count).make(task);
  if (questions < std::ssize(row.questions)) row.questions.resize(std::max(questions, 1));
  row.id = str(task_name(task), "/", split == TaskSplit::train ? "train" : "test", "/", seed, "/", shape.segments, "x",
               shape.tokens, "/", index);
  return row;
}

}  // namespace hypic
