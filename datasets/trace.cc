#include "datasets/trace.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <list>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "core/check.h"
#include "core/json.h"
#include "datasets/rows.h"

namespace hypic {
namespace {

using nlohmann::json;

constexpr int64_t kMaxSegments = int64_t{1} << 27;
constexpr int64_t kMaxTokens = int64_t{1} << 30;  // of a segment or an output
constexpr int64_t kBlockTokens = 512;             // Mooncake's

int64_t checked_tokens(int64_t tokens, const char* what) {
  require(0 <= tokens && tokens <= kMaxTokens, what, " is ", tokens, ", not between 0 and 2^30");
  return tokens;
}

int64_t tokens_of(const json& value, const char* what) {
  // get<int64_t> would round 1.5 down and wrap what is over 2^63.
  require(is_integer_in(value, INT64_MIN, INT64_MAX), what, " is ", shown(value),
          ", not a number of tokens");
  return checked_tokens(value.get<int64_t>(), what);
}

int64_t parse_integer(std::string_view text, const char* what) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size(), what, " is \"", text,
          "\", not a whole number");
  return value;
}

// Numbers of segments or blocks, which get<int64_t> would round or wrap.
std::vector<int64_t> ids_of(const json& values, const char* what) {
  require(values.is_array(), what, " is ", shown(values), ", not an array of whole numbers");
  for (const json& value : values)
    require(is_integer_in(value, INT64_MIN, INT64_MAX), what, " holds ", shown(value),
            ", not a whole number below 2^63");
  return values.get<std::vector<int64_t>>();
}

double seconds_of(const json& value) {
  double seconds = 0;
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    require(error == std::errc() && end == text.data() + text.size(), "timestamp is ", shown(value),
            ", not a number");
  } else {
    seconds = value.get<double>();
  }
  require(std::isfinite(seconds), "timestamp is not finite");
  return seconds;
}

std::vector<std::string_view> split_commas(std::string_view line) {
  std::vector<std::string_view> cells;
  for (size_t end; (end = line.find(',')) != line.npos; line.remove_prefix(end + 1))
    cells.push_back(line.substr(0, end));
  cells.push_back(line);
  return cells;
}

// Columns hash_id and tokens of a CSV.
std::unordered_map<int64_t, int32_t> read_token_lengths(const std::string& path) {
  RowReader rows(path);
  std::string line;
  rows.next_line(line);
  const auto header = split_commas(line);
  const auto column = [&](std::string_view name) {
    const auto at = std::find(header.begin(), header.end(), name);
    require(at != header.end(), rows.where(), ": no column \"", name, "\"");
    return size_t(at - header.begin());
  };
  const size_t id = column("hash_id"), tokens = column("tokens"), columns = header.size();
  std::unordered_map<int64_t, int32_t> lengths;
  while (rows.next_line(line)) {
    if (line.empty()) continue;
    try {
      const auto cells = split_commas(line);
      require(cells.size() == columns, cells.size(), " columns, but the first line has ", columns);
      lengths[parse_integer(cells[id], "hash_id")] =
          int32_t(checked_tokens(parse_integer(cells[tokens], "tokens"), "tokens"));
    } catch (const Error& error) {
      fail(rows.where(), ": ", error.what());
    }
    require(int64_t(lengths.size()) <= kMaxSegments, path, ": holds too many rows");
  }
  return lengths;
}

// Builds a trace from rows; gives ids of any kind their numbers.
class Builder {
 public:
  void add(TraceRequest request) {
    segments_ += int64_t(request.segments.size()) + 1;
    require(segments_ <= kMaxSegments, "the trace holds over 2^27 segments");
    trace.requests.push_back(std::move(request));
  }
  uint32_t number(const std::string& id) {
    return numbers_.emplace(id, uint32_t(numbers_.size())).first->second;
  }
  uint32_t distinct() const { return uint32_t(numbers_.size()); }

  Trace trace;

 private:
  std::unordered_map<std::string, uint32_t> numbers_;
  int64_t segments_ = 0;
};

TraceRequest read_pic_row(const json& row, Builder& builder, std::vector<int32_t>& lengths) {
  TraceRequest request{
      seconds_of(row.at("timestamp")), {}, tokens_of(row.at("output_tokens"), "output_tokens")};
  require(row.at("segments").is_array(), "segments must be an array");
  for (const json& segment : row.at("segments")) {
    const json& id = segment.at("id");
    require(id.is_string() || id.is_number_integer(), "a segment's id is ", shown(id),
            ", neither a string nor a whole number");
    const uint32_t number = builder.number(id.dump());  // "1" and 1 differ
    const auto tokens = int32_t(tokens_of(segment.at("tokens"), "tokens"));
    if (number == lengths.size()) lengths.push_back(tokens);
    require(lengths[number] == tokens, "segment ", shown(id), " has ", tokens, " tokens, but had ",
            lengths[number], " before");
    request.segments.push_back({number, tokens});
  }
  return request;
}

