// Links between CPU backends of one machine: local sockets, moved on by whoever asks how far they are.
#pragma once

#include <memory>

#include "core/pair_link.h"

namespace hypic::reference {

// Each is a device of its own.
std::unique_ptr<Links> make_socket_links();

}  // namespace hypic::reference
