/* The C ABI of a kernel plug-in: a shared library that replaces some operations of a backend. C99.
 *
 * The library exports one function,
 *
 *     const hypic_kernel* hypic_kernel_get(uint32_t abi);
 *
 * which returns a table that stays valid, or NULL where it does not speak version `abi`. What the table does not offer
 * or does not take, by its declared capabilities or by HYPIC_UNSUPPORTED, the backend computes itself. Meanings,
 * shapes and letters are those of core/backend.h, core/chain.h and core/transfer_operator.h, repeated here in short;
 * docs/bring-your-own-kernel.md begins with an example.
 *
 * Every operation
 *   - enqueues its work on call->stream and returns (CUDA), or is done when it returns (CPU, stream NULL);
 *   - returns HYPIC_OK; HYPIC_UNSUPPORTED, before it has written or enqueued anything; or HYPIC_FAILED. With the latter
 *     two it may leave a reason in call->message;
 *   - writes outputs in full, nothing else, and no input: outputs begin as NaN, memory around them is watched;
 *   - leaves the same bits when it is run again from the same memory.
 *
 * Tensors are DLPack's: strides in elements and never NULL, byte_offset 0. The last axis is contiguous; rows (the first
 * axis) of activations may be apart where HYPIC_STRIDED is declared. Absent tensors are NULL. Operands have the
 * backend's compute dtype; states, operators, gates and weights of experts' outputs its state dtype: float32, or
 * float64 with operands in float64. Letters: R rows, Hk and Hv key and value heads, S state slots. */
#pragma once

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HYPIC_KERNEL_ABI 1u

/* What an operation returns. */
enum { HYPIC_OK = 0, HYPIC_UNSUPPORTED = 1, HYPIC_FAILED = 2 };

/* The chain table: what one forward computes. A chain is a list of items in prompt order. A step runs rows
 * [begin, end) from the current state; a jump applies operator `op` to it. -1 is "none" everywhere. */
enum { HYPIC_STEP = 0, HYPIC_JUMP = 1 };

/* How a jump changes the state: S <- T S + U, S + U, U, 0. */
enum { HYPIC_TRANSFER = 0, HYPIC_ADD = 1, HYPIC_LAST = 2, HYPIC_ZERO = 3 };

typedef struct hypic_item {
  int32_t kind;    /* HYPIC_STEP or HYPIC_JUMP */
  int32_t compose; /* of a jump */
  int32_t keep;    /* step; 0: gives outputs, but state and convolution window stay as before it */
  int32_t begin, end;
  int32_t op;    /* operator slot; step: receives the operator of its rows; jump: is applied */
  int32_t span;  /* step with op: tokens that the slot already holds, 0: it begins here; jump: tokens jumped over */
  int32_t shift; /* jump: positions by which the segment moved since it was built, >= 0; hundreds of thousands occur */
  int32_t save;  /* state slot that receives state and window after this item */
} hypic_item;

typedef struct hypic_chain {
  int32_t level; /* chains of a level may run at once; jumps read operators of lower levels */
  int32_t item_begin, item_end;
  int32_t row_begin, row_end;
  int32_t state;      /* state slot: read unless fresh, written at the end */
  int32_t fresh;      /* 1: starts from zero state and an empty window */
  int32_t page_begin; /* attention: its own tokens' pages, into `pages` */
  int32_t kv_begin;   /* own tokens that are in them already: row r is own token kv_begin + (r - row_begin) */
  int32_t residue_begin, residue_end;
} hypic_chain;

/* K, V of a reused segment's tokens [first, last). Local token i is in page pages[page_begin + i / page_size]. Rows at
 * positions >= start + last see all of it, earlier ones none; Q is rotated by its position less shift, which may be
 * below 0. */
typedef struct hypic_residue {
  int32_t page_begin, first, last, start, shift;
} hypic_residue;

typedef struct hypic_chains {
  int32_t chain_count, item_count, residue_count, page_count, row_count;
  int32_t page_size;         /* tokens a page */
  const hypic_chain* chains; /* by rising level */
  const hypic_item* items;
  const hypic_residue* residues;
  const int32_t* pages;
  const int32_t* positions; /* [R] */
  const int32_t* chain_of;  /* [R] */
} hypic_chains;

