// Residues in a server that speaks the Redis protocol (Redis, Valkey). Not encrypted.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "serving/residue_store.h"

struct redisContext;

namespace hypic {

struct RedisOptions {
  std::string host = "127.0.0.1";
  int port = 6379;
  std::chrono::milliseconds timeout{500};  // to connect, and for each answer
  std::chrono::milliseconds pause{5'000};  // without it after something failed
  int64_t expire_seconds = 0;              // of what is put; 0: never, the server evicts by its own policy
};

// Values in chunks, for a server handles one at a time and takes no more than 512 MiB: "hypic:NAME:0" and so on, then
// "hypic:NAME" with their bytes in all, so that a value is there whole or not at all.
class RedisStore final : public ResidueStore {
 public:
  explicit RedisStore(const RedisOptions& options);
  ~RedisStore() override;
  std::optional<std::vector<uint8_t>> get(const std::string& name, int64_t bytes) override;
  void put(const std::string& name, std::span<const uint8_t> value) override;
  std::string error() override { return std::exchange(error_, {}); }

 private:
  bool connected();
  void give_up(const std::string& why);

  const RedisOptions options_;
  struct Free {
    void operator()(redisContext* context) const;
  };
  std::unique_ptr<redisContext, Free> context_;
  std::chrono::steady_clock::time_point again_{};  // not before
  std::string error_;
};

}  // namespace hypic
