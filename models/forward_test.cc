// The forward against the model written out token by token in float64, and what watchers of it see.
#include "models/forward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
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
    Vector h = part(weights_["embed"], token * spec_.hidden, spec_.hidden);
    for (int l = 0; l < spec_.layer_count(); ++l) {
      prefix_ = str("layers.", l, ".");
      const Vector x = rms_norm(h, weight("norm"), 1, spec_.norm_eps);
      add(h, spec_.layers[l].linear ? linear(layers_[l], x) : attention(layers_[l], x));
      add(h, mlp(rms_norm(h, weight("ffn_norm"), 1, spec_.norm_eps)));
    }
    ++position_;
    const std::string head = spec_.tied ? "embed" : "lm_head";
    return times(weights_[head], rms_norm(h, weights_["norm"], 1, spec_.norm_eps));
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
    const Vector gate = times(weight("ffn.gate"), x);
    Vector up = times(weight("ffn.up"), x);
    for (size_t i = 0; i < up.size(); ++i) up[i] *= silu(gate[i]);
    return times(weight("ffn.down"), up);
  }

  Vector linear(Layer& layer, const Vector& x) {
    const LinearSpec& a = spec_.linear;
    const int dk = a.key_dim, dv = a.value_dim, W = a.conv_width;
    layer.raw.push_back(times(weight("linear.qkv"), x));
    const Vector& w = weight("linear.conv");
    Vector c(layer.raw.back().size());
    for (size_t ch = 0; ch < c.size(); ++ch) {
      for (int j = 0; j < W; ++j)
        if (position_ - W + 1 + j >= 0)
          c[ch] += w[ch * W + j] * layer.raw[position_ - W + 1 + j][ch];
      c[ch] = silu(c[ch]);
    }
    const Vector z = times(weight("linear.z"), x);
    const Vector b = times(weight("linear.beta"), x);
    const Vector alpha = times(weight("linear.decay"), x);
    layer.states.resize(a.value_heads, Vector(dk * dv));
    Vector out;
    for (int h = 0; h < a.value_heads; ++h) {
      const int kh = h / (a.value_heads / a.key_heads);
      Vector q = unit(part(c, kh * dk, dk));
      const Vector k = unit(part(c, (a.key_heads + kh) * dk, dk));
      const Vector v = part(c, 2 * a.key_heads * dk + h * dv, dv);
      const double beta = sigmoid(b[h]);
      const double g = -std::exp(weight("linear.A_log")[h]) *
                       std::log(1 + std::exp(alpha[h] + weight("linear.dt_bias")[h]));
      Vector& S = layer.states[h];
      Vector o(dv);
      for (double& s : S) s *= std::exp(g);
      for (int j = 0; j < dv; ++j) {
        double held = 0;
        for (int i = 0; i < dk; ++i) held += S[i * dv + j] * k[i];
        for (int i = 0; i < dk; ++i) S[i * dv + j] += k[i] * beta * (v[j] - held);
        for (int i = 0; i < dk; ++i) o[j] += S[i * dv + j] * q[i] / std::sqrt(dk);
      }
      o = rms_norm(o, weight("linear.norm"), 0, spec_.norm_eps);
      for (int j = 0; j < dv; ++j)
        out.push_back(o[j] *
                      (a.gate == Activation::silu ? silu(z[h * dv + j]) : sigmoid(z[h * dv + j])));
    }
    return times(weight("linear.out"), out);
  }

  static Vector unit(Vector x) {
    const double square = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
    for (double& element : x) element /= std::sqrt(square + 1e-6);
    return x;
  }

  Vector attention(Layer& layer, const Vector& x) {
    const AttentionSpec& a = spec_.attention;
    const int D = a.head_dim, width = a.output_gate ? 2 * D : D;
    const Vector q_proj = times(weight("attention.q"), x);
    const Vector k_proj = times(weight("attention.k"), x);
    layer.v.push_back(times(weight("attention.v"), x));
    Vector& keys = layer.k.emplace_back();
    for (int h = 0; h < a.kv_heads; ++h)
      for (const double element :
           norm_and_rotate(part(k_proj, h * D, D), weight("attention.k_norm")))
        keys.push_back(element);
    Vector out;
    for (int h = 0; h < a.q_heads; ++h) {
      const Vector q = norm_and_rotate(part(q_proj, h * width, D), weight("attention.q_norm"));
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
    return times(weight("attention.o"), out);
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

const std::string kLinear = "linear_attention", kAttention = "full_attention";

nlohmann::json config_of(const std::vector<std::string>& layers) {
  return {{"model_type", "qwen3_5_text"},
          {"vocab_size", 60},
          {"hidden_size", 24},
          {"intermediate_size", 40},
          {"num_hidden_layers", layers.size()},
          {"layer_types", layers},
          {"tie_word_embeddings", true},
          {"num_attention_heads", 6},
          {"num_key_value_heads", 2},
          {"head_dim", 12},
          {"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 1.0 / 3}}},
          {"linear_num_key_heads", 2},
          {"linear_num_value_heads", 6},
          {"linear_key_head_dim", 6},
          {"linear_value_head_dim", 10},
          {"linear_conv_kernel_dim", 4}};
}

ModelSpec spec_of(const nlohmann::json& config) { return spec_from_config(config.dump(), "test"); }
ModelSpec spec_of(std::initializer_list<std::string> layers) { return spec_of(config_of(layers)); }

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
  const nlohmann::json config = config_of({kLinear, kAttention, kLinear, kLinear, kAttention});
  std::vector<ModelSpec> specs = {spec_of(config), spec_of({kLinear}), spec_of({kAttention})};
  nlohmann::json untied = config;
  untied.update({{"tie_word_embeddings", false},
                 {"output_gate_type", "sigmoid"},
                 {"attn_output_gate", false},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 4},
                 {"head_dim", 8},
                 {"rope_parameters", {{"rope_theta", 1e7}, {"partial_rotary_factor", 1}}},
                 {"linear_num_key_heads", 3},
                 {"linear_num_value_heads", 3},
                 {"linear_key_head_dim", 8},
                 {"linear_value_head_dim", 4},
                 {"linear_conv_kernel_dim", 2}});
  specs.push_back(spec_of(untied));
  nlohmann::json no_rotation = config;
  no_rotation.update({{"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.01}}},
                      {"linear_conv_kernel_dim", 1},
                      {"rms_norm_eps", 0.1}});
  EXPECT_EQ(specs.emplace_back(spec_of(no_rotation)).attention.rotary_dim, 0);
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
  const Vector head = times(reference::elements(model.lm_head()),
                            rms_norm(last, reference::elements(model.weight("norm")), 1, 1e-6));
  EXPECT_LE(distance(part(logits, 7 * 60, 60), head), 1e-5);
}

// Each layer shows the parts that it has.
TEST(Forward, TapsOfOtherArchitectures) {
  const auto seen = [](const char* name, const char* config) {
    nlohmann::json changed = nlohmann::json::parse(spec_named(name).config);
    changed.update({{"vocab_size", 60}, {"hidden_size", 24}});
    changed.update(nlohmann::json::parse(config));
    Runner run(spec_of(changed), false);
    Recorder recorder;
    run.logits(table_of({random_tokens(5, 1)}), {.tap = &recorder});
    return recorder;
  };
  const std::string linear0 = "layers.0.linear.", attention1 = "layers.1.attention.";
  const Recorder kimi =
      seen("kimi-linear-48b-a3b-tiny", R"({"num_hidden_layers": 2, "linear_attn_config":
      {"kda_layers": [1], "num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 4}})");
  EXPECT_EQ(kimi.events,
            (std::vector<std::string>{"embedding", linear0 + "qkv", linear0 + "q", linear0 + "k",
                                      linear0 + "v", linear0 + "g", linear0 + "beta", linear0 + "o",
                                      linear0 + "state", "layers.0.residual", attention1 + "q",
                                      attention1 + "k", attention1 + "o", "layers.1.moe.logits",
                                      "layers.1.moe.experts",
                                      "layers.1.moe.weights", "layers.1.residual", "logits"}));
  EXPECT_EQ(kimi.shapes.at(linear0 + "g"), "[5, 2, 8]");      // a decay for each channel
  EXPECT_EQ(kimi.shapes.at(attention1 + "q"), "[5, 4, 80]");  // absorbed: latent and shared
  EXPECT_EQ(kimi.shapes.at(attention1 + "k"), "[5, 1, 80]");
  EXPECT_EQ(kimi.shapes.at("layers.1.moe.experts"), "[5, 4]");

  const Recorder nemotron = seen("nemotron-3-nano-30b-a3b-tiny",
                                 R"({"num_hidden_layers": 3, "hybrid_override_pattern": "ME-"})");
  EXPECT_EQ(nemotron.events,
            (std::vector<std::string>{"embedding", linear0 + "qkv", linear0 + "q", linear0 + "k",
                                      linear0 + "v", linear0 + "g", linear0 + "beta", linear0 + "o",
                                      linear0 + "state", "layers.0.residual",
                                      "layers.1.moe.logits", "layers.1.moe.experts",
                                      "layers.1.moe.weights",
                                      "layers.1.residual", "layers.2.residual", "logits"}));
  const Recorder ring =
      seen("ring-mini-linear-2.0-tiny", R"({"num_hidden_layers": 2, "layer_group_size": 2})");
  EXPECT_FALSE(ring.shapes.count(linear0 + "beta"));
  EXPECT_EQ(ring.shapes.at(linear0 + "g"), "[5, 4]");
  // The same decay in every row, and the layer's own.
  const Vector g = ring.values.at(linear0 + "g");
  for (int r = 0; r < 5; ++r)
    for (int h = 0; h < 4; ++h)
      EXPECT_NEAR(g[r * 4 + h], -std::exp2(-2.0 * (h + 1)) * (1 + 1e-5), 1e-7);
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

TEST(Forward, OfEveryArchitectureRunsWithoutRows) {
  const auto backend = reference::make_cpu_backend();
  for (const std::string& name : model_names()) {
    if (spec_named(name).hidden > 128) continue;
    const Model model = Model::open(*backend, "random:" + name);
    Pools pools(*backend, model.spec(),
                {.state_slots = 1, .operator_slots = 1, .pages = 1, .page_size = 8});
    EXPECT_NO_THROW(forward(model, pools, {.page_size = 8}, {})) << name;
  }
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

TEST(PoolsBytes, OfOtherArchitectures) {
  const auto backend = reference::make_cpu_backend();
  const PoolSizes sizes{.state_slots = 3, .operator_slots = 5, .pages = 7, .page_size = 8};
  const Pools kimi(*backend, spec_named("kimi-linear-48b-a3b-tiny"), sizes);
  EXPECT_EQ(kimi.page_bytes(), 8 * 80 * 4);  // one latent for all heads; V is a part of it
  EXPECT_FALSE(kimi.attention[3].v);
  EXPECT_EQ(kimi.operator_bytes(),
            3 * (2 * 4 * 32 * 32 + 3 * 384) * 4);  // T and U: no number but the matrix
  const Pools falcon(*backend, spec_named("falcon-h1-1.5b-tiny"), sizes);  // both in each layer
  EXPECT_EQ(falcon.page_bytes(), 4 * 2 * 8 * 2 * 32 * 4);
  EXPECT_EQ(falcon.state_bytes(), 4 * (8 * 32 * 16 + 3 * (128 + 64)) * 4);
  EXPECT_EQ(falcon.operator_bytes(),
            4 * (8 * 32 * 16 + 8 + 3 * (128 + 64)) * 4);  // T is a number a head
  const Pools ring(*backend, spec_named("ring-mini-linear-2.0-tiny"), sizes);
  EXPECT_EQ(ring.state_bytes(), 4 * (4 * 32 * 32) * 4);  // no window
  const Pools nemotron(*backend, spec_named("nemotron-3-nano-30b-a3b-tiny"), sizes);
  EXPECT_FALSE(nemotron.linear[1].state);
  EXPECT_FALSE(nemotron.attention[1].k);
}

}  // namespace
}  // namespace hypic
