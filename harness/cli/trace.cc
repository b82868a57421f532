#include "datasets/trace.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/check.h"
#include "harness/cli/commands.h"

namespace hypic {
namespace {

constexpr double kGib = double(int64_t{1} << 30);

struct Options {
  std::string path, token_lengths, admission = "first";
  std::vector<double> budgets;
  // Qwen3.5-27B: K, V in bfloat16; T, U, or one state, in float32.
  ReuseCosts costs{
      .token_bytes = 64 << 10, .segment_bytes = 288 << 20, .snapshot_bytes = 144 << 20};
  bool json = false;
};

struct Row {
  std::optional<double> gib;
  ReuseShare prefix, independent;
};

nlohmann::ordered_json to_json(const ReuseShare& share, const TraceSize& size) {
  return {{"hit_share", double(share.hit_tokens) / double(std::max<int64_t>(size.input_tokens, 1))},
          {"hit_tokens", share.hit_tokens},
          {"hit_segments", share.hit_segments},
          {"peak_gib", double(share.peak_bytes) / kGib}};
}

void print_json(const Trace& trace, const TraceSize& size, const std::vector<Row>& rows,
                const Options& options) {
  nlohmann::ordered_json out = {{"format", trace.format},
                                {"requests", trace.requests.size()},
                                {"segments", size.segments},
                                {"distinct_segments", trace.distinct},
                                {"input_tokens", size.input_tokens},
                                {"output_tokens", size.output_tokens},
                                {"admission", options.admission},
                                {"token_bytes", options.costs.token_bytes},
                                {"segment_bytes", options.costs.segment_bytes},
                                {"snapshot_bytes", options.costs.snapshot_bytes},
                                {"reuse", nlohmann::ordered_json::array()}};
  for (const Row& row : rows) {
    nlohmann::ordered_json one = {
        {"budget_gib", nullptr}, {"prefix", nullptr}, {"independent", nullptr}};
    if (row.gib) one["budget_gib"] = *row.gib;
    if (trace.reuse != TraceReuse::none) one["prefix"] = to_json(row.prefix, size);
    if (trace.reuse == TraceReuse::independent) one["independent"] = to_json(row.independent, size);
    out["reuse"].push_back(one);
  }
  std::cout << out.dump(2) << "\n";
}

void print_table(const Trace& trace, const TraceSize& size, const std::vector<Row>& rows,
                 const Options& options) {
  const double hours = (trace.requests.back().timestamp - trace.requests.front().timestamp) / 3600;
  std::cout << trace.format << ": " << trace.requests.size() << " requests in " << std::fixed
            << std::setprecision(1) << hours << " h, " << size.input_tokens << " prompt tokens in "
            << size.segments << " segments (" << trace.distinct << " distinct), "
            << size.output_tokens << " output tokens\n";
  if (trace.reuse == TraceReuse::none) {
    std::cout << "It names no segments, so it cannot show reuse.\n";
    return;
  }
  std::cout << "Share of prompt tokens found in the cache, admitted at " << options.admission
            << " touch:\n";
  const auto row = [](const auto&... cells) {
    ((std::cout << std::right << std::setw(16) << cells), ...) << "\n";
  };
  const auto percent = [&](const ReuseShare& share) {
    char text[16];
    std::snprintf(
        text, sizeof text, "%.1f %%",
        100.0 * double(share.hit_tokens) / double(std::max<int64_t>(size.input_tokens, 1)));
    return std::string(text);
  };
  const auto gib = [](double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g GiB", value);
    return std::string(text);
  };
  row("budget", "prefix", "holds", "independent", "holds");
  for (const Row& each : rows) {
    const bool both = trace.reuse == TraceReuse::independent;
    row(each.gib ? gib(*each.gib) : "unlimited", percent(each.prefix),
        gib(double(each.prefix.peak_bytes) / kGib), both ? percent(each.independent) : "-",
        both ? gib(double(each.independent.peak_bytes) / kGib) : "-");
  }
  if (trace.reuse == TraceReuse::prefix)
    std::cout
        << "Its ids stand for whole prefixes, so it cannot show position-independent reuse.\n";
}

}  // namespace

void add_trace(CLI::App& app, int&) {
  CLI::App* command = app.add_subcommand(
      "trace", "What reuse a request trace allows: prefix, position-independent");
  const auto options = std::make_shared<Options>();
  command
      ->add_option("trace", options->path,
                   "RAGPulse, Mooncake, Azure or pic-trace; - is standard input")
      ->required();
  command->add_option("--budget", options->budgets, "Also with a cache of so many GiB, each")
      ->check(CLI::Range(1e-6, 1e6));
  command->add_option("--admission", options->admission, "Cache a segment at this touch")
      ->check(CLI::IsMember({"first", "second"}))
      ->capture_default_str();
  command->add_option("--token-lengths", options->token_lengths,
                      "RAGPulse's token lengths (default: ragpulse_token_lengths.csv beside it)");
  const auto bytes = [&](const char* name, int64_t& value, const char* what) {
    command->add_option(name, value, what)
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 32))
        ->capture_default_str();
  };
  bytes("--token-bytes", options->costs.token_bytes, "K, V of a token; defaults are Qwen3.5-27B's");
  bytes("--segment-bytes", options->costs.segment_bytes, "T, U of a segment");
  bytes("--snapshot-bytes", options->costs.snapshot_bytes, "The state after a segment (prefix)");
  command->add_flag("--json", options->json, "As JSON");
  command->callback([options] {
    const Trace trace = load_trace(options->path, options->token_lengths);
    const TraceSize size = size_of(trace);
    const auto admission = options->admission == "first" ? TraceAdmission::first : TraceAdmission::second;
    std::vector<Row> rows{{}};
    for (const double gib : options->budgets) rows.push_back({gib, {}, {}});
    for (Row& row : rows) {
      std::optional<int64_t> budget;
      if (row.gib) budget = int64_t(*row.gib * kGib);
      row.prefix = prefix_reuse(trace, budget, admission, options->costs);
      row.independent = independent_reuse(trace, budget, admission, options->costs);
    }
    options->json ? print_json(trace, size, rows, *options)
                  : print_table(trace, size, rows, *options);
  });
}

}  // namespace hypic
