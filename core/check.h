// Checks and errors. Kinds of failure are exception types:
//   Error          bad input from outside (file, flag, request): one line that says what, where, what to do
//   OutOfMemory    an Error that a larger machine would not have
//   InternalError  a broken invariant of ours: file, line, expression
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace hypic {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct OutOfMemory : Error {
  using Error::Error;
};

struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

// The parts, streamed one after another.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(str(parts...));
}

// For input from outside.
template <class... Parts>
void require(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    fail(parts...);
}

}  // namespace hypic

// For invariants of ours: HYPIC_CHECK(a == b, "a ", a, " b ", b).
#define HYPIC_CHECK(condition, ...)                                                        \
  do {                                                                                     \
    if (!(condition)) [[unlikely]]                                                         \
      throw ::hypic::InternalError(::hypic::str(__FILE__, ":", __LINE__, ": " #condition \
                                                " " __VA_OPT__(, ) __VA_ARGS__));          \
  } while (false)
