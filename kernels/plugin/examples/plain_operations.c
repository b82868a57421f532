/* A kernel plug-in on the CPU: causal convolution, attention and experts as plain loops in float32, sums in double.
 *
 *     cc -std=c99 -O2 -shared -fPIC -Ikernels/plugin kernels/plugin/examples/plain_operations.c -o plain.so -lm
 *     hypic conformance --kernel plain.so */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hypic_kernel.h"

static float* row_of(const DLTensor* t, int64_t r) { return (float*)t->data + r * t->strides[0]; }

static double activated(double x, int32_t activation) {
  switch (activation) {
    case HYPIC_SILU:
      return x / (1 + exp(-x));
    case HYPIC_SIGMOID:
      return 1 / (1 + exp(-x));
    case HYPIC_RELU2:
      return x > 0 ? x * x : 0;
    default:
      return x;
  }
}

/* The window of the last `rows` raw rows, oldest first, takes one more. */
static void push(float* window, int64_t rows, int64_t C, const float* row) {
  if (rows == 0) return;
  memmove(window, window + C, sizeof(float) * (rows - 1) * C);
  memcpy(window + (rows - 1) * C, row, sizeof(float) * C);
}

static void convolve(const hypic_causal_conv* x, const hypic_chains* table, const hypic_chain* chain, float* memory) {
  const int64_t C = x->x->shape[1], W = x->w->shape[1], rows = W - 1;
  const size_t bytes = sizeof(float) * rows * C;
  const float *w = x->w->data, *bias = x->bias ? x->bias->data : NULL;
  float *window = memory, *tail = memory + rows * C, *aside = memory + 2 * rows * C;
  int64_t c, j;
  int32_t i, r;
  memset(window, 0, bytes);
  if (!chain->fresh) memcpy(window, row_of(x->window, chain->state), bytes);
  for (i = chain->item_begin; i < chain->item_end; ++i) {
    const hypic_item* item = &table->items[i];
    if (item->kind == HYPIC_JUMP) { /* what was jumped over came before what follows */
      const int64_t known = item->span < rows ? item->span : rows;
      for (j = rows - known; j < rows; ++j) push(window, rows, C, row_of(x->tail, item->op) + j * C);
    } else {
      memcpy(aside, window, bytes);
      memset(tail, 0, bytes);
      if (item->op >= 0 && item->span > 0) memcpy(tail, row_of(x->tail, item->op), bytes);
      for (r = item->begin; r < item->end; ++r) {
        const float* in = row_of(x->x, r);
        for (c = 0; c < C; ++c) {
          double sum = (bias ? bias[c] : 0) + (double)w[c * W + rows] * in[c];
          for (j = 0; j < rows; ++j) sum += (double)w[c * W + j] * window[j * C + c];
          row_of(x->out, r)[c] = (float)activated(sum, x->activation);
        }
        push(window, rows, C, in);
        push(tail, rows, C, in);
      }
      if (item->op >= 0) memcpy(row_of(x->tail, item->op), tail, bytes);
      if (!item->keep) memcpy(window, aside, bytes);
    }
    if (item->save >= 0) memcpy(row_of(x->window, item->save), window, bytes);
  }
  memcpy(row_of(x->window, chain->state), window, bytes);
}

static int32_t causal_conv(const hypic_call* call, const hypic_causal_conv* x) {
  float* memory = malloc(sizeof(float) * (3 * (x->w->shape[1] - 1) * x->x->shape[1] + 1));
  int32_t c;
  if (!memory) return HYPIC_FAILED;
  for (c = 0; c < call->chains->chain_count; ++c) convolve(x, call->chains, &call->chains->chains[c], memory);
  free(memory);
  return HYPIC_OK;
}

/* The softmax of one row and head so far: its largest logit, the sum of the others relative to it, and the values. */
typedef struct softmax {
  double top, sum;
  double* values;
} softmax;

/* Tokens [first, last) of a page list; `distance`: by how much q is rotated for them. */
static void attend(const hypic_attention* x, const hypic_chains* table, const int32_t* pages, int32_t first,
                   int32_t last, const float* q, int64_t kv_head, double distance, double* rotated, softmax* s) {
  const int64_t D = x->q->shape[2], Dv = x->out->shape[2], half = x->rotary_dim / 2;
  int64_t d;
  int32_t i;
  for (d = 0; d < D; ++d) rotated[d] = q[d];
  for (d = 0; d < half; ++d) {
    const double angle = distance * pow(x->theta, -(double)d / (double)half), c = cos(angle), n = sin(angle);
    rotated[d] = c * q[d] - n * q[d + half];
    rotated[d + half] = n * q[d] + c * q[d + half];
  }
  for (i = first; i < last; ++i) {
    const int64_t page = pages[i / table->page_size], slot = i % table->page_size;
    const float* k = row_of(x->k_pages, page) + slot * x->k_pages->strides[1] + kv_head * x->k_pages->strides[2];
    const float* v = row_of(x->v_pages, page) + slot * x->v_pages->strides[1] + kv_head * x->v_pages->strides[2];
    double logit = 0, p;
    for (d = 0; d < D; ++d) logit += rotated[d] * k[d];
    logit *= x->scale;
    if (logit > s->top) {
      const double less = exp(s->top - logit);
      s->sum *= less;
      for (d = 0; d < Dv; ++d) s->values[d] *= less;
      s->top = logit;
    }
    p = exp(logit - s->top);
    s->sum += p;
    for (d = 0; d < Dv; ++d) s->values[d] += p * v[d];
  }
}

