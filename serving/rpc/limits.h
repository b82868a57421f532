// What both ends of the control plane agree on.
#pragma once

namespace hypic::rpc {

inline constexpr int kMaxMessageBytes = 64 << 20;  // a prompt of ten million tokens
inline constexpr int kKeepaliveMs = 1000;          // between two signs of life that a router asks a quiet worker for
inline constexpr int kKeepaliveTimeoutMs = 2000;   // without an answer it is lost

}  // namespace hypic::rpc
