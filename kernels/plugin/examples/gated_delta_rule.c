/* A kernel plug-in on the CPU: the gated delta rule, token by token in float32,
 *     S <- e^g S,  S <- S + beta k (v - S^T k)^T,  o = scale S^T q
 * over every chain table: steps, jumps, operators.
 *
 *     cc -std=c99 -O2 -shared -fPIC -Ikernels/plugin kernels/plugin/examples/gated_delta_rule.c -o gdr.so -lm
 *     hypic conformance --kernel gdr.so --family gated_delta_net */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hypic_kernel.h"

/* Element [i, j] of a tensor's first two axes. */
static float* at(const DLTensor* t, int64_t i, int64_t j) {
  return (float*)t->data + i * t->strides[0] + j * t->strides[1];
}

/* One value head of one layer. */
typedef struct head {
  const hypic_linear_attention* x;
  int64_t h, kh, dk, dv;
  float *S, *aside, *row; /* [dk, dv], [dk, dv], [max(dk, dv)] */
} head;

/* x <- e^g x + change. For slow decays expm1 carries the digits: a rounded e^g drifts over long prompts. */
static float decayed(float e, int slow, float x, float change) { return slow ? x + (e * x + change) : e * x + change; }

/* M [dk, n] <- (I - beta k k^T) e^g M + beta k v^T, without v the first part alone. */
static void advance(const head* w, int64_t r, float g, float* M, int64_t n, const float* v) {
  const float* k = at(w->x->k, r, w->kh);
  const float beta = w->x->beta ? *at(w->x->beta, r, w->h) : 1;
  const int slow = g > -0.5f;
  const float e = slow ? expm1f(g) : expf(g);
  int64_t i, j;
  for (j = 0; j < n; ++j) w->row[j] = 0;
  for (i = 0; i < w->dk; ++i)
    for (j = 0; j < n; ++j) w->row[j] += k[i] * decayed(e, slow, M[i * n + j], 0);
  for (j = 0; j < n; ++j) w->row[j] = beta * ((v ? v[j] : 0) - w->row[j]);
  for (i = 0; i < w->dk; ++i)
    for (j = 0; j < n; ++j) M[i * n + j] = decayed(e, slow, M[i * n + j], k[i] * w->row[j]);
}

static void read_out(const head* w, int64_t r) {
  const float* q = at(w->x->q, r, w->kh);
  float* o = at(w->x->o, r, w->h);
  int64_t i, j;
  for (j = 0; j < w->dv; ++j) o[j] = 0;
  for (i = 0; i < w->dk; ++i)
    for (j = 0; j < w->dv; ++j) o[j] += q[i] * w->S[i * w->dv + j];
  for (j = 0; j < w->dv; ++j) o[j] *= (float)w->x->scale;
}

/* The operator of rows [begin, end) into its slot: T without its decay, which log_scale holds; U from zero. */
static void capture(const head* w, const hypic_item* item) {
  float* T = at(w->x->T, item->op, w->h);
  float* U = at(w->x->U, item->op, w->h);
  float* log_scale = at(w->x->log_scale, item->op, w->h);
  int64_t i;
  int32_t r;
  if (item->span == 0) {
    memset(T, 0, sizeof(float) * w->dk * w->dk);
    memset(U, 0, sizeof(float) * w->dk * w->dv);
    for (i = 0; i < w->dk; ++i) T[i * w->dk + i] = 1;
    *log_scale = 0;
  }
  for (r = item->begin; r < item->end; ++r) {
    const float g = *at(w->x->g, r, w->h);
    advance(w, r, g, U, w->dv, at(w->x->v, r, w->h));
    advance(w, r, 0, T, w->dk, NULL);
    *log_scale += g;
  }
}

/* Rows (i, i + rotary_dim / 2) of M [dk, dv], turned by `shift` positions. */
static void turn(const head* w, float* M, double shift) {
  const int half = w->x->rotary_dim / 2;
  int64_t j;
  int i;
  for (i = 0; i < half; ++i) {
    const double angle = shift * pow(w->x->rope_theta, -(double)i / half);
    const float c = (float)cos(angle), s = (float)sin(angle);
    float *low = M + i * w->dv, *high = M + (i + half) * w->dv;
    for (j = 0; j < w->dv; ++j) {
      const float a = low[j], b = high[j];
      low[j] = c * a - s * b;
      high[j] = s * a + c * b;
    }
  }
}

