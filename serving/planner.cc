#include "serving/planner.h"

#include <algorithm>

#include "core/check.h"

namespace hypic {
namespace {

// An item before it is given rows.
struct Draft {
  ChainItem item;
  const int32_t* tokens = nullptr;  // step
  int32_t count = 0;
  int32_t position = 0;
};

struct ChainDraft {
  int32_t level = 0;
  int32_t state = kNone;
  bool fresh = true;
  int32_t own = 0;  // own tokens in the pages before it
  const std::vector<int32_t>* pages = nullptr;
  std::vector<PagedResidue> residues;
  std::vector<Draft> items;
  int32_t request = kNone;  // its last row's logits are wanted
  uint64_t label = 0;

  void step(const Tokens& tokens, int32_t begin, int32_t end, int32_t start, bool keep = true,
            int32_t op = kNone) {
    if (begin == end) return;
    Draft draft;
    draft.item.keep = keep;
    draft.item.op = op;
    draft.tokens = tokens.data() + begin;
    draft.count = end - begin;
    draft.position = start + begin;
    items.push_back(draft);
  }
  void jump(Compose compose, int32_t op, int32_t span, int32_t shift) {
    Draft draft;
    draft.item.kind = ChainItem::Kind::jump;
    draft.item.compose = compose;
    draft.item.op = op;
    draft.item.span = span;
    draft.item.shift = shift;
    items.push_back(draft);
  }
};

// Lays chains out in tables of at most max_rows rows, cutting steps where a table is full.
class Packer {
 public:
  Packer(int32_t page_size, int32_t max_rows) : page_size_(page_size), max_rows_(max_rows) {
    HYPIC_CHECK(max_rows > 0);
    start_table();
  }

  void add(const ChainDraft& draft) {
    draft_ = &draft;
    own_ = draft.own;
    fresh_ = draft.fresh;
    open_chain();
    for (const Draft& item : draft.items) {
      if (item.item.kind == ChainItem::Kind::jump)
        table().items.push_back(item.item);
      else
        add_step(item);
    }
    if (draft.request != kNone) {
      table().logit_rows.push_back(table().row_count() - 1);
      owners_.back().push_back(draft.request);
    }
    close_chain();
  }

  void finish(std::vector<ChainTable>& tables, std::vector<std::vector<int32_t>>& owners) {
    if (tables_.back().chains.empty()) {
      tables_.pop_back();
      owners_.pop_back();
    }
    tables = std::move(tables_);
    owners = std::move(owners_);
  }

 private:
  ChainTable& table() { return tables_.back(); }
  int32_t room() { return max_rows_ - table().row_count(); }

  void start_table() {
    tables_.emplace_back().page_size = page_size_;
    owners_.emplace_back();
  }

  void open_chain() {
    ChainTable& t = table();
    Chain chain;
    chain.level = draft_->level;
    chain.item_begin = static_cast<int32_t>(t.items.size());
    chain.row_begin = t.row_count();
    chain.state = draft_->state;
    chain.fresh = fresh_;
    chain.page_begin = static_cast<int32_t>(t.pages.size());
    chain.kv_begin = own_;
    t.pages.insert(t.pages.end(), draft_->pages->begin(), draft_->pages->end());
    chain.residue_begin = static_cast<int32_t>(t.residues.size());
    for (const PagedResidue& residue : draft_->residues) {
      t.residues.push_back(residue.ref);
      t.residues.back().page_begin = static_cast<int32_t>(t.pages.size());
      t.pages.insert(t.pages.end(), residue.pages.begin(), residue.pages.end());
    }
    chain.residue_end = static_cast<int32_t>(t.residues.size());
    t.chains.push_back(chain);
    t.labels.push_back(draft_->label);
  }

  void close_chain() {
    Chain& chain = table().chains.back();
    chain.item_end = static_cast<int32_t>(table().items.size());
    chain.row_end = table().row_count();
    own_ += chain.row_end - chain.row_begin;
    fresh_ = false;
  }

  void next_table() {
    close_chain();
    start_table();
    open_chain();
  }

  void add_step(const Draft& draft) {
    // A step that leaves no state cannot be continued from one, so it stays whole.
    if (!draft.item.keep && draft.count > room() && table().row_count() > 0) next_table();
    for (int32_t done = 0; done < draft.count;) {
      if (room() <= 0 && draft.item.keep) next_table();
      const int32_t rows = draft.item.keep ? std::min(room(), draft.count - done) : draft.count;
      ChainTable& t = table();
      ChainItem item = draft.item;
      item.begin = t.row_count();
      item.end = item.begin + rows;
      if (item.op != kNone) item.span = done;
      if (done + rows < draft.count) item.save = kNone;
      for (int32_t i = done; i < done + rows; ++i) {
        t.tokens.push_back(draft.tokens[i]);
        t.positions.push_back(draft.position + i);
        t.chain_of.push_back(static_cast<int32_t>(t.chains.size()) - 1);
      }
      t.items.push_back(item);
      done += rows;
    }
  }

