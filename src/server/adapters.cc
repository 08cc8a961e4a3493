// POST /v1/load_lora_adapter, /v1/unload_lora_adapter: vLLM's bodies and answers, for deltas and adapters alike.
// Controllers match on the status, on "type" and on words of "message": those are fixed (docs/api.md).
#include "base/json.h"
#include "server/admin.h"
#include "server/request_fields.h"

namespace df::server {
namespace {

// Beyond what any name or path may have: their own checks say what is wrong.
constexpr size_t kMaxFieldBytes = size_t{16} << 10;

struct AdapterFields {
  std::string name, path, base_model_name, parent, expected_generation;
  bool load_inplace = false, pinned = false;
};

ApiError Refusal(int status, std::string type, std::string message, std::string code) {
  return {
      .status = status, .type = std::move(type), .message = std::move(message), .param = "", .code = std::move(code)};
}

ApiError InvalidUserInput(std::string message, std::string code) {
  return Refusal(400, "InvalidUserInput", std::move(message), std::move(code));
}

// Newer vLLM nests the error as OpenAI does, older has its members at the top: clients of both read this.
AdminAnswer Refused(const ApiError& error, const AdapterFields& fields, std::string cause = "") {
  AdminAnswer answer{.response = ErrorResponse(error), .subject = Shortened(fields.name), .cause = std::move(cause)};
  Json body = ErrorBody(error);
  body["object"] = "error";
  body["message"] = error.message;
  body["type"] = error.type;
  body["param"] = nullptr;
  body["code"] = error.status;
  answer.response.body = DumpJson(body);
  return answer;
}

AdminAnswer Succeeded(const AdapterFields& fields, const char* what) {
  return {.response = {.content_type = "text/plain; charset=utf-8",
                       .headers = {},
                       .body = "Success: LoRA adapter '" + fields.name + "' " + what + " successfully."},
          .subject = fields.name,
          .cause = ""};
}

ApiError AlreadyLoaded(const std::string& name) {
  return InvalidUserInput("The lora adapter '" + Shortened(name) +
                              "' has already been loaded; set load_inplace to true to put another in its place",
                          "already_loaded");
}

ApiError CannotBeFound(const std::string& what, std::string_view detail = "") {
  return Refusal(404, "NotFoundError", what + " cannot be found" + std::string(detail), "not_found");
}

ApiError Conflict(const Status& status, std::string code) {
  return Refusal(409, "ConflictError", WithoutPaths(status.message()), std::move(code));
}

FieldError ReadAdapterFields(const std::string& body, AdapterFields& fields) {
  Json root;
  DF_RETURN_IF_FIELD_ERROR(ParseBody(body, root));
  DF_RETURN_IF_FIELD_ERROR(ReadString(root, "lora_path", kMaxFieldBytes, fields.path));
  DF_RETURN_IF_FIELD_ERROR(ReadString(root, "base_model_name", kMaxFieldBytes, fields.base_model_name));
  DF_RETURN_IF_FIELD_ERROR(ReadString(root, "parent", kMaxFieldBytes, fields.parent));
  DF_RETURN_IF_FIELD_ERROR(ReadString(root, "expected_generation", kMaxFieldBytes, fields.expected_generation));
  DF_RETURN_IF_FIELD_ERROR(ReadBool(root, "load_inplace", fields.load_inplace));
  DF_RETURN_IF_FIELD_ERROR(ReadBool(root, "pinned", fields.pinned));
  std::optional<int64_t> number;  // vLLM's own numbering: names are enough here
  DF_RETURN_IF_FIELD_ERROR(ReadInt(root, "lora_int_id", {.min = 0, .max = INT64_MAX}, number));
  return ReadString(root, "lora_name", kMaxFieldBytes, fields.name);
}

// What can be said without looking at a file.
std::optional<ApiError> CheckLoad(const VariantStore& store, const AdapterFields& fields) {
  if (fields.name.empty() || fields.path.empty()) {
    return InvalidUserInput("lora_name and lora_path must both be given", "missing_field");
  }
  const Status name = CheckServedName(fields.name);
  if (!name.ok()) return InvalidUserInput(name.message(), "invalid_name");
  if (!fields.base_model_name.empty() && fields.base_model_name != store.base_name()) {
    return InvalidUserInput("base_model_name is '" + Shortened(fields.base_model_name) +
                                "', the base served here is '" + store.base_name() + "'",
                            "wrong_base");
  }
  if (fields.name == store.base_name()) {
    return InvalidUserInput("'" + Shortened(fields.name) +
                                "' has already been loaded: it is the base's name, and "
                                "nothing takes its place",
                            "invalid_name");
  }
  if (!fields.load_inplace && store.FindOrNull(fields.name) != nullptr) return AlreadyLoaded(fields.name);
  return std::nullopt;
}

ApiError PathRefusal(const Status& status) {
  if (status.code() == StatusCode::kNotFound) return CannotBeFound("The files of lora_path", ": " + status.message());
  return InvalidUserInput(status.message(), "path_not_allowed");
}

// What the store found in `directory`.
ApiError LoadFailure(const Status& status, const std::string& directory) {
  const std::string message = WithoutPaths(status.message(), directory);
  switch (status.code()) {
    case StatusCode::kNotFound: return CannotBeFound("A file of the adapter", ": " + message);
    case StatusCode::kInvalidArgument: return Refusal(400, "BadRequestError", message, "invalid_value");
    case StatusCode::kFailedPrecondition: return Refusal(400, "BadRequestError", message, "does_not_fit");
    case StatusCode::kCorrupt: return Refusal(400, "BadRequestError", message, "corrupt_files");
    case StatusCode::kUnsupported: return Refusal(400, "BadRequestError", message, "unsupported_adapter");
    case StatusCode::kResourceExhausted: return Refusal(400, "BadRequestError", message, "exceeds_budget");
    case StatusCode::kIo: return Refusal(500, "InternalServerError", message, "io_error");
    case StatusCode::kUnavailable: return Refusal(503, "ServiceUnavailableError", message, "unavailable");
    default: return FromStatus(status);
  }
}

AdminAnswer Registered(const AdminContext& context, const AdapterFields& fields, const std::string& directory) {
  const auto registered =
      context.store.Register(fields.name, directory,
                             {.root = fields.path,
                              .given = context.root->AsGiven(fields.path),
                              .parent = fields.parent == context.store.base_name() ? "" : fields.parent,
                              .replace = fields.load_inplace,
                              .expected_generation = fields.expected_generation,
                              .pinned = fields.pinned});
  if (registered.ok()) {
    // As in vLLM the weights are on their way when the answer is. Where they cannot be loaded, requests are told.
    static_cast<void>(context.store.Prefetch(fields.name, (*registered)->generation->info().digest));
    return Succeeded(fields, "added");
  }
  const Status& status = registered.status();
  if (IsGenerationMismatch(status)) return Refused(Conflict(status, "generation_mismatch"), fields);
  if (IsInUse(status)) return Refused(Conflict(status, "in_use"), fields);
  const bool is_unknown = status.code() == StatusCode::kNotFound && !fields.expected_generation.empty() &&
                          context.store.FindOrNull(fields.name) == nullptr;
  if (is_unknown) return Refused(CannotBeFound("The lora adapter '" + Shortened(fields.name) + "'"), fields);
  const bool taken = status.code() == StatusCode::kFailedPrecondition && !fields.load_inplace &&
                     context.store.FindOrNull(fields.name) != nullptr;  // by somebody who was faster
  if (taken) return Refused(AlreadyLoaded(fields.name), fields);
  return Refused(LoadFailure(status, directory), fields, status.message());
}

}  // namespace

AdminAnswer LoadAdapter(const AdminContext& context, const std::string& body) {
  AdapterFields fields;
  if (auto error = ReadAdapterFields(body, fields)) {
    return Refused(InvalidUserInput(std::move(error->message), std::move(error->code)), fields);
  }
  if (const auto error = CheckLoad(context.store, fields)) return Refused(*error, fields);
  const Result<std::string> directory = context.root->Resolve(fields.path);
  if (!directory.ok()) return Refused(PathRefusal(directory.status()), fields);
  return Registered(context, fields, *directory);
}

AdminAnswer UnloadAdapter(const AdminContext& context, const std::string& body) {
  AdapterFields fields;
  if (auto error = ReadAdapterFields(body, fields)) {
    return Refused(InvalidUserInput(std::move(error->message), std::move(error->code)), fields);
  }
  if (fields.name.empty()) return Refused(InvalidUserInput("lora_name must be given", "missing_field"), fields);
  const Status status = context.store.Retire(fields.name, fields.expected_generation);
  if (status.ok()) return Succeeded(fields, "removed");
  if (IsGenerationMismatch(status)) return Refused(Conflict(status, "generation_mismatch"), fields);
  if (status.code() == StatusCode::kNotFound) {
    return Refused(CannotBeFound("The lora adapter '" + Shortened(fields.name) + "'"), fields);
  }
  if (status.code() == StatusCode::kFailedPrecondition) {
    return Refused(Conflict(status, "in_use"), fields);
  }
  return Refused(FromStatus(status), fields, status.message());
}

}  // namespace df::server
