// The forward against the model written out token by token in float64, and what watchers of it see.
#include "models/forward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include "reference/cpu_backend.h"
#include "reference/ops/testing.h"

namespace hypic {
namespace {

using reference::add_chain;
using reference::distance;
using reference::jump;
using reference::step;
using Vector = std::vector<double>;
using Tokens = std::vector<int32_t>;

// The model by definition
// --------------------------------------------------------------------------

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }

// W x for row-major W.
Vector times(const Vector& W, const Vector& x) {
  Vector y(W.size() / x.size());
  for (size_t i = 0; i < y.size(); ++i)
    y[i] = std::inner_product(x.begin(), x.end(), W.begin() + i * x.size(), 0.0);
  return y;
}

Vector rms_norm(const Vector& x, const Vector& w, double offset, double eps) {
  const double mean = std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / x.size();
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] / std::sqrt(mean + eps) * (offset + w[i]);
  return y;
}

Vector part(const Vector& x, int begin, int count) {
  return {x.begin() + begin, x.begin() + begin + count};
}

// Qwen3.5 as its model card tells it, one sequence, one token after the other. It shares the
// weights with the model that it judges, and nothing else.
class Plain {
 public:
  explicit Plain(const Model& model) : spec_(model.spec()), layers_(spec_.layer_count()) {
    for (const TensorSpec& tensor : tensor_specs(spec_))
      weights_[tensor.name] = reference::elements(model.weight(tensor.name));
  }

  // The logits after the next token.
  Vector next(int32_t token) {
    Vector h = part(weights_["embed_tokens.weight"], token * spec_.hidden, spec_.hidden);
    for (int l = 0; l < spec_.layer_count(); ++l) {
      prefix_ = str("layers.", l, ".");
      const Vector x = rms_norm(h, weight("input_layernorm.weight"), 1, spec_.norm_eps);
      add(h,
          spec_.layers[l] == LayerKind::linear ? linear(layers_[l], x) : attention(layers_[l], x));
      add(h, mlp(rms_norm(h, weight("post_attention_layernorm.weight"), 1, spec_.norm_eps)));
    }
    ++position_;
    const std::string head = spec_.tied ? "embed_tokens.weight" : "lm_head.weight";
    return times(weights_[head], rms_norm(h, weights_["norm.weight"], 1, spec_.norm_eps));
  }

 private:
  struct Layer {
    std::vector<Vector> raw;     // rows before the convolution
    std::vector<Vector> states;  // S of each value head, [d_k, d_v]
    std::vector<Vector> k, v;    // of every token so far
  };