  const int32_t page_size_, max_rows_;
  std::vector<ChainTable> tables_;
  std::vector<std::vector<int32_t>> owners_;
  const ChainDraft* draft_ = nullptr;
  int32_t own_ = 0;
  bool fresh_ = true;
};

// FNV-1a of a segment's tokens; the top bit keeps it apart from the numbers of requests.
uint64_t label_of(const Tokens& tokens) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const int32_t token : tokens) hash = (hash ^ static_cast<uint32_t>(token)) * 0x100000001b3;
  return hash | uint64_t{1} << 63;
}

class Planner {
 public:
  explicit Planner(const PlanInput& input) : in_(input), mode_(input.mode) {}

  Plan run() {
    std::vector<ChainDraft> drafts;
    for (size_t i = 0; i < in_.builds.size(); ++i) drafts.push_back(isolated(i));
    for (size_t i = 0; i < in_.requests.size(); ++i) drafts.push_back(request(i));
    Packer packer(in_.page_size, in_.max_rows);
    for (const ChainDraft& draft : drafts) packer.add(draft);
    packer.finish(plan_.tables, plan_.logit_owners);
    return std::move(plan_);
  }

 private:
  ChainDraft isolated(size_t index) {
    const Build& build = in_.builds[index];
    const Residue& residue = in_.residues[build.residue];
    const int32_t n = residue.length, last = n - mode_.tail;
    const int32_t first = in_.faults.seam_counted_twice ? 0 : mode_.operator_first();
    HYPIC_CHECK(static_cast<int32_t>(build.tokens.size()) == n && first < last);
    ChainDraft draft;
    draft.state = build.state;
    draft.fresh = !in_.faults.state_not_cleared;
    draft.pages = &residue.pages;
    draft.label = label_of(build.tokens);
    if (in_.faults.built_in_context && index > 0) {
      const Residue& before = in_.residues[in_.builds[index - 1].residue];
      draft.level = static_cast<int32_t>(index);
      draft.residues.push_back(
          {{0, 0, before.length, -before.length, -before.length}, before.pages});
      draft.jump(Compose::transfer, before.op, before.length, 0);
    }
    draft.step(build.tokens, 0, first, 0);
    draft.step(build.tokens, first, last, 0, true, residue.op);
    draft.step(build.tokens, last, n, 0);
    plan_.counters.isolated += n;
    return draft;
  }

  ChainDraft request(size_t index) {
    const PlanRequest& request = in_.requests[index];
    HYPIC_CHECK(!request.segments.empty() && request.segments.back().residue == kNone &&
                    !request.segments.back().tokens.empty(),
                "a request ends in a question");
    ChainDraft draft;
    draft.level = 1 + (in_.faults.built_in_context ? static_cast<int32_t>(in_.builds.size()) : 0);
    draft.state = request.state;
    draft.fresh = request.fresh && !in_.faults.state_not_cleared;
    draft.own = request.prefix;
    draft.pages = &request.pages;
    draft.request = static_cast<int32_t>(index);
    draft.label = index;
    plan_.counters.prefix += request.prefix;
    int32_t start = request.prefix, misses = 0;
    for (const PlanSegment& segment : request.segments) {
      const int32_t n = static_cast<int32_t>(segment.tokens.size());
      if (segment.residue == kNone) {
        draft.step(segment.tokens, 0, n, start);
        plan_.counters.context += n;
      } else {
        misses += is_build(segment.residue);
        reuse(draft, segment, start, is_build(segment.residue) && misses > 1);
      }
      if (segment.save != kNone) {
        HYPIC_CHECK(!draft.items.empty(), "nothing before the state to save");
        draft.items.back().item.save = segment.save;
      }
      start += n;
    }
    plan_.residues.push_back(draft.residues);
    return draft;
  }

