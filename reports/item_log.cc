#include "reports/item_log.h"

#include <filesystem>

#include "core/check.h"
#include "core/json.h"

namespace hypic {
namespace {

constexpr std::size_t kMaxItemBytes = std::size_t{4} << 30;

}  // namespace

void ItemLog::open(const std::string& dir, bool keep) {
  dir_ = dir;
  std::error_code error;
  if (std::filesystem::exists(dir + "/" + kFile, error)) open_file(keep);
}

void ItemLog::open_file(bool keep) {
  lines_.emplace(dir_ + "/" + kFile, keep, kMaxItemBytes, [&](const std::string& text) {
    nlohmann::json row = parse_json(text, "not an item", {.name_line = false});
    const auto name = row.find("case");
    require(name != row.end() && name->is_string(), "not an item: it names no case");
    earlier_[name->get<std::string>()].push_back(std::move(row));
  });
}

const std::vector<nlohmann::json>& ItemLog::earlier(const std::string& case_name) const {
  static const std::vector<nlohmann::json> none;
  const auto found = earlier_.find(case_name);
  return found == earlier_.end() ? none : found->second;
}

void ItemLog::append(const std::string& case_name, const std::vector<nlohmann::ordered_json>& rows) {
  if (!lines_) open_file(false);
  std::vector<std::string> texts;
  for (const nlohmann::ordered_json& row : rows) {
    nlohmann::ordered_json named = {{"case", case_name}};
    named.update(row);
    texts.push_back(named.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
  lines_->append(texts);
}

}  // namespace hypic
