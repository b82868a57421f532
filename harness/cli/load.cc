#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>

#include "core/check.h"
#include "harness/cli/commands.h"
#include "harness/cli/run_options.h"
#include "reports/text.h"
#include "reports/write.h"

namespace hypic {
namespace {

struct Options {
  RunSettings settings;
  std::string url;
  bool mock = false, search = false;
  nlohmann::json parameters = nlohmann::json::object();
  std::optional<std::string> slo, cached_share;
  double slo_share = 0.9;
};

// Adds an option whose value becomes a parameter of the driver; bounds are the driver's.
template <class Type>
void add(CLI::App& command, const std::shared_ptr<Options>& options, const std::string& name, const std::string& help) {
  std::string key = name.substr(2);
  std::replace(key.begin(), key.end(), '-', '_');
  command.add_option_function<Type>(
      name, [options, key](const Type& value) { options->parameters[key] = value; }, help);
}

Suite suite_of(const Options& options) {
  SuiteCase c;
  c.name = options.mock ? "load on the mock server" : "load on " + options.url;
  c.driver = "qps";
  c.parameters = options.parameters;
  c.parameters["url"] = options.mock ? "mock" : options.url;
  c.parameters["slo_share"] = options.slo_share;
  if (options.search) c.parameters["search"] = 1;
  if (options.cached_share) {
    nlohmann::json& bounds = c.parameters["cached_share"] = nlohmann::json::array();
    for (const std::string& part : at_commas("--cached-share", *options.cached_share)) {
      char* end = nullptr;
      bounds.push_back(std::strtod(part.c_str(), &end));
      require(*end == 0, "--cached-share: must be LEAST,MOST, is \"", *options.cached_share, "\"");
    }
  }
  if (options.slo) {
    c.parameters["slo"] = at_commas("--slo", *options.slo);
    if (options.search)
      c.expectations.push_back({.tag = "max_qps", .relation = ">", .value = 0, .source = "--search"});
    else
      c.expectations.push_back(
          {.tag = "slo_misses_high", .relation = "<=", .value = 1 - options.slo_share, .source = "--slo-share"});
  }
  Suite suite;
  suite.path = "load";
  suite.title = "hypic load: " + c.name;
  suite.description = "What each number means: docs/load.md.";
  suite.cases = {std::move(c)};
  return suite;
}

// The names of vLLM's benchmark, flat.
void write_summary(const Report& report, const SuiteCase& asked, const std::string& path) {
  const Result& result = report.results.at(0);
  nlohmann::ordered_json summary;
  for (const auto& [key, value] : report.environment.entries)
    if (key == "date") summary["date"] = value;
  summary["endpoint_type"] = asked.parameters.value("api", "openai");
  summary["backend"] = "hypic load";
  summary["model_id"] = asked.parameters.value("served_model", "");
  summary["verdict"] = to_string(result.verdict);
  summary["why"] = result.why;
  summary["parameters"] = asked.parameters;
  for (const Value& value : result.values)
    summary[value.tag] = std::isfinite(value.value) ? nlohmann::ordered_json(value.value) : nullptr;
  write_file_atomically(path, summary.dump(2) + "\n");
}

}  // namespace

void add_load(CLI::App& app, int& status, const std::string& command_line) {
  CLI::App* command = app.add_subcommand("load", "Open-loop load on a server: latencies, goodput, highest rate in SLO");
  const auto options = std::make_shared<Options>();
  options->settings.command_line = command_line;
  command->add_option("url", options->url, "http://HOST:PORT of an OpenAI-compatible or SGLang server");
  command->add_flag("--mock", options->mock, "A server of its own that only waits: what this client can do here");
  const auto text = [&](const char* name, const char* help) { add<std::string>(*command, options, name, help); };
  const auto integer = [&](const char* name, const char* help) { add<int64_t>(*command, options, name, help); };
  const auto number = [&](const char* name, const char* help) { add<double>(*command, options, name, help); };
  text("--api", "openai: /v1/completions (default), or generate: /generate");
  text("--served-model", "\"model\" of the requests (default: left out)");
  number("--rate", "Requests a second (default 1); of --search the first one");
  text("--arrivals", "poisson (default), constant, gamma, burst, or trace: its own times");
  number("--burstiness", "Shape of gamma gaps, as vLLM's (default 1)");
  integer("--burst", "Requests at once of burst (default 8)");
  integer("--requests", "How many (default 200); of --search, of each probe");
  integer("--segments", "Passages of a prompt before its question (default 4)");
  integer("--tokens", "Tokens of each, about (default 512)");
  integer("--question", "Tokens of the question (default 64)");
  integer("--pool", "Distinct passages, drawn in any order (default 0: none comes twice)");
  integer("--output-tokens", "Tokens of an answer (default 1, of a trace its own)");
  text("--prompts", "text (default), ids: token ids, or segments: ids by passage, as hypic's server takes them");
  integer("--vocabulary", "Of token ids (default 32000)");
  text("--separator", "Between passages of a text (default two line ends)");
  text("--trace", "Prompts of a trace: RAGPulse, Mooncake, Azure or pic-trace");
  text("--token-lengths", "RAGPulse's token lengths (default: ragpulse_token_lengths.csv beside it)");
  integer("--trace-first", "First measured request of the trace (default 0)");
  integer("--trace-prime", "Requests before it that prime the cache (default: all)");
  number("--speed", "The trace's times divided by this (default 1)");
  text("--cache", "cold: flushed; primed: flushed, then filled; any (default)");
  text("--flush", "Path that empties the cache (default /flush_cache), or none");
  command->add_option("--cached-share", options->cached_share, "LEAST,MOST share of cached prompt tokens");
  command->add_option("--slo", options->slo, "ttft:MS,tpot:MS,e2el:MS, any of them");
  command->add_option("--slo-share", options->slo_share, "Of requests that must meet it (default 0.9)");
  number("--confidence", "Of the verdict (default 0.95)");
  command->add_flag("--search", options->search, "Look for the highest rate within --slo");
  integer("--verify-requests", "Of each verification (default 500)");
  number("--precision", "Of the bracket before it is verified (default 0.05)");
  number("--timeout", "Seconds from the scheduled time (default 60)");
  integer("--max-concurrency", "Requests in flight; the others wait (default 0: no bound)");
  integer("--threads", "Of the client (default 1)");
  number("--lag-bound-ms", "INVALID where 1 % of requests are taken up later than this (default: 1 % of the SLO)");
  integer("--warmup", "Requests before all else (default 1)");
  integer("--seed", "Of prompts and times (default 1)");
  number("--mock-ttft-ms", "Of the mock server (default 20)");
  number("--mock-itl-ms", "Of the mock server (default 5)");
  number("--mock-cv", "Of both, deviation over mean (default 0)");
  integer("--mock-capacity", "Requests that it serves at once (default 0: no bound)");
  number("--mock-errors", "Share of requests that it refuses (default 0)");
  number("--mock-hangs", "Share of requests that it never answers (default 0)");
  number("--mock-cached-speed", "TTFT over that of a wholly cached prompt (default 1)");
  command->add_flag("--quiet", options->settings.quiet, "No progress");
  command->add_flag("--resume", options->settings.resume,
                    "Keep an earlier run of the same options into the same folder, if it finished");
  command->add_option("--out", options->settings.out,
                      "Folder of the report, items.jsonl and summary.json (default out/load)");
  command->callback([options, &status] {
    require(options->mock != !options->url.empty(), "load: give either the URL of a server or --mock");
    RunSettings& settings = options->settings;
    if (settings.out.empty()) settings.out = "out/load";
    const Suite suite = suite_of(*options);
    status = run_and_show(
        "load", [&] { return suite; }, settings, "", 1);
    const Report report = read_report(settings.out + "/report.json");
    write_summary(report, suite.cases[0], settings.out + "/summary.json");
    for (const Result& result : report.results)
      if (!result.why.empty()) std::cout << to_string(result.verdict) << ": " << result.why << "\n";
  });
}

}  // namespace hypic
