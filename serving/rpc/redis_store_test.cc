#include "serving/rpc/redis_store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <thread>

#include "core/check.h"

namespace hypic {
namespace {

using namespace std::chrono_literals;

// A redis-server on a port of its own, without files.
class Server {
 public:
  explicit Server(const std::string& memory = "100mb") {
    std::random_device random;
    for (int attempt = 0; attempt < 5 && port_ == 0; ++attempt) {
      const int port = 20000 + static_cast<int>(random() % 40000);
      const std::string number = std::to_string(port);
      pid_ = fork();
      if (pid_ == 0) {
        if (!freopen("/dev/null", "w", stdout)) _exit(127);
        execlp("redis-server", "redis-server", "--port", number.c_str(), "--bind", "127.0.0.1", "--save", "",
               "--appendonly", "no", "--maxmemory", memory.c_str(), "--maxmemory-policy", "allkeys-lru", nullptr);
        _exit(127);
      }
      for (int i = 0; i < 200; ++i) {
        int status = 0;
        if (waitpid(pid_, &status, WNOHANG) == pid_) {
          missing_ = WIFEXITED(status) && WEXITSTATUS(status) == 127;
          pid_ = 0;
          break;
        }
        RedisStore store({.port = port, .timeout = 200ms, .pause = 0ms});
        store.put("probe", std::vector<uint8_t>(1));
        if (store.error().empty()) {
          port_ = port;
          return;
        }
        std::this_thread::sleep_for(25ms);
      }
      stop();
      if (missing_) return;
    }
  }
  ~Server() { stop(); }
  void stop() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  int port() const { return port_; }
  bool missing() const { return missing_; }

 private:
  pid_t pid_ = 0;
  int port_ = 0;
  bool missing_ = false;
};

std::vector<uint8_t> bytes_of(size_t n, int seed) {
  std::mt19937 rng(seed);
  std::vector<uint8_t> bytes(n);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng());
  return bytes;
}

TEST(RedisStore, KeepsValuesOfAnySizeWhole) {
  Server server;
  if (server.missing()) GTEST_SKIP() << "redis-server is not installed";
  ASSERT_NE(server.port(), 0);
  RedisStore store({.port = server.port(), .timeout = 10s}), other({.port = server.port(), .timeout = 10s});
  for (const size_t size : {size_t{1}, size_t{1} << 22, (size_t{1} << 22) + 1, size_t{9} << 20}) {
    const auto value = bytes_of(size, static_cast<int>(size));
    const std::string name = str("value ", size);
    EXPECT_FALSE(other.get(name, static_cast<int64_t>(size)));
    store.put(name, value);
    EXPECT_EQ(store.error(), "");
    EXPECT_EQ(other.get(name, static_cast<int64_t>(size)), value);
    EXPECT_FALSE(other.get(name, static_cast<int64_t>(size) + 1));  // of another model
  }
  EXPECT_EQ(other.error(), "");
}

TEST(RedisStore, WhatIsEvictedInPartIsGone) {
  Server server("16mb");
  if (server.missing()) GTEST_SKIP() << "redis-server is not installed";
  ASSERT_NE(server.port(), 0);
  RedisStore store({.port = server.port(), .timeout = 10s});
  constexpr int64_t kBytes = int64_t{6} << 20;
  int there = 0;
  for (int i = 0; i < 8; ++i) store.put(str(i), bytes_of(kBytes, i));
  for (int i = 0; i < 8; ++i)
    if (const auto value = store.get(str(i), kBytes)) {
      EXPECT_EQ(*value, bytes_of(kBytes, i));
      ++there;
    }
  EXPECT_LT(there, 8);
}

TEST(RedisStore, WithoutAServerEverythingIsAMiss) {
  Server server;
  if (server.missing()) GTEST_SKIP() << "redis-server is not installed";
  ASSERT_NE(server.port(), 0);
  RedisStore store({.port = server.port(), .timeout = 2s, .pause = 1h});
  store.put("a", bytes_of(10, 1));
  EXPECT_TRUE(store.get("a", 10));
  server.stop();
  EXPECT_FALSE(store.get("a", 10));
  EXPECT_NE(store.error(), "");
  store.put("b", bytes_of(10, 1));  // and does not try again for a while
  EXPECT_FALSE(store.get("a", 10));
  EXPECT_EQ(store.error(), "");
}

}  // namespace
}  // namespace hypic
