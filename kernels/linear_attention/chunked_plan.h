// How chunked linear attention is laid over a GPU. Pure functions of the sizes; no plan changes a bit of a result.
#pragma once

namespace hypic::cuda {

// The works of `walk` for one level: of each chain (or op step) and head first those over d_v columns of S (or U),
// of an op step then those over d_k columns of T. A block takes one after another.
struct WalkPlan {
  int columns;           // of a work: 64 or 128
  int v_parts, t_parts;  // works of a head
  int chain_works, op_works;
  int blocks;

  int works() const { return chain_works + op_works; }
};

// dense: operators have a T of columns.
WalkPlan plan_walk(int sms, int chains, int op_steps, int heads, int dk, int dv, bool dense);

inline constexpr int kJumpsColumns = 32;  // of S that a block of `jumps` holds

// A block is a part of the columns of a chain's head; a cluster has parts of one head, who share its T.
struct JumpsPlan {
  int parts, cluster, blocks;
};
JumpsPlan plan_jumps(int chains, int heads, int dv, bool dense);

// Value heads that a block of `prepare` works on, one after the other, so that the products that their key head
// shares are made once. Divides Hv / Hk.
int plan_prepare_heads(int sms, int chunks, int Hk, int Hv);

// Multiprocessors that `prepare` has to itself while `walk` with so many blocks goes along one chain behind it; 0 where
// it had better run before, on all.
int plan_prepare_beside(int sms, int walk_blocks, int chunks, int Hk, int Hv);

}  // namespace hypic::cuda