TraceRequest read_ragpulse_row(const json& row, Builder& builder,
                               const std::unordered_map<int64_t, int32_t>& lengths) {
  TraceRequest request{
      seconds_of(row.at("timestamp")), {}, tokens_of(row.at("output_length"), "output_length")};
  for (const char* part : {"sys_prompt", "passages_ids", "history", "web_search", "user_input"}) {
    for (const int64_t id : ids_of(row.at("hash_ids").value(part, json::array()), part)) {
      const auto length = lengths.find(id);
      require(length != lengths.end(), "the token lengths hold no hash_id ", id);
      request.segments.push_back({builder.number(std::to_string(id)), length->second});
    }
  }
  return request;
}

TraceRequest read_mooncake_row(const json& row, Builder& builder) {
  TraceRequest request{seconds_of(row.at("timestamp")) / 1000,
                       {},
                       tokens_of(row.at("output_length"), "output_length")};
  int64_t left = tokens_of(row.at("input_length"), "input_length");
  const std::vector<int64_t> ids = ids_of(row.at("hash_ids"), "hash_ids");
  require(int64_t(ids.size()) == (left + kBlockTokens - 1) / kBlockTokens, ids.size(),
          " hash_ids for ", left, " tokens; expected one for every 512");
  for (const int64_t id : ids) {
    const auto tokens = int32_t(std::min(left, kBlockTokens));
    request.segments.push_back({builder.number(std::to_string(id)), tokens});
    left -= tokens;
  }
  return request;
}

// "2023-11-16 18:17:03.9799600", and "+00:00" after it.
double seconds_of_date(std::string_view text) {
  const std::string copy(text.substr(0, 64));
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, end = 0;
  double second = 0;
  const int fields = std::sscanf(copy.c_str(), "%4d-%2d-%2d %2d:%2d:%12lf%n", &year, &month, &day,
                                 &hour, &minute, &second, &end);
  const std::string_view rest = text.substr(std::min(size_t(end), text.size()));
  const auto date = std::chrono::year(year) / month / day;
  require(fields == 6 && date.ok() && 0 <= hour && hour < 24 && 0 <= minute && minute < 60 &&
              0 <= second && second < 61 && (rest.empty() || rest == "+00:00"),
          "TIMESTAMP is \"", text, "\", not a UTC time such as 2023-11-16 18:17:03.97");
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return double(days) * 86400 + hour * 3600 + minute * 60 + second;
}

constexpr std::string_view kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

void read_azure(RowReader& rows, Builder& builder) {
  std::string line;
  double begin = 0;
  rows.next_line(line);  // the header
  while (rows.next_line(line)) {
    if (line.empty()) continue;
    try {
      const auto cells = split_commas(line);
      require(cells.size() == 3, cells.size(), " columns, expected 3");
      const double seconds = seconds_of_date(cells[0]);
      if (builder.trace.requests.empty()) begin = seconds;
      const auto tokens =
          int32_t(checked_tokens(parse_integer(cells[1], "ContextTokens"), "ContextTokens"));
      const auto id = uint32_t(builder.trace.requests.size());
      builder.add({seconds - begin,
                   {{id, tokens}},
                   checked_tokens(parse_integer(cells[2], "GeneratedTokens"), "GeneratedTokens")});
    } catch (const Error& error) {
      fail(rows.where(), ": ", error.what());
    }
  }
  builder.trace.distinct = uint32_t(builder.trace.requests.size());
}

void read_json(RowReader& rows, const std::string& token_lengths, Builder& builder) {
  enum class Kind { pic, ragpulse, mooncake };
  Trace& trace = builder.trace;
  std::optional<Kind> kind;
  std::vector<int32_t> pic_lengths;
  std::unordered_map<int64_t, int32_t> ragpulse_lengths;
  for (json row; rows.next(row);) {
    try {
      require(row.is_object(), "a request must be an object, but this is ", row.type_name());
      if (!kind) {
        const bool ids = row.contains("hash_ids");
        require(ids || row.contains("segments"),
                "no known trace: neither \"segments\" (pic-trace) "
                "nor \"hash_ids\" (RAGPulse, Mooncake) is a field");
        kind = !ids ? Kind::pic : row["hash_ids"].is_object() ? Kind::ragpulse : Kind::mooncake;
        trace.format = *kind == Kind::pic        ? "pic-trace"
                       : *kind == Kind::ragpulse ? "RAGPulse"
                                                 : "Mooncake";
        trace.reuse = *kind == Kind::mooncake ? TraceReuse::prefix : TraceReuse::independent;
        if (*kind == Kind::ragpulse) ragpulse_lengths = read_token_lengths(token_lengths);
      }
      builder.add(*kind == Kind::pic        ? read_pic_row(row, builder, pic_lengths)
                  : *kind == Kind::ragpulse ? read_ragpulse_row(row, builder, ragpulse_lengths)
                                            : read_mooncake_row(row, builder));
    } catch (const json::exception& error) {
      fail(rows.where(), ": ", error.what());
    } catch (const Error& error) {
      fail(rows.where(), ": ", error.what());
    }
  }
  trace.distinct = builder.distinct();
}

