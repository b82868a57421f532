// What the commands that serve share: the engine's options, those of the door that clients come through, signals.
#pragma once

#include <signal.h>

#include <CLI/App.hpp>
#include <cstdint>
#include <string>

#include "harness/model_choice.h"
#include "models/spec.h"
#include "serving/engine.h"
#include "serving/http_server.h"

namespace hypic {

struct EngineChoice {
  std::string model = kDefaultModel, backend = "cpu", mode = "transition_rope_seam";
  EngineOptions engine;
  int64_t tokens = 0, requests = 64, segments = 0, host_mib = 0, disk_mib = 0;
};
void add_engine_options(CLI::App& command, EngineChoice& choice);
// Sets pools and tiers as chosen: a state a running request and a build, an operator a cached segment, pages for the
// tokens.
void complete(EngineChoice& choice, const ModelSpec& spec);

struct DoorChoice {
  ServerOptions server;
  std::string chat = "auto", tokenizer, key_file;
  int64_t port = 8000, body_mib = 16, max_waiting = 256;
  double request_timeout = 600, grace = 60;
};
void add_door_options(CLI::App& command, DoorChoice& choice);
// Sets what follows from the model: its name to clients, tokenizer, template, end tokens and limits. Error: files that
// cannot be used.
void complete(DoorChoice& choice, const std::string& model, const std::string& path, const ModelSpec& spec);

// Takes SIGINT and SIGTERM over, before any other thread starts. Until say_ready() there is nothing to end in order:
// one ends the process at once.
void take_signals();
// From here on they ask for an orderly end. The line goes to standard output.
void say_ready(const std::string& line);
// Until one of them comes. A SIGINT then ends the process at once, unless it comes within a second: that is the first
// one again, as those get it that a terminal's process group and a parent both send it to.
void wait_for_signal();
// What is left is to let go of everything: such a SIGINT no longer kills, but exits with this code.
void ends_with(int status);
// Serves until then; the exit code.
int serve_until_signal(HttpServer& http, const DoorChoice& choice);
// "http://HOST:PORT"
std::string url_of(const HttpServer& http, const DoorChoice& choice);

}  // namespace hypic
