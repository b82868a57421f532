#include "core/chain.h"

#include "core/check.h"

namespace hypic {

void ChainTable::check(int64_t state_slots, int64_t operator_slots, int64_t page_count) const {
  const int32_t R = row_count();
  HYPIC_CHECK(page_size > 0);
  HYPIC_CHECK(positions.size() == tokens.size() && chain_of.size() == tokens.size());
  for (const int32_t page : pages) HYPIC_CHECK(0 <= page && page < page_count, "page ", page);
  for (size_t i = 0; i < logit_rows.size(); ++i)
    HYPIC_CHECK(0 <= logit_rows[i] && logit_rows[i] < R && (i == 0 || logit_rows[i - 1] < logit_rows[i]));

  const auto pages_hold = [&](int32_t page_begin, int32_t token_count) {
    return 0 <= page_begin && page_begin + (token_count + page_size - 1) / page_size <=
                                  static_cast<int32_t>(pages.size());
  };
  int32_t next_item = 0;
  std::vector<int32_t> maker(operator_slots, kNone);  // level of the chain that makes an operator
  for (const Chain& chain : chains) {
    HYPIC_CHECK(chain.item_begin == next_item && next_item <= chain.item_end &&
                    chain.item_end <= static_cast<int32_t>(items.size()),
                "items [", chain.item_begin, ", ", chain.item_end, ")");
    next_item = chain.item_end;
    for (int32_t i = chain.item_begin; i < chain.item_end; ++i)
      if (items[i].kind == ChainItem::Kind::step && items[i].op != kNone) {
        HYPIC_CHECK(0 <= items[i].op && items[i].op < operator_slots, "operator ", items[i].op);
        HYPIC_CHECK(maker[items[i].op] == kNone, "operator ", items[i].op, " made twice");
        maker[items[i].op] = chain.level;
      }
  }
  HYPIC_CHECK(next_item == static_cast<int32_t>(items.size()), "items that no chain has");

  // Chains of a level may run at once, so none may touch a state slot of another.
  std::vector<int32_t> user(state_slots, kNone);  // the chain that touched a state slot last
  const auto use_state = [&](int32_t slot, int32_t c) {
    HYPIC_CHECK(0 <= slot && slot < state_slots, "state slot ", slot);
    HYPIC_CHECK(user[slot] == kNone || user[slot] == c || chains[user[slot]].level < chains[c].level, "state slot ",
                slot, " is used by chains ", user[slot], " and ", c, " of one level");
    user[slot] = c;
  };

  int32_t row = 0, level = 0;
  for (size_t c = 0; c < chains.size(); ++c) {
    const Chain& chain = chains[c];
    HYPIC_CHECK(chain.level >= level, "chains out of order");
    level = chain.level;
    HYPIC_CHECK(chain.row_begin == row && chain.row_end >= row && chain.row_end <= R, "rows of chain ", c);
    use_state(chain.state, static_cast<int32_t>(c));
    HYPIC_CHECK(chain.kv_begin >= 0 && pages_hold(chain.page_begin, chain.kv_begin + chain.row_end - chain.row_begin),
                "pages of chain ", c);
    for (int32_t i = chain.item_begin; i < chain.item_end; ++i) {
      const ChainItem& item = items[i];
      if (item.save != kNone) use_state(item.save, static_cast<int32_t>(c));
      HYPIC_CHECK(item.span >= 0, "span of item ", i);
      if (item.kind == ChainItem::Kind::step) {
        HYPIC_CHECK(item.begin == row && item.end >= row, "step ", i, " begins at ", item.begin,
                    ", expected ", row);
        row = item.end;
      } else {
        HYPIC_CHECK(0 <= item.op && item.op < operator_slots, "jump ", i, " without operator");
        HYPIC_CHECK(item.shift >= 0, "jump ", i, " over a segment that moved by ", item.shift);
        HYPIC_CHECK(maker[item.op] < level, "jump ", i, " over an operator of its own level");
      }
    }
    HYPIC_CHECK(row == chain.row_end, "items of chain ", c, " cover ", row, " of ", chain.row_end);
    for (int32_t r = chain.row_begin; r < chain.row_end; ++r) {
      HYPIC_CHECK(chain_of[r] == static_cast<int32_t>(c), "row ", r);
      HYPIC_CHECK(positions[r] >= (r > chain.row_begin ? positions[r - 1] + 1 : 0), "position of row ", r);
    }
    HYPIC_CHECK(0 <= chain.residue_begin && chain.residue_begin <= chain.residue_end &&
                chain.residue_end <= static_cast<int32_t>(residues.size()));
    for (int32_t i = chain.residue_begin; i < chain.residue_end; ++i) {
      const ResidueRef& residue = residues[i];
      HYPIC_CHECK(0 <= residue.first && residue.first <= residue.last &&
                      pages_hold(residue.page_begin, residue.last), "residue ", i);
      HYPIC_CHECK(i == chain.residue_begin || residues[i - 1].start + residues[i - 1].last <= residue.start,
                  "residue ", i, " begins inside the one before");
    }
  }
  HYPIC_CHECK(row == R, "chains cover ", row, " of ", R, " rows");
}

std::string ChainTable::summary() const {
  int jumps = 0;
  for (const ChainItem& item : items) jumps += item.kind == ChainItem::Kind::jump;
  return str(chains.size(), " chains, ", chains.empty() ? 0 : chains.back().level + 1, " levels, ",
             row_count(), " rows, ", jumps, " jumps");
}

}  // namespace hypic
