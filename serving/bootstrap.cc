#include "serving/bootstrap.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>

#include "core/check.h"

namespace hypic {
namespace {

constexpr size_t kMostNodes = 65536;
constexpr int64_t kMostPort = 65535;

// Error: no whole number in [least, most].
int64_t number(std::string_view text, int64_t least, int64_t most, const std::string& what) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size() && least <= value && value <= most, what, ": \"",
          text, "\" is no number in ", least, " … ", most);
  return value;
}

std::string first_set(const Variables& variables, const std::string& one, const std::string& other) {
  std::string value = variables(one);
  if (value.empty()) value = variables(other);
  require(!value.empty(), "neither ", one, " nor ", other, " is set; is this a step of Slurm?");
  return value;
}

}  // namespace

std::string_view name_of(Role role) { return role == Role::combine ? "combine" : "scatter"; }

Role role_named(std::string_view name) {
  for (const Role role : {Role::scatter, Role::combine})
    if (name == name_of(role)) return role;
  fail("unknown role \"", name, "\"; there are scatter and combine");
}

HostPort host_port(const std::string& address, const std::string& what) {
  const size_t colon = address.rfind(':');
  require(colon != address.npos && colon > 0, what, ": \"", address, "\" is no HOST:PORT");
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {host, static_cast<uint16_t>(number(std::string_view(address).substr(colon + 1), 0, kMostPort, what))};
}

std::vector<WorkerAddress> workers_of_file(std::string_view text, const std::string& where) {
  std::vector<WorkerAddress> workers;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int n = 1; std::getline(lines, line); ++n) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string role, address, more;
    if (!(words >> role)) continue;
    const std::string place = str(where, ":", n);
    require(words >> address && !(words >> more), place, ": a line is a role and HOST:PORT");
    try {
      workers.push_back({role_named(role), address});
    } catch (const Error& error) {
      fail(place, ": ", error.what());
    }
    require(host_port(address, place).port > 0, place, ": port 0 is none");
  }
  require(std::any_of(workers.begin(), workers.end(), [](const auto& one) { return one.role == Role::combine; }), where,
          ": names no worker that combines");
  return workers;
}

Variables process_variables() {
  return [](const std::string& name) {
    const char* const value = std::getenv(name.c_str());
    return value ? std::string(value) : std::string();
  };
}

std::vector<std::string> slurm_nodes(std::string_view list) {
  std::vector<std::string> nodes;
  const auto add = [&](std::string node) {
    require(nodes.size() < kMostNodes, "a list of more than ", kMostNodes, " nodes");
    nodes.push_back(std::move(node));
  };
  while (!list.empty()) {
    const size_t end = list.find_first_of(",[");
    const std::string prefix(list.substr(0, end));
    require(!prefix.empty(), "a list of nodes has an empty name before \"", list, "\"");
    if (end == list.npos || list[end] == ',') {
      add(prefix);
    } else {
      const size_t close = list.find(']', end);
      require(close != list.npos, "a list of nodes lacks a ] in \"", list, "\"");
      std::string_view ranges = list.substr(end + 1, close - end - 1);
      require(!ranges.empty(), "a list of nodes has empty brackets");
      while (!ranges.empty()) {
        const size_t comma = ranges.find(',');
        const std::string_view range = ranges.substr(0, comma);
        ranges = comma == ranges.npos ? std::string_view() : ranges.substr(comma + 1);
        const size_t dash = range.find('-');
        const std::string_view low = range.substr(0, dash), high = dash == range.npos ? low : range.substr(dash + 1);
        const int64_t from = number(low, 0, 1'000'000'000, "nodes"), to = number(high, from, 1'000'000'000, "nodes");
        for (int64_t i = from; i <= to; ++i) {
          std::string digits = std::to_string(i);
          if (digits.size() < low.size()) digits.insert(0, low.size() - digits.size(), '0');
          add(prefix + digits);
        }
      }
      list = list.substr(close + 1);
      require(list.empty() || list[0] == ',', "a list of nodes goes on with \"", list, "\" behind a ]");
      if (list.empty()) return nodes;
      list = list.substr(1);
      continue;
    }
    if (end == list.npos) return nodes;
    list = list.substr(end + 1);
  }
  return nodes;
}

