// One benchmark: an operation with its tensors in a backend's memory, ready to be enqueued.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "harness/bench/cost.h"
#include "harness/cases/case.h"

namespace hypic::bench {

using conformance::Draw;

class Job {
 public:
  using Shape = std::vector<int64_t>;

  explicit Job(Backend& backend) : backend(backend) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Backend& backend;
  std::function<void()> enqueue;  // the operation alone
  Cost cost;
  bool graph = true;  // ReplayOptions::graph

  // Hands the backend the chain table of the operation; of one without pages, `pages` is 0.
  void begin(ChainTable table, int64_t states, int64_t operators, int64_t pages);
  const ChainTable& table() const { return table_; }

  // Random values, drawn for some rows and repeated from there. In the compute dtype:
  Tensor normal(const Shape& shape, double scale = 1);
  // Rows of this length. The same seed gives the same rows; 0: other ones each time.
  Tensor unit(const Shape& shape, double length = 1, uint64_t seed = 0);
  // In the state dtype:
  Tensor state_normal(const Shape& shape, double scale);
  Tensor uniform(const Shape& shape, double low, double high);
  // Log decays of −0.001 … −0.1, log-uniform, so that nothing is forgotten at once; one in `hard`
  // is −100.
  Tensor log_decay(const Shape& shape, int64_t hard = 0);
  Tensor index(const std::vector<int32_t>& values);

  // What the operation writes, looked at by fault().
  Tensor output(const std::string& name, const Shape& shape);
  Tensor state_output(const std::string& name, const Shape& shape);
  Tensor index_output(const std::string& name, const Shape& shape);
  void watch(const std::string& name, const Tensor& tensor) { outputs_.emplace_back(name, tensor); }

  // What is wrong with a sample of the outputs, or nothing: NaN (which fresh memory holds),
  // infinity, all zero.
  std::string fault() const;

 private:
  using Row = std::function<void(double* row, int64_t n, Draw& draw)>;
  Tensor reserve(DType dtype, const Shape& shape);
  Tensor fill(DType dtype, const Shape& shape, uint64_t seed, const Row& draw_row);

  std::vector<Buffer> memory_;
  std::vector<std::pair<std::string, Tensor>> outputs_;
  ChainTable table_;
  uint64_t next_seed_ = 1000;
};

// Sizes of the full program, or those that a CPU gets through in a minute.
struct Sizes {
  bool small = false;
  int64_t operator()(int64_t full, int64_t cut) const { return small ? cut : full; }
};

struct Bench {
  std::string name;  // "gated_delta_net/prefill/Hk16_Hv32/T8192"
  std::function<void(Job&)> prepare;
};

// What Ceilings are measured by: a copy, and a product of square matrices.
Bench copy_bench(const Sizes& sizes);
Bench product_bench(const Sizes& sizes);

void add_linear_attention(std::vector<Bench>& all, const Sizes& sizes);
void add_attention(std::vector<Bench>& all, const Sizes& sizes);
void add_experts(std::vector<Bench>& all, const Sizes& sizes);
void add_products(std::vector<Bench>& all, const Sizes& sizes);
void add_pointwise(std::vector<Bench>& all, const Sizes& sizes);

// Every benchmark, the ceilings once more at the end: there they show whether the device slowed
// down.
std::vector<Bench> all_benches(const Sizes& sizes);

}  // namespace hypic::bench