typedef struct hypic_call {
  DLDevice device;
  void* stream;                  /* the cudaStream_t on CUDA; NULL on the CPU */
  const hypic_chains* chains;    /* in host memory, for this call */
  const hypic_chains* on_device; /* the same, its arrays in the device's memory until the stream gets there */
  char* message;                 /* room for message_size bytes, of which the first is 0 */
  size_t message_size;
} hypic_call;

/* Cells of linear attention, A = the transition of a token: D the decay, then update.
 * Per value head S <- A S + c d^T with c = k, d = beta v; value head h reads key head h / (Hv / Hk). */
enum { HYPIC_DECAY_NONE = 0, HYPIC_DECAY_SCALAR = 1, HYPIC_DECAY_DIAGONAL = 2, HYPIC_DECAY_ELEMENTWISE = 3 };
/* add: A = D; delta: A = (I - a b^T) D; delta_before: A = D - a b^T; a is k and b is beta k where absent. */
enum { HYPIC_UPDATE_ADD = 0, HYPIC_UPDATE_DELTA = 1, HYPIC_UPDATE_DELTA_BEFORE = 2 };
/* plain: o = S^T q; bonus: before the update, plus (sum q u k) d; normalised: the last value column divides; bounded:
 * the same with max(|.|, 1); softmax: over the key axis, its logits the leading value columns. q is scaled wherever it
 * is read. */
enum {
  HYPIC_READOUT_PLAIN = 0,
  HYPIC_READOUT_BONUS = 1,
  HYPIC_READOUT_NORMALISED = 2,
  HYPIC_READOUT_BOUNDED = 3,
  HYPIC_READOUT_SOFTMAX = 4
};
enum { HYPIC_SIDE_KEY = 0, HYPIC_SIDE_VALUE = 1 };
enum {
  HYPIC_OPERATOR_IDENTITY = 0,
  HYPIC_OPERATOR_SCALAR = 1,
  HYPIC_OPERATOR_DIAGONAL = 2,
  HYPIC_OPERATOR_ELEMENTWISE = 3,
  HYPIC_OPERATOR_DENSE = 4
};

typedef struct hypic_linear_attention {
  int32_t decay, update, readout, side;
  double scale;
  const DLTensor* q;    /* [R, Hk, d_k] */
  const DLTensor* k;    /* [R, Hk, d_k] */
  const DLTensor* v;    /* [R, Hv, d_v] */
  const DLTensor* g;    /* log decay: scalar [R, Hv], diagonal [R, Hv, d_k], elementwise [R, Hv, d_v] */
  const DLTensor* A;    /* elementwise [Hv, d_k, d_v]: the log decay of an entry is g A */
  const DLTensor* beta; /* [R, Hv] or NULL: 1 */
  const DLTensor* a;    /* [R, Hv, d_k] or NULL */
  const DLTensor* b;    /* [R, Hv, d_k] or NULL */
  const DLTensor* u;    /* [Hv, d_k] of bonus */
  const DLTensor* skip; /* [Hv] or NULL: o += skip v */
  DLTensor* o;          /* [R, Hv, d_o] */
  DLTensor* state;      /* [S, Hv, d_k, d_v]; side value: of the transposed state */
  /* Operators by slot, S <- exp(log_scale) T S + U. T: diagonal [., Hv, d_k], elementwise [., Hv, d_k, d_v], dense
   * [., Hv, d_k, d_k]. log_scale [., Hv] where the decay is scalar and the update is not delta_before: T is then
   * without it. */
  int32_t operator_kind;
  int32_t rotary_dim; /* > 0: keys carry RoPE in pairs (i, i + rotary_dim / 2), a jump rotates T and U by its shift */
  double rope_theta;
  DLTensor* log_scale;
  DLTensor* T;
  DLTensor* U; /* [., Hv, d_k, d_v] */
} hypic_linear_attention;

enum { HYPIC_IDENTITY = 0, HYPIC_SILU = 1, HYPIC_SIGMOID = 2, HYPIC_RELU2 = 3 }; /* relu2: max(x, 0)^2 */

