#include "kernels/common/nccl.cuh"

#include <dlfcn.h>

#include "core/check.h"

namespace hypic::cuda {
namespace {

struct UniqueId {
  char bytes[sizeof(GroupId)];
};
enum { kFloat32 = 7, kBfloat16 = 9 };  // ncclDataType_t
enum { kSum = 0 };                     // ncclRedOp_t

struct Nccl {
  int (*GetUniqueId)(UniqueId*);
  int (*CommInitRank)(void** comm, int size, UniqueId, int rank);
  int (*AllReduce)(const void* from, void* to, size_t count, int type, int op, void* comm, cudaStream_t);
  int (*CommDestroy)(void* comm);
  const char* (*GetErrorString)(int);

  Nccl() {
    void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    require(library, "no NCCL: ", dlerror(), "; install it, or put its folder into LD_LIBRARY_PATH");
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      require(function, "libnccl.so.2 has no ", name);
    };
    find(GetUniqueId, "ncclGetUniqueId");
    find(CommInitRank, "ncclCommInitRank");
    find(AllReduce, "ncclAllReduce");
    find(CommDestroy, "ncclCommDestroy");
    find(GetErrorString, "ncclGetErrorString");
  }
};

const Nccl& nccl() {
  static const Nccl loaded;  // never unloaded: its threads outlive our last communicator
  return loaded;
}

void check_nccl(int result, const char* what) {
  if (result != 0) throw InternalError(str("NCCL: ", what, ": ", nccl().GetErrorString(result)));
}

}  // namespace

GroupId new_group_id() {
  UniqueId id;
  check_nccl(nccl().GetUniqueId(&id), "group id");
  GroupId out;
  std::copy(std::begin(id.bytes), std::end(id.bytes), out.begin());
  return out;
}

Communicator::Communicator(const Group& group) {
  require(0 <= group.rank && group.rank < group.size, "rank ", group.rank, " of ", group.size);
  UniqueId id;
  std::copy(group.id.begin(), group.id.end(), id.bytes);
  check_nccl(nccl().CommInitRank(&comm_, group.size, id, group.rank), "joining a group");
}

Communicator::~Communicator() { nccl().CommDestroy(comm_); }

void Communicator::all_reduce(const Tensor& tensor, cudaStream_t stream) const {
  HYPIC_CHECK(tensor.contiguous() && (tensor.dtype == DType::f32 || tensor.dtype == DType::bf16),
              "all_reduce of ", name_of(tensor.dtype), " ", tensor.shape_string());
  if (tensor.size() == 0) return;
  check_nccl(nccl().AllReduce(tensor.data, tensor.data, static_cast<size_t>(tensor.size()),
                              tensor.dtype == DType::f32 ? kFloat32 : kBfloat16, kSum, comm_, stream),
             "all_reduce");
}

}  // namespace hypic::cuda
