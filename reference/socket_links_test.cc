#include "reference/socket_links.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "core/check.h"

namespace hypic::reference {
namespace {

struct Pair {
  Pair() {
    Links::Offer offer = a->offer();
    to = std::move(offer.link);
    from = b->join(offer.id);
  }
  const std::unique_ptr<Links> a = make_socket_links(), b = make_socket_links();
  std::unique_ptr<PairLink> from, to;
};

std::vector<uint8_t> bytes_of(size_t n) {
  std::vector<uint8_t> bytes(n);
  std::iota(bytes.begin(), bytes.end(), uint8_t{3});
  return bytes;
}

TEST(SocketLinks, BytesComeInTheirOrder) {
  Pair pair;
  EXPECT_NE(pair.a->device(), pair.b->device());
  EXPECT_EQ(pair.to->done(), 0);  // nobody has come yet
  const std::vector<uint8_t> first = bytes_of(10), second = bytes_of(3'000'000);
  std::vector<uint8_t> got_first(10), got_second(second.size());
  pair.from->send(first.data(), 10);
  pair.from->send(second.data(), static_cast<int64_t>(second.size()));
  EXPECT_GE(pair.from->done(), 1);
  EXPECT_LT(pair.from->done(), 3);  // more than a socket holds
  pair.to->receive(got_first.data(), 10);
  pair.to->receive(got_second.data(), static_cast<int64_t>(got_second.size()));
  while (pair.to->done() < 3) pair.from->done();
  EXPECT_EQ(pair.from->done(), 3);
  EXPECT_EQ(got_first, first);
  EXPECT_EQ(got_second, second);
}

TEST(SocketLinks, EndsThatDisagreeOrAreGoneBreakIt) {
  const std::vector<uint8_t> sent = bytes_of(10);
  std::vector<uint8_t> got(20);
  {
    Pair pair;
    pair.from->send(sent.data(), 10);
    EXPECT_EQ(pair.from->done(), 2);
    pair.to->receive(got.data(), 20);
    EXPECT_THROW(pair.to->done(), Error);
  }
  {
    Pair pair;
    EXPECT_EQ(pair.from->done(), 1);
    pair.to->receive(got.data(), 10);
    EXPECT_EQ(pair.to->done(), 1);
    pair.from.reset();
    EXPECT_THROW(pair.to->done(), Error);
  }
  Links::Offer offer = make_socket_links()->offer();
  offer.link.reset();
  const auto links = make_socket_links();
  EXPECT_THROW(links->join(offer.id)->done(), Error);
  EXPECT_THROW(links->join("nccl"), Error);
}

}  // namespace
}  // namespace hypic::reference