std::vector<WorkerAddress> workers_of_slurm(const Variables& variables, uint16_t port) {
  const std::vector<std::string> nodes = slurm_nodes(first_set(variables, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"));
  // "2(x3),1": two tasks on each of three nodes, then one.
  const std::string tasks = first_set(variables, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  std::vector<int64_t> counts;
  std::istringstream parts(tasks);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t times = part.find("(x");
    int64_t repeat = 1;
    if (times != part.npos) {
      require(part.back() == ')', "SLURM_TASKS_PER_NODE: \"", tasks, "\" lacks a )");
      repeat = number(std::string_view(part).substr(times + 2, part.size() - times - 3), 1, kMostNodes,
                      "SLURM_TASKS_PER_NODE");
    }
    const int64_t count = number(std::string_view(part).substr(0, times), 1, 1024, "SLURM_TASKS_PER_NODE");
    require(counts.size() + repeat <= kMostNodes, "SLURM_TASKS_PER_NODE: too many nodes");
    counts.insert(counts.end(), repeat, count);
  }
  require(counts.size() == nodes.size(), "Slurm names ", nodes.size(), " nodes and the tasks of ", counts.size());
  std::vector<WorkerAddress> workers;
  for (size_t i = 0; i < nodes.size(); ++i)
    for (int64_t task = 0; task < counts[i]; ++task) {
      require(port + task <= kMostPort, "port ", port + task, " is none");
      workers.push_back({workers.empty() ? Role::combine : Role::scatter, str(nodes[i], ":", port + task)});
    }
  return workers;
}

std::vector<WorkerAddress> workers_of_lws(const Variables& variables, uint16_t port) {
  const std::string leader = variables("LWS_LEADER_ADDRESS"), size = variables("LWS_GROUP_SIZE");
  require(!leader.empty() && !size.empty(),
          "LWS_LEADER_ADDRESS and LWS_GROUP_SIZE are not set; is this a pod of a "
          "LeaderWorkerSet?");
  const int64_t count = number(size, 1, kMostNodes, "LWS_GROUP_SIZE");
  // Pod NAME-GROUP leads, NAME-GROUP-1 and so on follow, in the same domain.
  const size_t dot = leader.find('.');
  const std::string pod = leader.substr(0, dot), domain = dot == leader.npos ? "" : leader.substr(dot);
  std::vector<WorkerAddress> workers = {{Role::combine, str(leader, ":", port)}};
  for (int64_t i = 1; i < count; ++i) workers.push_back({Role::scatter, str(pod, "-", i, domain, ":", port)});
  return workers;
}

std::vector<WorkerAddress> workers_of_dns(Role role, const std::string& name) {
  const HostPort wanted = host_port(name, "dns");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(wanted.host.c_str(), std::to_string(wanted.port).c_str(), &hints, &found);
  require(failed == 0, name, ": cannot be resolved: ", gai_strerror(failed));
  std::vector<WorkerAddress> workers;
  for (const addrinfo* a = found; a; a = a->ai_next) {
    char text[INET6_ADDRSTRLEN] = "";
    if (a->ai_family == AF_INET)
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(a->ai_addr)->sin_addr, text, sizeof(text));
    else if (a->ai_family == AF_INET6)
      inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(a->ai_addr)->sin6_addr, text, sizeof(text));
    const std::string host = a->ai_family == AF_INET6 ? str("[", text, "]") : std::string(text);
    workers.push_back({role, str(host, ":", wanted.port)});
  }
  freeaddrinfo(found);
  return workers;
}

}  // namespace hypic
