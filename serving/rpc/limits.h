// What both ends of the control plane agree on.
#pragma once

namespace hypic::rpc {

inline constexpr int kMaxMessageBytes = 64 << 20;  // a prompt of ten million tokens
inline constexpr int kKeepaliveMs = 1000;          // between two signs of life that a router asks a quiet worker for
inline constexpr int kKeepaliveTimeoutMs = 2000;   // without an answer it is lost
// Between two tries to reach a worker that is away, at first and at most, and the time of one.
inline constexpr int kFirstRetryMs = 200, kRetryMs = 500, kConnectMs = 2000;

}  // namespace hypic::rpc
