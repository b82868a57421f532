// Links between GPUs through NCCL, on one machine or two: a communicator of two ranks for each.
#pragma once

#include <memory>

#include "core/pair_link.h"

namespace hypic::cuda {

// Of this device. NCCL's own variables say which networks it takes (NCCL_SOCKET_IFNAME, NCCL_IB_HCA) and which machine
// this is (NCCL_HOSTID). Error: built without CUDA, no such GPU, no NCCL.
std::unique_ptr<Links> make_nccl_links(int device);

}  // namespace hypic::cuda
