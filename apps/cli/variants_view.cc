#include "cli/variants_view.h"

#include <algorithm>

#include "base/json.h"
#include "cli/table.h"

namespace df::cli {
namespace {

// What the table shows of a row; read strictly, for the server may be another program.
struct Row {
  std::string id, kind, parent, state, failure;
  bool pinned = false, auto_pinned = false;
  uint64_t bytes = 0, stored_bytes = 0, in_flight = 0;
  double requests_per_s = 0, load_s = 0, retry_s = 0;
  int64_t last_used_unix = 0;
};

Result<uint64_t> Count(const Json& object, std::string_view key) {
  DF_ASSIGN_OR_RETURN(const int64_t value, JsonIntOr(object, key, {.min = 0}, 0));
  return static_cast<uint64_t>(value);
}

Result<Row> ReadRow(const Json& json) {
  Row row;
  DF_ASSIGN_OR_RETURN(row.id, JsonString(json, "id"));
  DF_ASSIGN_OR_RETURN(row.kind, JsonStringOr(json, "kind", ""));
  DF_ASSIGN_OR_RETURN(row.parent, JsonStringOr(json, "parent", ""));
  DF_ASSIGN_OR_RETURN(row.state, JsonString(json, "state"));
  DF_ASSIGN_OR_RETURN(row.pinned, JsonBoolOr(json, "pinned", false));
  DF_ASSIGN_OR_RETURN(row.auto_pinned, JsonBoolOr(json, "auto_pinned", false));
  DF_ASSIGN_OR_RETURN(row.bytes, Count(json, "bytes"));
  DF_ASSIGN_OR_RETURN(row.stored_bytes, Count(json, "stored_bytes"));
  DF_ASSIGN_OR_RETURN(row.in_flight, Count(json, "in_flight"));
  DF_ASSIGN_OR_RETURN(row.requests_per_s, JsonNumberOr(json, "requests_per_second", 0));
  DF_ASSIGN_OR_RETURN(row.load_s, JsonNumberOr(json, "load_seconds", 0));
  DF_ASSIGN_OR_RETURN(row.last_used_unix, JsonIntOr(json, "last_used", {.min = 0}, 0));
  if (const Json* failure = JsonMemberOrNull(json, "failure"); failure != nullptr && failure->is_object()) {
    DF_ASSIGN_OR_RETURN(row.failure, JsonStringOr(*failure, "message", ""));
    DF_ASSIGN_OR_RETURN(row.retry_s, JsonNumberOr(*failure, "retry_in_seconds", 0));
  }
  return row;
}

Status NoList(const Status& status) {
  return Corrupt("the server's answer is no list of variants: " + status.message());
}

const char* PinWord(const Row& row) { return row.pinned ? "yes" : row.auto_pinned ? "auto" : ""; }

std::string AddRows(const std::vector<Row>& rows, const std::string& base, int64_t now_unix) {
  Table table({{"variant"},
               {"kind"},
               {"on"},
               {"state"},
               {"pinned"},
               {"in memory", Align::kRight},
               {"on disk", Align::kRight},
               {"running", Align::kRight},
               {"requests/s", Align::kRight},
               {"last used", Align::kRight},
               {"load", Align::kRight}});
  for (const Row& row : rows) {
    const auto idle_s = static_cast<double>(std::max<int64_t>(now_unix - row.last_used_unix, 0));
    table.AddRow({row.id, row.kind, row.parent == base ? "" : row.parent, row.state, PinWord(row),
                  row.bytes == 0 ? "" : FormatBytes(row.bytes), FormatBytes(row.stored_bytes),
                  row.in_flight == 0 ? "" : std::to_string(row.in_flight), FormatFixed(row.requests_per_s, 2),
                  row.last_used_unix == 0 ? "never" : FormatDuration(idle_s) + " ago",
                  row.load_s == 0 ? "" : FormatDuration(row.load_s)});
  }
  return table.Render();
}

Result<std::string> Totals(const Json& list) {
  DF_ASSIGN_OR_RETURN(const uint64_t resident, Count(list, "resident_bytes"));
  DF_ASSIGN_OR_RETURN(const uint64_t reserved, Count(list, "reserved_bytes"));
  DF_ASSIGN_OR_RETURN(const uint64_t budget, Count(list, "budget_bytes"));
  std::string text = FormatBytes(resident) + " resident, " + FormatBytes(reserved) + " reserved of " +
                     (JsonMemberOrNull(list, "budget_bytes") == nullptr ? "any number of bytes" : FormatBytes(budget)) +
                     "\n";
  std::string waiting;
  if (const Json* names = JsonMemberOrNull(list, "waiting"); names != nullptr && names->is_array()) {
    for (const Json& name : *names) {
      if (name.is_string()) waiting += (waiting.empty() ? "" : ", ") + name.get<std::string>();
    }
  }
  if (!waiting.empty()) text += "requests wait for " + Printable(waiting) + "\n";
  return text;
}

}  // namespace

Result<std::string> VariantsTable(const Json& list, int64_t now_unix) {
  const Json* data = list.is_object() ? JsonMemberOrNull(list, "data") : nullptr;
  if (data == nullptr || !data->is_array()) return NoList(Corrupt("it has no array \"data\""));
  const Result<std::string> base = JsonStringOr(list, "base", "");
  if (!base.ok()) return NoList(base.status());
  std::vector<Row> rows;
  for (const Json& json : *data) {
    Result<Row> row = json.is_object() ? ReadRow(json) : Result<Row>(Corrupt("a row is no object"));
    if (!row.ok()) return NoList(row.status());
    rows.push_back(std::move(*row));
  }
  const Result<std::string> totals = Totals(list);
  if (!totals.ok()) return NoList(totals.status());
  std::string text = AddRows(rows, *base, now_unix) + *totals;
  for (const Row& row : rows) {
    if (row.state != "failed" && row.failure.empty()) continue;
    text += Printable(row.id + ": " + row.failure);
    text += (row.state == "failed" ? "; tried again in " + FormatDuration(row.retry_s) : "") + "\n";
  }
  return text;
}

Result<std::string> VariantLine(const Json& json) {
  const Result<Row> row = json.is_object() ? ReadRow(json) : Result<Row>(Corrupt("it is no object"));
  if (!row.ok()) return Corrupt("the server's answer is no variant: " + row.status().message());
  std::string line = row->id + ": " + row->state;
  if (row->pinned) line += ", pinned";
  if (row->bytes > 0) line += ", " + FormatBytes(row->bytes) + " in memory";
  if (!row->failure.empty()) line += ", " + row->failure;
  return Printable(line);
}

std::string InPlace(std::string_view text) {
  std::string screen = "\x1b[H";
  for (const char c : text) screen += c == '\n' ? std::string("\x1b[K\n") : std::string(1, c);
  return screen + "\x1b[J";
}

}  // namespace df::cli