  const Vector& weight(const std::string& name) { return weights_.at(prefix_ + name); }
  static void add(Vector& x, const Vector& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  Vector mlp(const Vector& x) {
    const Vector gate = times(weight("mlp.gate_proj.weight"), x);
    Vector up = times(weight("mlp.up_proj.weight"), x);
    for (size_t i = 0; i < up.size(); ++i) up[i] *= silu(gate[i]);
    return times(weight("mlp.down_proj.weight"), up);
  }

  Vector linear(Layer& layer, const Vector& x) {
    const LinearSpec& a = spec_.linear;
    const int dk = a.key_dim, dv = a.value_dim, W = a.conv_width;
    layer.raw.push_back(times(weight("linear_attn.in_proj_qkv.weight"), x));
    const Vector& w = weight("linear_attn.conv1d.weight");
    Vector c(layer.raw.back().size());
    for (size_t ch = 0; ch < c.size(); ++ch) {
      for (int j = 0; j < W; ++j)
        if (position_ - W + 1 + j >= 0)
          c[ch] += w[ch * W + j] * layer.raw[position_ - W + 1 + j][ch];
      c[ch] = silu(c[ch]);
    }
    const Vector z = times(weight("linear_attn.in_proj_z.weight"), x);
    const Vector b = times(weight("linear_attn.in_proj_b.weight"), x);
    const Vector alpha = times(weight("linear_attn.in_proj_a.weight"), x);
    layer.states.resize(a.value_heads, Vector(dk * dv));
    Vector out;
    for (int h = 0; h < a.value_heads; ++h) {
      const int kh = h / (a.value_heads / a.key_heads);
      Vector q = unit(part(c, kh * dk, dk));
      const Vector k = unit(part(c, (a.key_heads + kh) * dk, dk));
      const Vector v = part(c, 2 * a.key_heads * dk + h * dv, dv);
      const double beta = sigmoid(b[h]);
      const double g = -std::exp(weight("linear_attn.A_log")[h]) *
                       std::log(1 + std::exp(alpha[h] + weight("linear_attn.dt_bias")[h]));
      Vector& S = layer.states[h];
      Vector o(dv);
      for (double& s : S) s *= std::exp(g);
      for (int j = 0; j < dv; ++j) {
        double held = 0;
        for (int i = 0; i < dk; ++i) held += S[i * dv + j] * k[i];
        for (int i = 0; i < dk; ++i) S[i * dv + j] += k[i] * beta * (v[j] - held);
        for (int i = 0; i < dk; ++i) o[j] += S[i * dv + j] * q[i] / std::sqrt(dk);
      }
      o = rms_norm(o, weight("linear_attn.norm.weight"), 0, spec_.norm_eps);
      for (int j = 0; j < dv; ++j)
        out.push_back(o[j] *
                      (a.gate == Activation::silu ? silu(z[h * dv + j]) : sigmoid(z[h * dv + j])));
    }
    return times(weight("linear_attn.out_proj.weight"), out);
  }

  static Vector unit(Vector x) {
    const double square = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
    for (double& element : x) element /= std::sqrt(square + 1e-6);
    return x;
  }

  Vector attention(Layer& layer, const Vector& x) {
    const AttentionSpec& a = spec_.attention;
    const int D = a.head_dim, width = a.output_gate ? 2 * D : D;
    const Vector q_proj = times(weight("self_attn.q_proj.weight"), x);
    const Vector k_proj = times(weight("self_attn.k_proj.weight"), x);
    layer.v.push_back(times(weight("self_attn.v_proj.weight"), x));
    Vector& keys = layer.k.emplace_back();
    for (int h = 0; h < a.kv_heads; ++h)
      for (const double element :
           norm_and_rotate(part(k_proj, h * D, D), weight("self_attn.k_norm.weight")))
        keys.push_back(element);
    Vector out;
    for (int h = 0; h < a.q_heads; ++h) {
      const Vector q =
          norm_and_rotate(part(q_proj, h * width, D), weight("self_attn.q_norm.weight"));
      const int kv = h / (a.q_heads / a.kv_heads);
      Vector o(D);
      double sum = 0;
      for (size_t i = 0; i < layer.k.size(); ++i) {
        const double p =
            std::exp(std::inner_product(q.begin(), q.end(), layer.k[i].begin() + kv * D, 0.0) /
                     std::sqrt(D));
        sum += p;
        for (int d = 0; d < D; ++d) o[d] += p * layer.v[i][kv * D + d];
      }
      for (int d = 0; d < D; ++d)
        out.push_back(o[d] / sum * (a.output_gate ? sigmoid(q_proj[h * width + D + d]) : 1));
    }
    return times(weight("self_attn.o_proj.weight"), out);
  }

  Vector norm_and_rotate(const Vector& head, const Vector& w) const {
    Vector x = rms_norm(head, w, 1, spec_.norm_eps);
    const int half = spec_.attention.rotary_dim / 2;
    for (int i = 0; i < half; ++i) {
      const double angle = position_ * std::pow(spec_.attention.rope_theta, -2.0 * i / (2 * half));
      const double first = x[i], second = x[half + i];
      x[i] = first * std::cos(angle) - second * std::sin(angle);
      x[half + i] = second * std::cos(angle) + first * std::sin(angle);
    }
    return x;
  }

  const ModelSpec spec_;
  std::map<std::string, Vector> weights_;
  std::vector<Layer> layers_;
  std::string prefix_;
  int position_ = 0;
};

// Running the forward
// ------------------------------------------------------------------------------

ModelSpec spec_of(std::vector<LayerKind> layers) {
  ModelSpec spec = spec_named("qwen3.5-tiny");
  spec.layers = std::move(layers);
  spec.hidden = 24;
  spec.ffn = 40;
  spec.vocabulary = 60;
  spec.tied = true;
  spec.attention = {6, 2, 12, 4, 1e4, true};
  spec.linear = {Family::gated_delta_net, 2, 6, 6, 10, 4, Activation::silu};
  return spec;
}

constexpr auto kLinear = LayerKind::linear, kAttention = LayerKind::attention;

Tokens random_tokens(int n, int seed) {
  std::mt19937 bits(seed);
  Tokens tokens(n);
  for (int32_t& token : tokens) token = static_cast<int32_t>(bits() % 60);
  return tokens;
}

constexpr int kPages = 4;  // a chain, of 8 tokens

// Each sequence from the start as one chain, logits of every row.
ChainTable table_of(const std::vector<Tokens>& sequences) {
  ChainTable table;
  table.page_size = 8;
  for (const Tokens& tokens : sequences) {
    Chain chain;
    chain.state = static_cast<int32_t>(table.chains.size());
    chain.page_begin = static_cast<int32_t>(table.pages.size());
    const int32_t first = table.row_count();
    add_chain(table, chain, {step(static_cast<int32_t>(tokens.size()))});
    std::copy(tokens.begin(), tokens.end(), table.tokens.begin() + first);
    for (int i = 0; i < kPages; ++i)
      table.pages.push_back(static_cast<int32_t>(table.pages.size()));
  }
  table.logit_rows.resize(table.row_count());
  std::iota(table.logit_rows.begin(), table.logit_rows.end(), 0);
  return table;
}

struct Runner {
  Runner(ModelSpec spec, bool wide)
      : backend(wide ? reference::make_cpu64_backend() : reference::make_cpu_backend()),
        model(Model::random(*backend, std::move(spec), 5)),
        pools(*backend, model.spec(),
              {.state_slots = 4, .operator_slots = 2, .pages = 4 * kPages, .page_size = 8}) {}

