// Backends by name.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/pair_link.h"

namespace hypic {

// "cpu" (float32), "cpu64" (float64), "cuda" (bfloat16), "cuda32" (float32 operands), the latter two on the
// fast rung, or as "cuda:78" on it with launches planned for 78 multiprocessors, or as "cuda:plain" on the plain one; or
// "broken:FAULT": cpu with one operation wrong on purpose (harness/cases/broken.h). "BACKEND+FILE": BACKEND with the operations of the plug-in in FILE, in a child process only
// (harness/kernel_process.h). `device`: which GPU, of those that have several. Error: an unknown name, with those there
// are, or as of make_plugin_backend.
std::unique_ptr<Backend> make_backend(const std::string& name, int device = 0);

// The ranks of a tensor-parallel group: of cpu and cpu64 threads of this process; of cuda and cuda32, on either rung, one a
// device: all different, or all the same, which tries the ranks on one GPU. Error: another backend; as of make_backend.
std::vector<std::unique_ptr<Backend>> make_ranks(const std::string& name, std::span<const int> devices);
// Links from the device of make_backend(name, device): through NCCL from a GPU, from the CPU through local sockets. Error:
// another backend; as of make_nccl_links.
std::unique_ptr<Links> make_links(const std::string& name, int device = 0);
// Whether it is a backend of a GPU, with or without a plug-in; not so for an unknown name.
bool on_gpu(const std::string& name);

// `backend` on a rung of kernels, "plain" or "fast" ("": as it is). Error: another rung, or a backend that has
// none.
std::string on_rung(const std::string& backend, const std::string& rung);

// `backend` ("": cpu) with the plug-in in `file`. Error: no such file, or a backend that takes none.
std::string with_kernel(const std::string& backend, const std::string& file);

}  // namespace hypic
