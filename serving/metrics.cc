#include "serving/metrics.h"

#include <algorithm>

#include "core/check.h"

namespace hypic {
namespace {

std::string header(const std::string& name, const std::string& help, const char* type) {
  return str("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

}  // namespace

void Histogram::add(double seconds) {
  ++counts_[std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin()];
  sum_ += seconds;
}

std::string Histogram::text(const std::string& name, const std::string& help) const {
  std::string text = header(name, help, "histogram");
  int64_t count = 0;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    count += counts_[i];
    text += str(name, "_bucket{le=\"", kBounds[i], "\"} ", count, "\n");
  }
  count += counts_.back();
  return text +
         str(name, "_bucket{le=\"+Inf\"} ", count, "\n", name, "_sum ", sum_, "\n", name, "_count ", count, "\n");
}

void Metrics::answered(int status) {
  const std::scoped_lock lock(mutex_);
  ++answered_[status];
}

void Metrics::together(int64_t prompts) {
  const std::scoped_lock lock(mutex_);
  prompts_ += prompts;
  ++submissions_;
}

double Metrics::prompts_together() const {
  const std::scoped_lock lock(mutex_);
  return static_cast<double>(prompts_) / static_cast<double>(submissions_);
}

void Metrics::prompt(int64_t tokens, const Reused& reused) {
  const std::scoped_lock lock(mutex_);
  prompt_tokens_ += tokens;
  reused_.prefix += reused.prefix;
  reused_.segments += reused.segments;
  reused_.recomputed += reused.recomputed;
}

void Metrics::first_token(double seconds) {
  const std::scoped_lock lock(mutex_);
  first_.add(seconds);
  ++answer_tokens_;
}

void Metrics::next_token(double seconds) {
  const std::scoped_lock lock(mutex_);
  next_.add(seconds);
  ++answer_tokens_;
}

void Metrics::finished(double seconds, const std::string& why) {
  const std::scoped_lock lock(mutex_);
  ++finished_[why];
  whole_.add(seconds);
}

std::string Metrics::text(const Load& load) const {
  const std::scoped_lock lock(mutex_);
  std::string text;
  const auto one = [&](const char* name, const char* help, const char* type, auto value) {
    text += header(name, help, type) + str(name, " ", value, "\n");
  };
  const auto family = [&](const char* name, const char* help, const char* type, const char* label, const auto& values) {
    text += header(name, help, type);
    for (const auto& [key, value] : values) text += str(name, "{", label, "=\"", key, "\"} ", value, "\n");
  };
  using Values = std::vector<std::pair<const char*, int64_t>>;
  one("hypic_ready", "1 once warm and until the server drains", "gauge", load.ready() && !load.draining ? 1 : 0);
  one("hypic_requests_running", "Requests on the engine", "gauge", load.running);
  one("hypic_requests_waiting", "Requests that wait for room", "gauge", load.waiting);
  family("hypic_http_responses_total", "Answers by status", "counter", "status", answered_);
  family("hypic_requests_finished_total", "Requests by how they ended", "counter", "reason", finished_);
  one("hypic_prompt_tokens_total", "Tokens of prompts", "counter", prompt_tokens_);
  one("hypic_prompts_started_total", "Prompts that have begun to run", "counter", prompts_);
  one("hypic_prompt_submissions_total", "Of them those that started together counted once", "counter", submissions_);
  family("hypic_cached_tokens_total", "Tokens of prompts that were in the cache, by kind", "counter", "kind",
         Values{{"prefix", reused_.prefix}, {"segment", reused_.segments}});
  one("hypic_seam_tokens_total", "Tokens of cached segments that were computed again", "counter", reused_.recomputed);
  one("hypic_generation_tokens_total", "Tokens of answers", "counter", answer_tokens_);
  if (const auto& cache = load.cache) {
    family("hypic_cache_lookups_total", "Lookups of segments and prefixes", "counter", "result",
           Values{{"hit", cache->hits}, {"miss", cache->misses}});
    family("hypic_cache_lower_hits_total", "Hits that came from a lower tier", "counter", "tier",
           Values{{"host", cache->host_hits}, {"disk", cache->disk_hits}});
    family("hypic_cache_files_read_total", "Files of the disk that lookups needed, by whether they waited", "counter",
           "when", Values{{"ahead", cache->read_ahead}, {"late", cache->read_late}});
    family("hypic_cache_bytes", "Bytes of cached entries", "gauge", "tier",
           Values{{"device", cache->device.total()}, {"host", cache->host.total()}, {"disk", cache->disk.total()}});
    one("hypic_cache_entries", "Cached entries; a segment has two", "gauge", cache->entries);
    one("hypic_cache_evicted_total", "Entries that are gone for want of room", "counter", cache->evicted);
  }
  if (load.router) {
    one("hypic_router_workers_up", "Workers that are up", "gauge", load.router->workers_up);
    one("hypic_router_retried_total", "Requests that began again on another worker", "counter", load.router->retried);
    family("hypic_router_segments_total", "Segments of prompts, by who computes them or has them", "counter", "by",
           load.router->segments);
  }
  text += first_.text("hypic_time_to_first_token_seconds", "From a request's arrival to its first token");
  text += next_.text("hypic_inter_token_seconds", "Between two tokens of a request");
  text += whole_.text("hypic_request_seconds", "From a request's arrival to its end");
  return text;
}

}  // namespace hypic