static int32_t attention(const hypic_call* call, const hypic_attention* x) {
  const hypic_chains* table = call->chains;
  const int64_t heads = x->q->shape[1], group = heads / x->k_pages->shape[2], Dv = x->out->shape[2];
  double* rotated = malloc(sizeof(double) * (x->q->shape[2] + Dv));
  int64_t h, d;
  int32_t r, i;
  if (!rotated) return HYPIC_FAILED;
  for (r = 0; r < table->row_count; ++r)
    for (h = 0; h < heads; ++h) {
      const hypic_chain* chain = &table->chains[table->chain_of[r]];
      const int32_t position = table->positions[r];
      const float* q = row_of(x->q, r) + h * x->q->strides[1];
      float* out = row_of(x->out, r) + h * x->out->strides[1];
      softmax s = {-INFINITY, 0, rotated + x->q->shape[2]};
      for (d = 0; d < Dv; ++d) s.values[d] = 0;
      for (i = chain->residue_begin; i < chain->residue_end; ++i) {
        const hypic_residue* residue = &table->residues[i];
        if (position < residue->start + residue->last) break;
        attend(x, table, table->pages + residue->page_begin, residue->first, residue->last, q, h / group,
               position - residue->shift, rotated, &s);
      }
      attend(x, table, table->pages + chain->page_begin, 0, chain->kv_begin + (r - chain->row_begin) + 1, q, h / group,
             position, rotated, &s);
      for (d = 0; d < Dv; ++d) out[d] = (float)(s.values[d] / s.sum);
    }
  free(rotated);
  return HYPIC_OK;
}

static double product(const float* a, const float* b, int64_t n) {
  double sum = 0;
  int64_t i;
  for (i = 0; i < n; ++i) sum += (double)a[i] * b[i];
  return sum;
}

static int32_t experts(const hypic_call* call, const hypic_experts* x) {
  const int64_t R = x->x->shape[0], N = x->x->shape[1], I = x->down->shape[2], k = x->experts->shape[1];
  const int64_t up_rows = x->up->shape[1];
  float* inner = malloc(sizeof(float) * I);
  double* sum = malloc(sizeof(double) * N);
  int64_t r, j, i, n;
  int32_t status;
  (void)call;
  for (r = 0; inner && sum && r < R; ++r) {
    const float* in = row_of(x->x, r);
    for (n = 0; n < N; ++n) sum[n] = 0;
    for (j = 0; j < k; ++j) {
      const int64_t e = ((const int32_t*)x->experts->data)[r * x->experts->strides[0] + j];
      const float *up = row_of(x->up, e), *down = row_of(x->down, e);
      const double weight = row_of(x->weights, r)[j];
      for (i = 0; i < I; ++i) {
        const double first = activated(product(in, up + i * N, N), x->activation);
        inner[i] = (float)(x->gated ? first * product(in, up + (up_rows - I + i) * N, N) : first);
      }
      for (n = 0; n < N; ++n) sum[n] += weight * product(inner, down + n * I, I);
    }
    for (n = 0; n < N; ++n) row_of(x->out, r)[n] = (float)sum[n];
  }
  status = inner && sum ? HYPIC_OK : HYPIC_FAILED;
  free(inner);
  free(sum);
  return status;
}

static const hypic_kernel kPlain = {
    .abi = HYPIC_KERNEL_ABI,
    .struct_size = sizeof(hypic_kernel),
    .name = "plain_operations",
    .devices = HYPIC_BIT(kDLCPU),
    .dtypes = HYPIC_F32,
    .features = HYPIC_STRIDED | HYPIC_JUMPS | HYPIC_OPERATORS | HYPIC_SAVES | HYPIC_BATCH_INVARIANT,
    .causal_conv = causal_conv,
    .attention = attention,
    .experts = experts,
};

const hypic_kernel* hypic_kernel_get(uint32_t abi) { return abi == HYPIC_KERNEL_ABI ? &kPlain : NULL; }
