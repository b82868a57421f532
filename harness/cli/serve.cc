#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "harness/cli/commands.h"
#include "harness/cli/run_options.h"
#include "harness/cli/serving_options.h"
#include "serving/scheduler.h"

namespace hypic {
namespace {

struct Options {
  EngineChoice engine;
  DoorChoice door;
  RankOptions ranks;
};

int serve(Options& options) {
  take_signals();
  auto& [chosen, door, ranks] = options;
  const std::vector<int> devices = ranks.chosen(chosen.backend);
  const std::string path = model_path(chosen.model);
  const ModelSpec spec = spec_of(path);
  complete(chosen, spec);
  complete(door, chosen.model, path, spec);
  const SchedulerOptions scheduling{.mode = mode_named(chosen.mode),
                                    .max_waiting = door.max_waiting,
                                    .prompt_rows = chosen.engine.max_rows};
  const OpenModel open({path, chosen.backend, devices});
  Engine engine(open.model(), chosen.engine);
  const PoolSizes& pools = chosen.engine.pools;
  door.server.info = nlohmann::ordered_json{{"model", door.server.model},
                                       {"model_type", spec.model_type},
                                       {"backend", open.backend().name()},
                                       {"tensor_parallel", ranks.count},
                                       {"mode", scheduling.mode.name},
                                       {"chat_template", name_of(door.server.api.chat)},
                                       {"tokenizer", door.server.tokenizer.has_value()},
                                       {"segment_separator", door.server.api.separator},
                                       {"max_positions", spec.max_positions},
                                       {"max_new_tokens", door.server.max_new_tokens},
                                       {"max_waiting", scheduling.max_waiting},
                                       {"chunk", chosen.engine.max_rows},
                                       {"state_slots", pools.state_slots},
                                       {"operator_slots", pools.operator_slots},
                                       {"pages", pools.pages},
                                       {"page_size", pools.page_size}}
                    .dump();
  Metrics metrics;
  Scheduler scheduler(engine, metrics, scheduling);
  HttpServer http(scheduler, metrics, door.server);
  scheduler.wait_until_warm();
  say_ready(str("hypic serves ", door.server.model, " on ", url_of(http, door)));
  return serve_until_signal(http, door);
}

}  // namespace

void add_serve(CLI::App& app, int& status) {
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP, as OpenAI's clients speak it");
  const auto options = std::make_shared<Options>();
  add_engine_options(*command, options->engine);
  add_rank_options(*command, options->ranks);
  add_door_options(*command, options->door);
  command->callback([options, &status] { status = serve(*options); });
}

}  // namespace hypic