/* out_t = activation(bias + sum_j w[., j] x_{t-W+1+j}) over chains. */
typedef struct hypic_causal_conv {
  const DLTensor* x;    /* [R, C] */
  const DLTensor* w;    /* [C, W] */
  const DLTensor* bias; /* [C] or NULL */
  int32_t activation;
  DLTensor* window; /* [S, W - 1, C] state slots: the last raw rows, oldest first; zero where nothing came before */
  DLTensor* tail;   /* [operators, W - 1, C] or NULL: the last raw rows of an operator's span, at the end */
  DLTensor* out;    /* [R, C] */
} hypic_causal_conv;

/* Softmax attention of each row over the residues it sees and its chain's own tokens up to itself. q comes without its
 * rotation, K in pages with theirs; pairs (i, i + rotary_dim / 2), angle position theta^(-2 i / rotary_dim). */
typedef struct hypic_attention {
  const DLTensor* q;       /* [R, Hq, D] */
  const DLTensor* k_pages; /* [P, page size, Hkv, D] */
  const DLTensor* v_pages; /* [P, page size, Hkv, Dv], tokens and heads may be strided */
  int32_t rotary_dim;
  double theta, scale;
  DLTensor* out; /* [R, Hq, Dv] */
} hypic_attention;

/* out[r] = sum_j weights[r, j] down_e (activation(gate_e x) * up_e x), e = experts[r, j]; ungated: activation(up_e x).
 */
typedef struct hypic_experts {
  const DLTensor* x;       /* [R, N] */
  const DLTensor* experts; /* [R, k] int32 */
  const DLTensor* weights; /* [R, k] state dtype */
  const DLTensor* up;      /* [E, 2 I, N]: of each expert the rows of its gate, then of its up; ungated [E, I, N] */
  const DLTensor* down;    /* [E, N, I] */
  int32_t gated, activation;
  DLTensor* out; /* [R, N] */
} hypic_experts;

/* Capabilities. */
#define HYPIC_BIT(value) (1u << (value))
enum { HYPIC_F32 = 1, HYPIC_F64 = 2, HYPIC_BF16 = 4 }; /* of operands */
enum {
  HYPIC_STRIDED = 1,          /* rows of activations may be apart */
  HYPIC_JUMPS = 2,            /* jumps */
  HYPIC_OPERATORS = 4,        /* steps that receive an operator */
  HYPIC_SAVES = 8,            /* items with save, steps without keep */
  HYPIC_ROTATED_KEYS = 16,    /* jumps with rotary_dim > 0 */
  HYPIC_GROUPED_HEADS = 32,   /* Hv > Hk */
  HYPIC_VALUE_SIDE = 64,      /* side value */
  HYPIC_OTHER_VECTORS = 128,  /* a or b given */
  HYPIC_SKIP = 256,           /* skip given */
  HYPIC_BATCH_INVARIANT = 512 /* a promise: a row has the same bits alone and in any batch, a sequence in any split */
};

typedef struct hypic_kernel {
  uint32_t abi;         /* HYPIC_KERNEL_ABI */
  uint32_t struct_size; /* sizeof(hypic_kernel) */
  const char* name;     /* at most 64 printable characters */
  uint32_t devices;     /* HYPIC_BIT(kDLCPU) | HYPIC_BIT(kDLCUDA) */
  uint32_t dtypes;
  uint32_t features;
  uint32_t decays, updates, readouts; /* of linear_attention: HYPIC_BIT(HYPIC_DECAY_SCALAR) | ... */
  /* NULL: not offered. */
  int32_t (*linear_attention)(const hypic_call*, const hypic_linear_attention*);
  int32_t (*causal_conv)(const hypic_call*, const hypic_causal_conv*);
  int32_t (*attention)(const hypic_call*, const hypic_attention*);
  int32_t (*experts)(const hypic_call*, const hypic_experts*);
} hypic_kernel;

const hypic_kernel* hypic_kernel_get(uint32_t abi);

#ifdef __cplusplus
}
#endif
