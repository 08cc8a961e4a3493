#include "cli/choices.h"

#include "base/json.h"
#include "cli/command.h"
#include "cli/table.h"

namespace df::cli {
namespace {

std::string Error(const Json& entry, const char* key) {
  const Json* const value = JsonMemberOrNull(entry, key);
  return value != nullptr && value->is_number() ? FormatFixed(value->get<double>(), 4) : "";
}

bool IsSet(const Json& entry, const char* key) {
  const Json* const value = JsonMemberOrNull(entry, key);
  return value != nullptr && value->is_boolean() && value->get<bool>();
}

// "" for `name` where it stands in the line above.
Status AddLine(Table& table, const std::string& name, const Json& entry, const std::string& mark,
               const std::string& error) {
  if (!entry.is_object()) return Corrupt("\"tensors\": an object a code was expected");
  DF_ASSIGN_OR_RETURN(const std::string code, JsonString(entry, "code"));
  DF_ASSIGN_OR_RETURN(const int64_t bytes, JsonInt(entry, "bytes", {.min = 0}));
  table.AddRow({name, mark, code, std::to_string(bytes), error});
  return Status::Ok();
}

std::string ErrorOfCandidate(const Json& candidate) {
  const std::string error = Error(candidate, "error");
  return IsSet(candidate, "lossless") ? error + " lossless" : error;
}

// As stored: of the outputs where they were looked at.
std::string ErrorAsStored(const Json& tensor) {
  const std::string of_outputs = Error(tensor, "output_error");
  return of_outputs.empty() ? Error(tensor, "relative_frobenius") : of_outputs;
}

Status AddTensor(Table& table, const Json& tensor) {
  if (!tensor.is_object()) return Corrupt("\"tensors\": an object a tensor was expected");
  DF_ASSIGN_OR_RETURN(const std::string name, JsonString(tensor, "name"));
  DF_RETURN_IF_ERROR(AddLine(table, name, tensor, "", ErrorAsStored(tensor)));
  const Json* const candidates = JsonMemberOrNull(tensor, "candidates");
  if (candidates == nullptr || !candidates->is_array()) return Status::Ok();
  for (const Json& candidate : *candidates) {
    if (!candidate.is_object()) return Corrupt("\"candidates\": an object a code was expected");
    DF_RETURN_IF_ERROR(
        AddLine(table, "", candidate, IsSet(candidate, "chosen") ? "->" : "", ErrorOfCandidate(candidate)));
  }
  return Status::Ok();
}

}  // namespace

Result<std::string> RenderChoices(const Json& tensors) {
  if (!tensors.is_array()) return Corrupt("\"tensors\" must be a list");
  Table table({{"tensor"}, {""}, {"code"}, {"bytes", Align::kRight}, {"error", Align::kRight}});
  for (const Json& tensor : tensors) {
    const Status status = AddTensor(table, tensor);
    if (!status.ok()) return FromFiles(status);
  }
  return table.Render();
}

}  // namespace df::cli
