#include "serving/residue_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/check.h"
#include "core/temporary_folder.h"

namespace hypic {
namespace {

namespace fs = std::filesystem;

TEST(ResidueStore, FoldersKeepWholeValues) {
  const TemporaryFolder folder;
  FolderStore store(folder.path() + "/a/b"), other(folder.path() + "/a/b");
  const std::vector<uint8_t> value = {1, 2, 3};
  EXPECT_FALSE(other.get("x", 3));
  store.put("x", value);
  store.put("x", value);
  EXPECT_EQ(other.get("x", 3), value);
  EXPECT_FALSE(other.get("x", 4));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path() + "/a/b"), {}), 1);
  EXPECT_EQ(store.error() + other.error(), "");
  fs::remove_all(folder.path() + "/a");
  store.put("y", value);
  EXPECT_NE(store.error(), "");
  EXPECT_FALSE(store.get("y", 3));
  std::ofstream(folder.path() + "/file") << "x";
  EXPECT_THROW(FolderStore(folder.path() + "/file"), Error);
}

TEST(ResidueStore, DamageAndOtherNamesAreSeen) {
  const Sha256::Digest model{1}, other{2};
  const std::string name = residue_name(model, {1, 2}, 8, 0);
  for (const std::string& different : {residue_name(other, {1, 2}, 8, 0), residue_name(model, {1, 3}, 8, 0),
                                       residue_name(model, {1, 2}, 0, 0), residue_name(model, {1, 2}, 8, 1)})
    EXPECT_NE(name, different);
  const std::vector<uint8_t> layers = {9, 8, 7};
  std::vector<uint8_t> value = stored_residue(name, layers);
  ASSERT_EQ(value.size(), kStoredHead + layers.size());
  const auto found = layers_of(name, value);
  EXPECT_EQ(std::vector<uint8_t>(found.begin(), found.end()), layers);
  EXPECT_TRUE(layers_of(residue_name(model, {1, 3}, 8, 0), value).empty());
  EXPECT_TRUE(layers_of(name, std::span(value).first(10)).empty());
  for (uint8_t& byte : value) {
    byte ^= 1;
    EXPECT_TRUE(layers_of(name, value).empty());
    byte ^= 1;
  }
}

}  // namespace
}  // namespace hypic
