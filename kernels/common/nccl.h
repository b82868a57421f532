// NCCL, loaded when it is first asked for: a machine without it runs everything on one device. The declarations are
// those of nccl.h (as they are since NCCL 2.14), so that building needs no headers of it either.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace hypic::cuda {

struct Nccl {
  using Comm = void*;
  using Stream = CUstream_st*;
  enum { kSuccess = 0, kInProgress = 7 };                       // ncclResult_t
  enum { kInt8 = 0, kInt32 = 2, kFloat32 = 7, kBfloat16 = 9 };  // ncclDataType_t
  enum { kSum = 0 };                                            // ncclRedOp_t
  struct UniqueId {
    char internal[128];
  };
  struct Config {  // ncclConfig_t of 2.14, which later versions take
    size_t size = sizeof(Config);
    uint32_t magic = 0xcafebeef, version = 21400;
    int blocking = 1, none = 0;
  };

  int (*CommInitAll)(Comm* comms, int size, const int* devices);
  int (*AllReduce)(const void* from, void* to, size_t count, int type, int op, Comm, Stream);
  int (*CommDestroy)(Comm);
  int (*CommAbort)(Comm);
  const char* (*GetErrorString)(int);
  int (*GetUniqueId)(UniqueId*);
  int (*CommInitRankConfig)(Comm*, int size, UniqueId, int rank, Config*);
  int (*CommGetAsyncError)(Comm, int* result);
  const char* (*GetLastError)(Comm);
  int (*Send)(const void* from, size_t count, int type, int peer, Comm, Stream);
  int (*Recv)(void* to, size_t count, int type, int peer, Comm, Stream);
};

// Error: there is none on this machine.
const Nccl& nccl();

}  // namespace hypic::cuda
