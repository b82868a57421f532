// Where the workers of a router are: from a file, from Slurm's or LeaderWorkerSet's environment, from DNS.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace hypic {

enum class Role : uint8_t { scatter, combine };
std::string_view name_of(Role role);
Role role_named(std::string_view name);  // Error: unknown, with those there are

struct WorkerAddress {
  Role role = Role::scatter;
  std::string address;  // HOST:PORT of its control plane
  bool operator==(const WorkerAddress&) const = default;
};

inline constexpr uint16_t kControlPort = 7001;  // of the first worker of a machine, the next have the next ones

// Lines "scatter HOST:PORT" or "combine HOST:PORT"; empty ones and what follows # do not count. Error, with `where` and
// the line: anything else, or no worker that combines.
std::vector<WorkerAddress> workers_of_file(std::string_view text, const std::string& where);

// A variable of the environment; empty where it is not set.
using Variables = std::function<std::string(const std::string&)>;
Variables process_variables();

// One worker a task, the first one combines: SLURM_STEP_NODELIST (or SLURM_JOB_NODELIST) and
// SLURM_STEP_TASKS_PER_NODE (or SLURM_TASKS_PER_NODE). Task i of a node listens on port + i. Error: not set, or not in
// Slurm's form.
std::vector<WorkerAddress> workers_of_slurm(const Variables& variables, uint16_t port);
// The nodes of "gpu[01-03,7],login". Error: not of this form, or more than 65536.
std::vector<std::string> slurm_nodes(std::string_view list);

// One worker a pod of the group, the leader combines: LWS_LEADER_ADDRESS and LWS_GROUP_SIZE of the LeaderWorkerSet
// controller (github.com/kubernetes-sigs/lws), all on one port.
std::vector<WorkerAddress> workers_of_lws(const Variables& variables, uint16_t port);

// One worker for each address that NAME:PORT resolves to, in their order. Takes as long as the resolver does. Error: it
// does not resolve.
std::vector<WorkerAddress> workers_of_dns(Role role, const std::string& name);

// "HOST:PORT" or "[V6]:PORT" taken apart. Error, with what it is for: none.
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
HostPort host_port(const std::string& address, const std::string& what);

}  // namespace hypic
