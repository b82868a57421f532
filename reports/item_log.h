// What a case has finished of its items, one JSON line each, so that a stopped case need not compute them again.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "reports/line_log.h"

namespace hypic {

// Rows of all cases of a run, in dir/items.jsonl; their first field, "case", says whose they are. There is no file
// before the first row.
class ItemLog {
 public:
  static constexpr const char* kFile = "items.jsonl";

  // Reads what an earlier run into dir left, or begins anew where that is not to be kept. Error: as LineLog.
  void open(const std::string& dir, bool keep);

  bool empty() const { return earlier_.empty(); }  // of earlier rows
  const std::vector<nlohmann::json>& earlier(const std::string& case_name) const;

  // On disk when it returns. A failed append leaves the file as it was. Throws Error.
  void append(const std::string& case_name, const std::vector<nlohmann::ordered_json>& rows);

 private:
  void open_file(bool keep);
  std::string dir_;
  std::map<std::string, std::vector<nlohmann::json>> earlier_;
  std::optional<LineLog> lines_;
};

}  // namespace hypic