// Least recently used keys under a budget of bytes.
class LruCache {
 public:
  LruCache(std::optional<int64_t> budget, TraceAdmission admission)
      : budget_(budget), admission_(admission) {}

  bool contains(uint64_t key) const { return entries_.contains(key); }

  void use(uint64_t key, int64_t bytes) {
    if (const auto entry = entries_.find(key); entry != entries_.end()) {
      order_.splice(order_.begin(), order_, entry->second);
      return;
    }
    if (admission_ == TraceAdmission::second && seen_.insert(key).second) return;
    if (budget_ && bytes > *budget_) return;
    for (; budget_ && held_ > *budget_ - bytes; order_.pop_back()) {
      held_ -= order_.back().bytes;
      entries_.erase(order_.back().key);
    }
    require(
        held_ <= std::numeric_limits<int64_t>::max() - bytes,
        "the cache would hold over 2^63 bytes; lower the bytes that a token or a segment takes");
    held_ += bytes;
    order_.push_front({key, bytes});
    entries_[key] = order_.begin();
    peak_ = std::max(peak_, held_);
  }

  int64_t peak() const { return peak_; }

 private:
  struct Entry {
    uint64_t key;
    int64_t bytes;
  };
  std::optional<int64_t> budget_;
  TraceAdmission admission_;
  std::list<Entry> order_;  // latest first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> entries_;
  std::unordered_set<uint64_t> seen_;
  int64_t held_ = 0, peak_ = 0;
};

// `keys` are what the segments of a request are cached by; `chained`: one is found only if all
// before it are.
template <class KeysOf>
ReuseShare replay(const Trace& trace, LruCache cache, bool chained, int64_t token_bytes,
                  int64_t fixed_bytes, KeysOf keys_of) {
  ReuseShare share;
  std::vector<uint64_t> keys;
  for (const TraceRequest& request : trace.requests) {
    keys.clear();
    keys_of(request, keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (cache.contains(keys[i])) {
        share.hit_tokens += request.segments[i].tokens;
        ++share.hit_segments;
      } else if (chained) {
        break;
      }
    }
    // From the last to the first, so that of a chain the end is evicted first.
    for (size_t i = keys.size(); i-- > 0;)
      cache.use(keys[i], request.segments[i].tokens * token_bytes + fixed_bytes);
  }
  share.peak_bytes = cache.peak();
  return share;
}

}  // namespace

Trace load_trace(const std::string& path, const std::string& token_lengths) {
  Builder builder;
  Trace& trace = builder.trace;
  RowReader rows(path);
  if (rows.starts_with(kAzureHeader)) {
    trace.format = "Azure";
    trace.reuse = TraceReuse::none;
    read_azure(rows, builder);
  } else {
    const auto beside = std::filesystem::path(path).parent_path() / "ragpulse_token_lengths.csv";
    read_json(rows, token_lengths.empty() ? beside.string() : token_lengths, builder);
  }
  require(!trace.requests.empty(), path, ": holds no request");
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](const auto& a, const auto& b) { return a.timestamp < b.timestamp; });
  return std::move(trace);
}

ReuseShare prefix_reuse(const Trace& trace, std::optional<int64_t> budget, TraceAdmission admission,
                        const ReuseCosts& costs) {
  // A chain's number: that of the chain before its last segment, and that segment.
  std::unordered_map<uint64_t, uint64_t> chains;
  return replay(trace, LruCache(budget, admission), true, costs.token_bytes, costs.snapshot_bytes,
                [&](const TraceRequest& request, std::vector<uint64_t>& keys) {
                  uint64_t chain = 0;
                  for (const TraceSegment& segment : request.segments) {
                    chain =
                        chains.emplace(chain << 32 | segment.id, chains.size() + 1).first->second;
                    keys.push_back(chain);
                  }
                });
}

ReuseShare independent_reuse(const Trace& trace, std::optional<int64_t> budget, TraceAdmission admission,
                             const ReuseCosts& costs) {
  return replay(trace, LruCache(budget, admission), false, costs.token_bytes, costs.segment_bytes,
                [](const TraceRequest& request, std::vector<uint64_t>& keys) {
                  for (const TraceSegment& segment : request.segments) keys.push_back(segment.id);
                });
}

TraceSize size_of(const Trace& trace) {
  TraceSize size;
  for (const TraceRequest& request : trace.requests) {
    size.segments += int64_t(request.segments.size());
    for (const TraceSegment& segment : request.segments) size.input_tokens += segment.tokens;
    size.output_tokens += request.output_tokens;
  }
  return size;
}

}  // namespace hypic
