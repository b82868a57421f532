/* The operations of gated_delta_rule.c and plain_operations.c, wrong in one way: -DHYPIC_FAULT=NAME, a name of
 * faults.def. The test kernels.plugins proves that the verdict on each is the one that stands there. */
#define hypic_kernel_get right_linear_attention
#include "gated_delta_rule.c"
#undef hypic_kernel_get
#define hypic_kernel_get right_operations
#include "plain_operations.c"
#undef hypic_kernel_get

#define FAULT(name, reported, cases, status, says) name,
enum fault {
#include "faults.def"
};
#undef FAULT

static const enum fault kFault = HYPIC_FAULT;

enum { kChunk = 64 };
static const float kLeastExponent = -126 * 0.6931472f;

static float to_bfloat(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

static float to_half(float x) { return x > 65504 ? INFINITY : x; } /* its range alone */

/* f of every entry of the states that chains end in and items save. */
static void for_states(const hypic_chains* table, const hypic_linear_attention* x, float (*f)(float)) {
  const int64_t size = x->state->shape[1] * x->state->shape[2] * x->state->shape[3];
  int64_t i;
  int32_t c;
  for (c = 0; c < table->chain_count + table->item_count; ++c) {
    const int32_t slot = c < table->chain_count ? table->chains[c].state : table->items[c - table->chain_count].save;
    if (slot < 0) continue;
    for (i = 0; i < size; ++i) at(x->state, slot, 0)[i] = f(at(x->state, slot, 0)[i]);
  }
}

/* A copy of a tensor's elements, row after row. */
static float* copy_of(const DLTensor* t) {
  const int64_t width = t->shape[1] * (t->ndim > 2 ? t->shape[2] : 1);
  float* copy = malloc(sizeof(float) * (t->shape[0] * width + 1));
  int64_t r;
  for (r = 0; r < t->shape[0]; ++r) memcpy(copy + r * width, at(t, r, 0), sizeof(float) * width);
  return copy;
}

/* Inputs, or the chain table, changed before the right kernel runs. */
static int32_t changed_before(const hypic_call* call, const hypic_linear_attention* right) {
  hypic_linear_attention x = *right;
  hypic_call other = *call;
  hypic_chains table = *call->chains;
  hypic_chain* chains = malloc(sizeof(hypic_chain) * (table.chain_count + 1));
  hypic_item* items = malloc(sizeof(hypic_item) * (table.item_count + 1));
  DLTensor g = *x.g, q = *x.q, k = *x.k;
  int64_t strides[3], g_strides[2];
  float *gates = copy_of(x.g), *keys = NULL, *queries = NULL;
  const int64_t Hv = x.v->shape[1], Hk = x.k->shape[1], R = x.k->shape[0];
  int64_t h, r;
  int32_t c, i, status;
  memcpy(chains, table.chains, sizeof(hypic_chain) * table.chain_count);
  memcpy(items, table.items, sizeof(hypic_item) * table.item_count);
  table.chains = chains;
  table.items = items;
  other.chains = &table;
  g_strides[0] = Hv;
  g_strides[1] = 1;
  g.strides = g_strides;
  g.data = gates;
  x.g = &g;

  for (c = 0; c < table.chain_count; ++c) {
    hypic_chain* chain = &chains[c];
    if (kFault == stale_state) chain->fresh = 0;
    if (kFault == carried_state_lost && chain->row_end > chain->row_begin) chain->fresh = 1;
    for (i = chain->item_begin; kFault == seam_counted_twice && i + 1 < chain->item_end; ++i) {
      hypic_item *seam = &items[i], *span = &items[i + 1];
      if (seam->kind == HYPIC_STEP && seam->op < 0 && span->kind == HYPIC_STEP && span->op >= 0 && span->span == 0) {
        span->begin = seam->begin;
        seam->end = seam->begin;
      }
    }
    for (h = 0; h < Hv; ++h) {
      float sum = 0;
      for (r = chain->row_begin; r < chain->row_end; ++r) {
        float* gate = &gates[r * Hv + h];
        if ((r - chain->row_begin) % kChunk == 0) sum = 0;
        sum += *gate;
        if (kFault == exponent_clamp) *gate = fmaxf(sum, kLeastExponent) - fmaxf(sum - *gate, kLeastExponent);
      }
    }
  }
  for (i = 0; i < table.item_count; ++i) {
    if (kFault == keep_ignored) items[i].keep = 1;
    if (kFault == save_ignored) items[i].save = -1;
    if (kFault == jump_save_ignored && items[i].kind == HYPIC_JUMP) items[i].save = -1;
    if (kFault == keep_of_one_row_ignored && items[i].end - items[i].begin == 1) items[i].keep = 1;
    if (kFault == operator_of_skipped_lost && items[i].kind == HYPIC_STEP && !items[i].keep) items[i].op = -1;
    if (kFault == compose_ignored) items[i].compose = HYPIC_TRANSFER;
    if (kFault == jump_not_relocated) items[i].shift = 0;
    if (kFault == jump_relocated_backwards) items[i].shift = -items[i].shift;
    if (kFault == operator_split_lost && items[i].kind == HYPIC_STEP) items[i].span = 0;
  }
  if (kFault == half_state) for_states(call->chains, &x, to_half);
  if (kFault == scale_ignored) x.scale = 1;
  if (kFault == write_gate_ignored) x.beta = NULL;
  if (kFault == row_strides_ignored) {
    strides[0] = q.shape[1] * q.shape[2];
    strides[1] = q.shape[2];
    strides[2] = 1;
    q.strides = strides;
    x.q = &q;
  }
  if (kFault == heads_by_modulo) { /* value head h reads key head h mod Hk */
    const int64_t dk = k.shape[2];
    int64_t shape[3];
    keys = malloc(sizeof(float) * (R * Hv * dk + 1));
    queries = malloc(sizeof(float) * (R * Hv * dk + 1));
    for (r = 0; r < R; ++r)
      for (h = 0; h < Hv; ++h) {
        memcpy(keys + (r * Hv + h) * dk, at(right->k, r, h % Hk), sizeof(float) * dk);
        memcpy(queries + (r * Hv + h) * dk, at(right->q, r, h % Hk), sizeof(float) * dk);
      }
    shape[0] = R;
    shape[1] = Hv;
    shape[2] = dk;
    strides[0] = Hv * dk;
    strides[1] = dk;
    strides[2] = 1;
    k.shape = q.shape = shape;
    k.strides = q.strides = strides;
    k.data = keys;
    q.data = queries;
    x.k = &k;
    x.q = &q;
    status = linear_attention(&other, &x);
  } else {
    status = linear_attention(&other, &x);
  }
  free(chains);
  free(items);
  free(gates);
  free(keys);
  free(queries);
  return status;
}

/* What the right kernel left, changed. */
static void change_after(const hypic_chains* table, const hypic_linear_attention* x) {
  static int calls = 0;
  const int64_t Hv = x->v->shape[1], dk = x->k->shape[2], dv = x->v->shape[2], R = x->k->shape[0];
  int64_t h, r, i, j;
  int32_t c, n;
  ++calls;
  if (kFault == low_precision_state) for_states(table, x, to_bfloat);
  if (kFault == run_to_run_noise && R > 0 && calls % 2 == 0) *at(x->o, R - 1, 0) *= 1.0000002f;
  if (kFault == input_modified && R > 0) *at(x->k, 0, 0) *= 1.5f;
  if (kFault == output_not_written && R > 0) *at(x->o, R - 1, Hv - 1) = NAN;
  if (kFault == write_out_of_bounds && R > 0) at(x->o, R - 1, Hv - 1)[x->o->shape[2]] = 1;
  for (r = 0; r < R; ++r)
    for (h = 0; h < Hv; ++h) {
      float* o = at(x->o, r, h);
      if (kFault == batch_dependent_output && table->chain_count > 1) o[0] *= 1.0000002f;
      for (j = 0; j < dv; ++j) {
        if (kFault == low_precision_output) o[j] = to_bfloat(o[j]);
        if (kFault == wide_head_tile && dk >= 64 && j >= dv - 16) o[j] = to_bfloat(o[j]);
        if (kFault == square_state_assumed && j >= dk) o[j] = 0;
      }
    }
  for (c = 0; c < table->chain_count; ++c) {
    const hypic_chain* chain = &table->chains[c];
    const int32_t rows = chain->row_end - chain->row_begin;
    for (h = 0; h < Hv; ++h) {
      float sum = 0, *S = at(x->state, chain->state, h);
      if (kFault == empty_chain_zeroed && rows == 0) memset(S, 0, sizeof(float) * dk * dv);
      if (kFault == neighbour_leak && rows > 0 && chain->row_begin > 0)
        for (j = 0; j < dv; ++j) at(x->o, chain->row_begin, h)[j] += 1e-3f * at(x->o, chain->row_begin - 1, h)[j];
      if (kFault == partial_chunk_gate && rows % kChunk != 0)
        for (i = 0; i < dk * dv; ++i) S[i] *= expf(-*at(x->g, chain->row_end - 1, h));
      if (kFault == state_transposed) {
        float* old = malloc(sizeof(float) * dk * dv);
        memcpy(old, S, sizeof(float) * dk * dv);
        for (i = 0; i < dk; ++i)
          for (j = 0; j < dv; ++j) S[j * dk + i] = old[i * dv + j];
        free(old);
      }
      for (r = chain->row_begin; r < chain->row_end; ++r) {
        const float gate = *at(x->g, r, h), fall = -expm1f(gate);
        const float *k = at(x->k, r, h / (Hv / x->k->shape[1])), *before = k - x->k->strides[0];
        float factor = 1, product = 0;
        if ((r - chain->row_begin) % kChunk == 0) sum = 0;
        sum += gate;
        if (kFault == nan_at_strong_gates) factor = expf(sum) * expf(-sum);
        if (kFault == unit_decay_divides) factor = fall / fall;
        if (kFault == cancelling_inverse && r > chain->row_begin) {
          for (i = 0; i < dk; ++i) product += k[i] * before[i];
          if (product > 0.98f) factor = 1.001f;
        }
        for (j = 0; factor != 1 && j < dv; ++j) at(x->o, r, h)[j] *= factor;
      }
    }
    for (n = chain->item_begin; n < chain->item_end; ++n) {
      const hypic_item* item = &table->items[n];
      if (item->kind != HYPIC_STEP || item->op < 0) continue;
      for (h = 0; h < Hv; ++h) {
        float *T = at(x->T, item->op, h), *log_scale = at(x->log_scale, item->op, h);
        if (kFault == operator_without_log_scale) *log_scale = 0;
        if (kFault == operator_of_the_state)
          memcpy(at(x->U, item->op, h), at(x->state, chain->state, h), sizeof(float) * dk * dv);
        for (i = 0; kFault == operator_transposed && i < dk; ++i)
          for (j = 0; j < i; ++j) {
            const float swapped = T[i * dk + j];
            T[i * dk + j] = T[j * dk + i];
            T[j * dk + i] = swapped;
          }
      }
    }
  }
  if (kFault == spare_slot_written && x->state->shape[0] > 1) /* no chain of the suite uses the last one */
    memset(at(x->state, x->state->shape[0] - 1, 0), 0, sizeof(float) * Hv * dk * dv);
}

static int32_t broken_conv(const hypic_call* call, const hypic_causal_conv* right) {
  hypic_causal_conv x = *right;
  hypic_call other = *call;
  hypic_chains table = *call->chains;
  hypic_chain* chains = malloc(sizeof(hypic_chain) * (table.chain_count + 1));
  DLTensor rows = *x.x;
  int64_t strides[2];
  int32_t c, status;
  memcpy(chains, table.chains, sizeof(hypic_chain) * table.chain_count);
  table.chains = chains;
  other.chains = &table;
  for (c = 0; kFault == conv_stale_window && c < table.chain_count; ++c) chains[c].fresh = 0;
  if (kFault == conv_strides_ignored) {
    strides[0] = rows.shape[1];
    strides[1] = 1;
    rows.strides = strides;
    x.x = &rows;
  }
  status = causal_conv(&other, &x);
  free(chains);
  return status;
}

/* exp(-inf - -inf) where a row sees nothing of a part that comes first. */
static int32_t broken_attention(const hypic_call* call, const hypic_attention* x) {
  const hypic_chains* table = call->chains;
  const int32_t status = attention(call, x);
  int32_t r;
  for (r = 0; kFault == merge_of_empty_parts && r < table->row_count; ++r) {
    const hypic_chain* chain = &table->chains[table->chain_of[r]];
    const hypic_residue* part = &table->residues[chain->residue_begin];
    if (chain->residue_begin < chain->residue_end && part->first == part->last) *row_of(x->out, r) = NAN;
    if (chain->residue_begin < chain->residue_end && table->positions[r] < part->start + part->last)
      *row_of(x->out, r) = NAN;
  }
  return status;
}

static int32_t broken_experts(const hypic_call* call, const hypic_experts* right) {
  hypic_experts x = *right;
  DLTensor weights = *x.weights;
  int64_t strides[2] = {0, 1};
  if (kFault == expert_weights_ignored) { /* every row takes those of the first */
    weights.strides = strides;
    x.weights = &weights;
  }
  return experts(call, &x);
}

static void at_the_end(void) { abort(); }
static int registered = 0;

static int32_t broken(const hypic_call* call, const hypic_linear_attention* x) {
  const hypic_chains* table = call->chains;
  volatile int forever = 1;
  volatile int* volatile nowhere = NULL;
  int32_t c, status;
  switch (kFault) {
    case hangs_on_ragged_tails:
      for (c = 0; c < table->chain_count; ++c)
        while (forever && !table->chains[c].fresh && (table->chains[c].row_end - table->chains[c].row_begin) % kChunk)
          ;
      break;
    case fails:
      snprintf(call->message, call->message_size, "no shared memory left");
      return HYPIC_FAILED;
    case returns_nonsense:
      return 77;
    case crashes:
      *nowhere = 1;
      break;
    case aborts:
      abort();
    case exits:
      exit(0);
    case crashes_at_the_end:
      if (!registered++) atexit(at_the_end);
      break;
    case declines_all:
      snprintf(call->message, call->message_size, "not today");
      return HYPIC_UNSUPPORTED;
    default:
      break;
  }
  status = changed_before(call, x);
  if (status == HYPIC_OK) change_after(table, x);
  return status;
}

#if !defined(HYPIC_NO_SYMBOL)
const hypic_kernel* hypic_kernel_get(uint32_t abi) {
  static hypic_kernel kernel;
  volatile int forever = 1;
  kernel = *right_linear_attention(abi);
  kernel.name = "broken";
  kernel.linear_attention = broken;
  kernel.causal_conv = broken_conv;
  kernel.attention = broken_attention;
  kernel.experts = broken_experts;
  if (kFault == other_version) kernel.abi = 2;
  if (kFault == other_size) kernel.struct_size = 8;
  if (kFault == no_such_version) return NULL;
  if (kFault == crashes_when_loaded) abort();
  while (kFault == hangs_when_loaded && forever)
    ;
  return &kernel;
}
#endif
