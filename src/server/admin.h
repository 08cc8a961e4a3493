// The routes that change what is served: vLLM's load_lora_adapter and unload_lora_adapter, and /v1/variants/{name}/...
// No sockets, no keys: who may call them is decided before (admin_access.h).
#ifndef DELTAFOLD_SERVER_ADMIN_H_
#define DELTAFOLD_SERVER_ADMIN_H_

#include <optional>
#include <string>

#include "server/error_map.h"
#include "server/router.h"
#include "server/variant_root.h"
#include "store/variant_store.h"

namespace df::server {

struct AdminContext {
  VariantStore& store;
  const VariantRoot* root = nullptr;  // null: nothing is loaded at run time
};

struct AdminRequest {
  Route route = Route::kLoadAdapter;
  std::string target;  // percent-encoded name of the paths that hold one
  std::string body;
};

struct AdminAnswer {
  HttpResponse response;
  std::string subject;  // the variant's name, for the log
  std::string cause;    // what the client was not told, for the log
};

// Absent: `route` is on. 403 that names the flag to start with.
std::optional<ApiError> RefuseWhileOff(Route route, const VariantRoot* root);

// Thread-safe, slow (opens and checks files): called on a worker.
AdminAnswer AnswerAdmin(const AdminContext& context, const AdminRequest& request);

// Its parts, one file a family.
AdminAnswer LoadAdapter(const AdminContext& context, const std::string& body);
AdminAnswer UnloadAdapter(const AdminContext& context, const std::string& body);
AdminAnswer ActOnVariant(const AdminContext& context, const AdminRequest& request);

// A row of GET /v1/variants.
Json VariantRow(const VariantStatus& status, const std::string& base_name);

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_ADMIN_H_