/* The segment's keys moved by R, so T becomes R T R^T and U becomes R U. */
static void jump(const head* w, const hypic_item* item) {
  const int64_t dk = w->dk, dv = w->dv;
  const float *T, *U;
  const double shift = w->x->rotary_dim > 0 ? item->shift : 0;
  int64_t i, j, m;
  if (item->compose == HYPIC_ZERO) {
    memset(w->S, 0, sizeof(float) * dk * dv);
    return;
  }
  U = at(w->x->U, item->op, w->h);
  memcpy(w->aside, U, sizeof(float) * dk * dv);
  if (item->compose == HYPIC_TRANSFER) {
    const float scale = expf(*at(w->x->log_scale, item->op, w->h));
    T = at(w->x->T, item->op, w->h);
    turn(w, w->S, -shift);
    for (i = 0; i < dk; ++i)
      for (m = 0; m < dk; ++m)
        for (j = 0; j < dv; ++j) w->aside[i * dv + j] += scale * T[i * dk + m] * w->S[m * dv + j];
  }
  turn(w, w->aside, shift);
  for (i = 0; i < dk * dv; ++i) w->S[i] = w->aside[i] + (item->compose == HYPIC_ADD ? w->S[i] : 0);
}

static void step(const head* w, const hypic_item* item) {
  const size_t bytes = sizeof(float) * w->dk * w->dv;
  int32_t r;
  if (!item->keep) memcpy(w->aside, w->S, bytes);
  for (r = item->begin; r < item->end; ++r) {
    advance(w, r, *at(w->x->g, r, w->h), w->S, w->dv, at(w->x->v, r, w->h));
    read_out(w, r);
  }
  if (!item->keep) memcpy(w->S, w->aside, bytes);
  if (item->op >= 0) capture(w, item);
}

static void run_chain(const head* w, const hypic_chains* table, const hypic_chain* chain) {
  const size_t bytes = sizeof(float) * w->dk * w->dv;
  int32_t i;
  if (chain->fresh)
    memset(w->S, 0, bytes);
  else
    memcpy(w->S, at(w->x->state, chain->state, w->h), bytes);
  for (i = chain->item_begin; i < chain->item_end; ++i) {
    const hypic_item* item = &table->items[i];
    if (item->kind == HYPIC_JUMP)
      jump(w, item);
    else
      step(w, item);
    if (item->save >= 0) memcpy(at(w->x->state, item->save, w->h), w->S, bytes);
  }
  memcpy(at(w->x->state, chain->state, w->h), w->S, bytes);
}

static int32_t linear_attention(const hypic_call* call, const hypic_linear_attention* x) {
  const hypic_chains* table = call->chains;
  head w;
  int64_t Hv;
  int32_t c;
  w.x = x;
  w.dk = x->k->shape[2];
  w.dv = x->v->shape[2];
  Hv = x->v->shape[1];
  if (w.dk < 1 || w.dv < 1) {
    snprintf(call->message, call->message_size, "heads of %d x %d", (int)w.dk, (int)w.dv);
    return HYPIC_UNSUPPORTED;
  }
  {
    const int64_t most = w.dk > w.dv ? w.dk : w.dv;
    w.S = malloc(sizeof(float) * (2 * w.dk * w.dv + most));
    if (!w.S) return HYPIC_FAILED;
    w.aside = w.S + w.dk * w.dv;
    w.row = w.aside + w.dk * w.dv;
  }
  for (c = 0; c < table->chain_count; ++c) /* by rising level: operators are there before a jump needs them */
    for (w.h = 0; w.h < Hv; ++w.h) {
      w.kh = w.h / (Hv / x->k->shape[1]);
      run_chain(&w, table, &table->chains[c]);
    }
  free(w.S);
  return HYPIC_OK;
}

static const hypic_kernel kKernel = {
    .abi = HYPIC_KERNEL_ABI,
    .struct_size = sizeof(hypic_kernel),
    .name = "gated_delta_rule",
    .devices = HYPIC_BIT(kDLCPU),
    .dtypes = HYPIC_F32,
    .features = HYPIC_STRIDED | HYPIC_JUMPS | HYPIC_OPERATORS | HYPIC_SAVES | HYPIC_ROTATED_KEYS | HYPIC_GROUPED_HEADS |
                HYPIC_BATCH_INVARIANT,
    .decays = HYPIC_BIT(HYPIC_DECAY_SCALAR),
    .updates = HYPIC_BIT(HYPIC_UPDATE_DELTA),
    .readouts = HYPIC_BIT(HYPIC_READOUT_PLAIN),
    .linear_attention = linear_attention,
};

const hypic_kernel* hypic_kernel_get(uint32_t abi) { return abi == HYPIC_KERNEL_ABI ? &kKernel : NULL; }