  // head seam ⇢ jump ⇢ tail seam
  void reuse(ChainDraft& draft, const PlanSegment& segment, int32_t start, bool later_miss) {
    const Residue& residue = in_.residues[segment.residue];
    const int32_t n = residue.length, last = n - mode_.tail;
    HYPIC_CHECK(static_cast<int32_t>(segment.tokens.size()) == n && mode_.head < last);
    const int32_t span = last - mode_.operator_first();
    int32_t shift = mode_.rotate == Rotate::on         ? start
                    : mode_.rotate == Rotate::built_at ? residue.built_at
                                                       : 0;
    if (in_.faults.keys_not_rotated) shift = 0;
    const bool head_counts = mode_.compose == Compose::transfer;
    draft.step(segment.tokens, 0, mode_.head, start, head_counts);
    if (!(in_.faults.addition_first_miss && mode_.compose == Compose::add && later_miss))
      draft.jump(mode_.compose, residue.op, in_.faults.window_lost ? 0 : span, shift);
    draft.step(segment.tokens, last, n, start);
    draft.residues.push_back({{0, mode_.head, last, start, shift}, residue.pages});
    plan_.counters.seam += mode_.head + mode_.tail;
    plan_.counters.jumped += last - mode_.head;
    plan_.counters.jumps += 1;
    if (shift != 0) plan_.counters.rotated += last - mode_.head;
  }

  bool is_build(int32_t residue) const {
    return std::any_of(in_.builds.begin(), in_.builds.end(),
                       [&](const Build& build) { return build.residue == residue; });
  }

  const PlanInput& in_;
  const Mode& mode_;
  Plan plan_;
};

}  // namespace

Counters& Counters::operator+=(const Counters& other) {
  isolated += other.isolated;
  seam += other.seam;
  context += other.context;
  prefix += other.prefix;
  jumped += other.jumped;
  jumps += other.jumps;
  rotated += other.rotated;
  return *this;
}

// The last row of one and the row before the other, where its chain may be opened, lie max_rows apart.
int32_t BuildStates::next(int64_t tokens) {
  const auto free = std::find_if(ends_.begin(), ends_.end(),
                                 [&](int64_t end) { return rows_ - end >= max_rows_; });
  const auto state = static_cast<int32_t>(free - ends_.begin());
  rows_ += tokens;
  if (free == ends_.end())
    ends_.push_back(rows_);
  else
    *free = rows_;
  return state;
}

Plan plan_prefill(const PlanInput& input) { return Planner(input).run(); }

ChainTable plan_decode(const std::vector<DecodeRow>& rows, int32_t page_size) {
  Packer packer(page_size, static_cast<int32_t>(std::max<size_t>(rows.size(), 1)));
  for (size_t i = 0; i < rows.size(); ++i) {
    const DecodeRow& row = rows[i];
    ChainDraft draft;
    draft.state = row.state;
    draft.fresh = false;
    draft.own = row.own;
    draft.pages = row.pages;
    draft.residues = *row.residues;
    draft.request = static_cast<int32_t>(i);
    const Tokens token = {row.token};
    draft.step(token, 0, 1, row.position);
    packer.add(draft);
  }
  std::vector<ChainTable> tables;
  std::vector<std::vector<int32_t>> owners;
  packer.finish(tables, owners);
  HYPIC_CHECK(tables.size() == 1);
  return std::move(tables[0]);
}

void join(ChainTable& table, const ChainTable& more) {
  HYPIC_CHECK(table.page_size == more.page_size && (table.chains.empty() || table.chains.back().level == 0));
  const auto size = [](const auto& list) { return static_cast<int32_t>(list.size()); };
  const int32_t rows = table.row_count(), chains = size(table.chains), items = size(table.items),
                residues = size(table.residues), pages = size(table.pages);
  const auto behind = [](auto& to, auto from, const auto& move) {
    for (auto& element : from) move(element);
    to.insert(to.end(), from.begin(), from.end());
  };
  behind(table.chains, more.chains, [&](Chain& chain) {
    for (int32_t* item : {&chain.item_begin, &chain.item_end}) *item += items;
    for (int32_t* row : {&chain.row_begin, &chain.row_end}) *row += rows;
    for (int32_t* residue : {&chain.residue_begin, &chain.residue_end}) *residue += residues;
    chain.page_begin += pages;
  });
  behind(table.items, more.items, [&](ChainItem& item) {
    if (item.kind != ChainItem::Kind::step) return;
    item.begin += rows;
    item.end += rows;
  });
  behind(table.residues, more.residues, [&](ResidueRef& residue) { residue.page_begin += pages; });
  behind(table.chain_of, more.chain_of, [&](int32_t& chain) { chain += chains; });
  behind(table.logit_rows, more.logit_rows, [&](int32_t& row) { row += rows; });
  const auto same = [](const auto&) {};
  behind(table.pages, more.pages, same);
  behind(table.tokens, more.tokens, same);
  behind(table.positions, more.positions, same);
  behind(table.labels, more.labels, same);
}

}  // namespace hypic