  Vector logits(const ChainTable& table, const ForwardOptions& options = {}) {
    const int64_t n = static_cast<int64_t>(table.logit_rows.size());
    const Buffer out(*backend, backend->compute_dtype(), {n, model.spec().vocabulary});
    forward(model, pools, table, out, options);
    return reference::elements(out);
  }

  std::unique_ptr<Backend> backend;
  Model model;
  Pools pools;
};

std::vector<ModelSpec> variants() {
  std::vector<ModelSpec> specs = {spec_of({kLinear, kAttention, kLinear, kLinear, kAttention}),
                                  spec_of({kLinear}), spec_of({kAttention})};
  ModelSpec& untied = specs.emplace_back(specs[0]);
  untied.tied = false;
  untied.linear = {Family::gated_delta_net, 3, 3, 8, 4, 2, Activation::sigmoid};
  untied.attention = {4, 4, 8, 8, 1e7, false};
  ModelSpec& no_rotation = specs.emplace_back(specs[0]);
  no_rotation.attention.rotary_dim = 0;
  no_rotation.linear.conv_width = 1;
  no_rotation.norm_eps = 0.1;
  return specs;
}

TEST(Forward, IsTheModelByDefinition) {
  const std::vector<Tokens> sequences = {random_tokens(29, 1), random_tokens(1, 2),
                                         random_tokens(13, 3)};
  int variant = 0;
  for (const ModelSpec& spec : variants()) {
    Runner wide(spec, true), narrow(spec, false);
    Vector expected;
    for (const Tokens& tokens : sequences) {
      Plain plain(wide.model);
      for (const int32_t token : tokens)
        for (const double x : plain.next(token)) expected.push_back(x);
    }
    const ChainTable table = table_of(sequences);
    EXPECT_LE(distance(wide.logits(table), expected), 1e-12) << "variant " << variant;
    EXPECT_LE(distance(narrow.logits(table), expected), 1e-5) << "variant " << variant;
    ++variant;
  }
}

// Three tokens, then the rest on from the stored state, window and pages.
TEST(Forward, ContinuesFromItsSlotsAndPages) {
  for (const ModelSpec& spec : variants()) {
    const Tokens tokens = random_tokens(21, 4);
    Runner whole(spec, true), parts(spec, true);
    const Vector expected = whole.logits(table_of({tokens}));
    Vector found;
    for (size_t begin = 0, end; begin < tokens.size(); begin = end) {
      end = begin == 0 ? 3 : begin == 3 ? 4 : tokens.size();
      ChainTable table = table_of({Tokens(tokens.begin() + begin, tokens.begin() + end)});
      for (int32_t& position : table.positions) position += static_cast<int32_t>(begin);
      table.chains[0].fresh = begin == 0;
      table.chains[0].kv_begin = static_cast<int32_t>(begin);
      for (const double x : parts.logits(table)) found.push_back(x);
    }
    EXPECT_EQ(found, expected);
  }
}

struct Recorder : Tap, LayerHooks {
  void see(const std::string& name, const Tensor& tensor) override {
    events.push_back(name);
    shapes[name] = tensor.shape_string();
    values[name] = reference::elements(tensor);
  }
  void before(int layer) override { events.push_back(str("before ", layer)); }
  void after(int layer) override { events.push_back(str("after ", layer)); }

