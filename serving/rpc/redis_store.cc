#include "serving/rpc/redis_store.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace hypic {
namespace {

constexpr int64_t kChunk = int64_t{4} << 20;

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

std::string name_of(const std::string& name) { return "hypic:" + name; }
std::string name_of(const std::string& name, int64_t chunk) { return str("hypic:", name, ":", chunk); }
int64_t chunks_of(int64_t bytes) { return (bytes + kChunk - 1) / kChunk; }

Reply next(redisContext* context) {
  void* reply = nullptr;
  return redisGetReply(context, &reply) == REDIS_OK ? Reply(static_cast<redisReply*>(reply)) : nullptr;
}

}  // namespace

void RedisStore::Free::operator()(redisContext* context) const { redisFree(context); }

RedisStore::RedisStore(const RedisOptions& options) : options_(options) {}
RedisStore::~RedisStore() = default;

// The server stays away for a while: requests must not wait for it one after another.
void RedisStore::give_up(const std::string& why) {
  error_ = str(options_.host, ":", options_.port, ": ", why);
  context_.reset();
  again_ = std::chrono::steady_clock::now() + options_.pause;
}

bool RedisStore::connected() {
  if (context_) return true;
  if (std::chrono::steady_clock::now() < again_) return false;
  const timeval timeout{static_cast<time_t>(options_.timeout.count() / 1000),
                        static_cast<suseconds_t>(options_.timeout.count() % 1000 * 1000)};
  context_.reset(redisConnectWithTimeout(options_.host.c_str(), options_.port, timeout));
  if (!context_ || context_->err) {
    give_up(context_ ? context_->errstr : "no memory to connect");
    return false;
  }
  redisSetTimeout(context_.get(), timeout);
  return true;
}

std::optional<std::vector<uint8_t>> RedisStore::get(const std::string& name, int64_t bytes) {
  if (!connected()) return std::nullopt;
  const std::string head = name_of(name);
  const Reply whole(static_cast<redisReply*>(redisCommand(context_.get(), "GET %b", head.data(), head.size())));
  if (!whole || whole->type == REDIS_REPLY_ERROR) {
    give_up(whole ? whole->str : context_->errstr);
    return std::nullopt;
  }
  if (whole->type != REDIS_REPLY_STRING || std::string(whole->str, whole->len) != std::to_string(bytes))
    return std::nullopt;
  const int64_t chunks = chunks_of(bytes);
  for (int64_t i = 0; i < chunks; ++i) {
    const std::string chunk = name_of(name, i);
    redisAppendCommand(context_.get(), "GET %b", chunk.data(), chunk.size());
  }
  std::vector<uint8_t> value(bytes);
  bool there = true;
  for (int64_t i = 0; i < chunks; ++i) {
    const Reply reply = next(context_.get());
    if (!reply) {
      give_up(context_->errstr);
      return std::nullopt;
    }
    const int64_t size = std::min(kChunk, bytes - i * kChunk);
    if (reply->type == REDIS_REPLY_STRING && static_cast<int64_t>(reply->len) == size)
      std::memcpy(value.data() + i * kChunk, reply->str, size);
    else
      there = false;  // evicted, or being written anew; the other answers still come
  }
  if (!there) return std::nullopt;
  return value;
}

void RedisStore::put(const std::string& name, std::span<const uint8_t> value) {
  if (!connected()) return;
  const auto bytes = static_cast<int64_t>(value.size());
  const int64_t chunks = chunks_of(bytes);
  const std::string head = name_of(name), whole = std::to_string(bytes),
                    expire = std::to_string(options_.expire_seconds);
  const auto set = [&](const std::string& key, const void* data, size_t size) {
    if (options_.expire_seconds > 0)
      redisAppendCommand(context_.get(), "SET %b %b EX %s", key.data(), key.size(), data, size, expire.c_str());
    else
      redisAppendCommand(context_.get(), "SET %b %b", key.data(), key.size(), data, size);
  };
  for (int64_t i = 0; i <= chunks; ++i) {  // one at a time: the client keeps what it has not sent yet
    if (i < chunks)
      set(name_of(name, i), value.data() + i * kChunk, static_cast<size_t>(std::min(kChunk, bytes - i * kChunk)));
    else
      set(head, whole.data(), whole.size());
    const Reply reply = next(context_.get());
    if (!reply || reply->type == REDIS_REPLY_ERROR) return give_up(reply ? reply->str : context_->errstr);
  }
}

}  // namespace hypic
