#include "core/chain.h"

#include <gtest/gtest.h>

#include <functional>

#include "core/check.h"

namespace hypic {
namespace {

// A segment of 6 tokens prefilled alone (operator 1), and a request that reuses it and a cached
// segment of 10 (operator 0) before a question of 2.
ChainTable valid_table() {
  ChainTable t;
  t.page_size = 4;
  t.chains = {{.level = 0,
               .item_begin = 0,
               .item_end = 2,
               .row_begin = 0,
               .row_end = 6,
               .state = 0,
               .page_begin = 0},
              {.level = 1,
               .item_begin = 2,
               .item_end = 6,
               .row_begin = 6,
               .row_end = 10,
               .state = 1,
               .page_begin = 2,
               .residue_begin = 0,
               .residue_end = 2}};
  using enum ChainItem::Kind;
  t.items = {
      {.kind = step, .begin = 0, .end = 1}, {.kind = step, .begin = 1, .end = 6, .op = 1},
      {.kind = step, .begin = 6, .end = 7}, {.kind = jump, .op = 1, .span = 5},
      {.kind = jump, .op = 0, .span = 10},  {.kind = step, .begin = 7, .end = 10, .save = 2}};
  t.residues = {{.page_begin = 0, .first = 1, .last = 6, .start = 0, .shift = 0},
                {.page_begin = 3, .first = 0, .last = 10, .start = 6, .shift = 6}};
  t.pages = {0, 1, 2, 3, 4, 5};
  t.tokens.assign(10, 7);
  t.positions = {0, 1, 2, 3, 4, 5, 0, 16, 17, 18};
  t.chain_of = {0, 0, 0, 0, 0, 0, 1, 1, 1, 1};
  t.logit_rows = {5, 9};
  return t;
}

constexpr int kStates = 3, kOperators = 2, kPages = 6;

TEST(ChainTableCheck, AcceptsAValidTable) {
  const ChainTable table = valid_table();
  EXPECT_NO_THROW(table.check(kStates, kOperators, kPages));
  EXPECT_EQ(table.summary(), "2 chains, 2 levels, 10 rows, 2 jumps");
  EXPECT_NO_THROW(ChainTable().check(0, 0, 0));
  EXPECT_EQ(ChainTable().summary(), "0 chains, 0 levels, 0 rows, 0 jumps");
}

TEST(ChainTableCheck, CountsSlotsAndPages) {
  const ChainTable table = valid_table();
  EXPECT_THROW(table.check(kStates - 1, kOperators, kPages), InternalError);
  EXPECT_THROW(table.check(kStates, kOperators - 1, kPages), InternalError);
  EXPECT_THROW(table.check(kStates, kOperators, kPages - 1), InternalError);
}

struct Broken {
  const char* rule;
  std::function<void(ChainTable&)> change;
};

TEST(ChainTableCheck, RefusesEachContradiction) {
  const std::vector<Broken> all = {
      {"page size", [](auto& t) { t.page_size = 0; }},
      {"a position for each row", [](auto& t) { t.positions.pop_back(); }},
      {"a chain for each row", [](auto& t) { t.chain_of.push_back(1); }},
      {"page number negative", [](auto& t) { t.pages[5] = -1; }},
      {"logit row past the end", [](auto& t) { t.logit_rows[1] = 10; }},
      {"logit row negative", [](auto& t) { t.logit_rows[0] = -1; }},
      {"logit rows descending",
       [](auto& t) {
         t.logit_rows = {9, 5};
       }},
      {"logit row twice",
       [](auto& t) {
         t.logit_rows = {5, 5};
       }},
      {"levels descending", [](auto& t) { t.chains[0].level = 2; }},
      {"level negative", [](auto& t) { t.chains[0].level = -1; }},
      {"rows of a chain overlap", [](auto& t) { t.chains[1].row_begin = 5; }},
      {"rows of a chain end before they begin", [](auto& t) { t.chains[0].row_end = -1; }},
      {"rows of a chain past the end", [](auto& t) { t.chains[1].row_end = 11; }},
      {"rows that no chain has", [](auto& t) { t.chains[1].row_end = t.items[5].end = 9; }},
      {"no state slot", [](auto& t) { t.chains[0].state = kNone; }},
      {"state slot past the end", [](auto& t) { t.chains[1].state = kStates; }},
      {"save slot past the end", [](auto& t) { t.items[5].save = kStates; }},
      {"save slot negative", [](auto& t) { t.items[5].save = -2; }},
      {"two chains of a level in one slot",
       [](auto& t) {
         t.items[3].op = 0;
         t.chains[1].level = 0;
         t.chains[1].state = 0;
       }},
      {"a chain saves into the slot of another of its level",
       [](auto& t) {
         t.items[3].op = 0;
         t.chains[1].level = 0;
         t.items[5].save = 0;
       }},
      {"own pages too few", [](auto& t) { t.chains[1].kv_begin = 13; }},
      {"own pages past the end", [](auto& t) { t.chains[1].page_begin = 6; }},
      {"own pages negative", [](auto& t) { t.chains[0].page_begin = -1; }},
      {"own tokens negative", [](auto& t) { t.chains[0].kv_begin = -6; }},
      {"items past the end", [](auto& t) { t.chains[1].item_end = 7; }},
      {"items far past the end", [](auto& t) { t.chains[1].item_end = 1 << 30; }},
      {"items negative", [](auto& t) { t.chains[0].item_begin = -1; }},
      {"items end before they begin", [](auto& t) { t.chains[0].item_end = -1; }},
      {"item that no chain has",
       [](auto& t) { t.items.push_back({.kind = ChainItem::Kind::jump, .op = 0}); }},
      {"item of two chains",
       [](auto& t) {
         t.chains[0].item_end = 3;
         t.chains[0].row_end = 7;
         t.chain_of[6] = 0;
       }},
      {"step over rows of another", [](auto& t) { t.items[1].begin = 0; }},
      {"step that leaves a gap", [](auto& t) { t.items[5].begin = 8; }},
      {"step that ends before it begins", [](auto& t) { t.items[0].end = -1; }},
      {"steps past the rows of the chain", [](auto& t) { t.items[1].end = 7; }},
      {"operator of a step past the end", [](auto& t) { t.items[1].op = kOperators; }},
      {"operator of a step negative", [](auto& t) { t.items[1].op = -2; }},
      {"operator made twice", [](auto& t) { t.items[0].op = 1; }},
      {"jump without operator", [](auto& t) { t.items[3].op = kNone; }},
      {"operator of a jump past the end", [](auto& t) { t.items[4].op = kOperators; }},
      {"jump over an operator of its own level", [](auto& t) { t.chains[1].level = 0; }},
      {"jump before its operator is made", [](auto& t) { t.items[5].op = 0; }},
      {"span negative", [](auto& t) { t.items[3].span = -1; }},
      {"segment moved backwards", [](auto& t) { t.items[4].shift = -1; }},
      {"row of another chain", [](auto& t) { t.chain_of[6] = 0; }},
      {"position repeated", [](auto& t) { t.positions[8] = 16; }},
      {"position negative", [](auto& t) { t.positions[0] = -1; }},
      {"residues past the end", [](auto& t) { t.chains[1].residue_end = 3; }},
      {"residues negative", [](auto& t) { t.chains[1].residue_begin = -1; }},
      {"residues end before they begin", [](auto& t) { t.chains[1].residue_end = -1; }},
      {"residue ends before it begins", [](auto& t) { t.residues[0].first = 7; }},
      {"residue begins before its segment", [](auto& t) { t.residues[0].first = -1; }},
      {"pages of a residue too few", [](auto& t) { t.residues[1].last = 13; }},
      {"pages of a residue negative", [](auto& t) { t.residues[0].page_begin = -1; }},
      {"residues out of order", [](auto& t) { std::swap(t.residues[0], t.residues[1]); }},
      {"residue inside another", [](auto& t) { t.residues[1].start = 5; }},
  };
  for (const Broken& broken : all) {
    ChainTable table = valid_table();
    broken.change(table);
    EXPECT_THROW(table.check(kStates, kOperators, kPages), InternalError) << broken.rule;
  }
}

// Chains of different levels may pass a state slot on.
TEST(ChainTableCheck, ALaterLevelMayContinueASlot) {
  ChainTable table = valid_table();
  table.chains[1].state = 0;
  EXPECT_NO_THROW(table.check(kStates, kOperators, kPages));
}

}  // namespace
}  // namespace hypic