  std::vector<std::string> events;
  std::map<std::string, std::string> shapes;
  std::map<std::string, Vector> values;
};

TEST(Forward, TapsAndHooksComeInOrderAndChangeNothing) {
  const ModelSpec spec = spec_of({kLinear, kAttention});
  const ChainTable table = table_of({random_tokens(5, 1), random_tokens(3, 2)});
  Runner quiet(spec, false), watched(spec, false);
  Recorder recorder;
  const Vector logits = quiet.logits(table);
  EXPECT_EQ(watched.logits(table, {.tap = &recorder, .hooks = &recorder}), logits);
  EXPECT_EQ(recorder.events, (std::vector<std::string>{"embedding",
                                                       "before 0",
                                                       "layers.0.linear.qkv",
                                                       "layers.0.linear.q",
                                                       "layers.0.linear.k",
                                                       "layers.0.linear.v",
                                                       "layers.0.linear.g",
                                                       "layers.0.linear.beta",
                                                       "layers.0.linear.o",
                                                       "layers.0.linear.state",
                                                       "layers.0.residual",
                                                       "after 0",
                                                       "before 1",
                                                       "layers.1.attention.q",
                                                       "layers.1.attention.k",
                                                       "layers.1.attention.v",
                                                       "layers.1.attention.o",
                                                       "layers.1.residual",
                                                       "after 1",
                                                       "logits"}));
  const std::map<std::string, std::string> shapes = {{"embedding", "[8, 24]"},
                                                     {"layers.0.linear.qkv", "[8, 84]"},
                                                     {"layers.0.linear.q", "[8, 2, 6]"},
                                                     {"layers.0.linear.k", "[8, 2, 6]"},
                                                     {"layers.0.linear.v", "[8, 6, 10]"},
                                                     {"layers.0.linear.g", "[8, 6]"},
                                                     {"layers.0.linear.beta", "[8, 6]"},
                                                     {"layers.0.linear.o", "[8, 6, 10]"},
                                                     {"layers.0.linear.state", "[4, 6, 6, 10]"},
                                                     {"layers.0.residual", "[8, 24]"},
                                                     {"layers.1.attention.q", "[8, 6, 12]"},
                                                     {"layers.1.attention.k", "[8, 2, 12]"},
                                                     {"layers.1.attention.v", "[8, 2, 12]"},
                                                     {"layers.1.attention.o", "[8, 6, 12]"},
                                                     {"layers.1.residual", "[8, 24]"},
                                                     {"logits", "[8, 60]"}};
  EXPECT_EQ(recorder.shapes, shapes);
  EXPECT_EQ(recorder.values["logits"], logits);
  // The last residual is what the head reads.
  const Model& model = watched.model;
  const Vector last = part(recorder.values["layers.1.residual"], 7 * 24, 24);
  const Vector head =
      times(reference::elements(model.lm_head()),
            rms_norm(last, reference::elements(model.weight("norm.weight")), 1, 1e-6));
  EXPECT_LE(distance(part(logits, 7 * 60, 60), head), 1e-5);
}

TEST(Forward, HooksRunWithoutATap) {
  Runner run(spec_of({kAttention, kLinear}), false);
  Recorder recorder;
  run.logits(table_of({random_tokens(2, 1)}), {.hooks = &recorder});
  EXPECT_EQ(recorder.events,
            (std::vector<std::string>{"before 0", "after 0", "before 1", "after 1"}));
}

TEST(Forward, ComputesOnlyTheLogitsAskedFor) {
  const std::vector<Tokens> sequences = {random_tokens(7, 1), random_tokens(4, 2)};
  ChainTable table = table_of(sequences);
  Runner run(spec_of({kLinear, kAttention}), true);
  const Vector all = run.logits(table);
  table.logit_rows = {6, 10};
  Vector expected = part(all, 6 * 60, 60);
  for (const double x : part(all, 10 * 60, 60)) expected.push_back(x);
  EXPECT_EQ(run.logits(table), expected);

  table.logit_rows.clear();
  Recorder recorder;
  forward(run.model, run.pools, table, {}, {.tap = &recorder});
  EXPECT_EQ(recorder.events.back(), "layers.1.residual");
}

TEST(Forward, RefusesTablesAndLogitsThatDoNotFit) {
  Runner run(spec_of({kLinear, kAttention}), false);
  ChainTable table = table_of({random_tokens(7, 1)});
  table.page_size = 16;
  EXPECT_THROW(run.logits(table), InternalError);
  table = table_of({random_tokens(7, 1)});
  table.chains[0].state = 4;
  EXPECT_THROW(run.logits(table), InternalError);
  table = table_of({random_tokens(7, 1)});
  const Buffer small(*run.backend, DType::f32, {6, 60});
  EXPECT_THROW(forward(run.model, run.pools, table, small), InternalError);
  table.tokens[3] = 60;
  EXPECT_THROW(run.logits(table), InternalError);
}

// Nothing to compute is not an error: a chain of jumps only moves the state.
TEST(Forward, RunsWithoutRows) {
  Runner run(spec_of({kLinear, kAttention}), true);
  forward(run.model, run.pools, {.page_size = 8}, {});
  const auto state = [&](int slot) {
    return reference::elements(run.pools.linear[0].state.tensor().at(slot));
  };

  ChainTable built = table_of({random_tokens(9, 1)});
  built.items[0].op = 1;
  run.logits(built);
  ChainTable jumped = table_of({{}});
  jumped.chains[0].item_begin = 0;
  jumped.items = {jump(1, 9)};
  jumped.chains[0].item_end = 1;
  jumped.chains[0].state = 2;
  run.logits(jumped);
  EXPECT_LE(distance(state(2), state(0)), 1e-13);
}

TEST(PoolsBytes, AreThoseOfOneSlotOverAllLayers) {
  const auto backend = reference::make_cpu_backend();
  const Pools pools(*backend, spec_of({kLinear, kAttention, kLinear}),
                    {.state_slots = 3, .operator_slots = 5, .pages = 7, .page_size = 8});
  EXPECT_EQ(pools.page_bytes(), 2 * 8 * 2 * 12 * 4);
  EXPECT_EQ(pools.state_bytes(), 2 * (6 * 6 * 10 + 3 * 84) * 4);
  EXPECT_EQ(pools.operator_bytes(), 2 * (6 * 6 * 10 + 6 * 6 * 6 + 6 + 3 * 84) * 4);
  EXPECT_FALSE(pools.attention[0].k);
  EXPECT_FALSE(pools.linear[1].state);
}

}  // namespace
}  // namespace hypic
