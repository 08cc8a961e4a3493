#include "server/admin.h"

namespace df::server {

std::optional<ApiError> RefuseWhileOff(Route route, const VariantRoot* root) {
  if (root != nullptr || (route != Route::kLoadAdapter && route != Route::kUnloadAdapter)) return std::nullopt;
  return ApiError{.status = 403,
                  .type = "permission_error",
                  .message =
                      "Loading and unloading while the server runs is off: start it with --variant-root DIR, the "
                      "directory that variants may be loaded from",
                  .param = "",
                  .code = "runtime_loading_off"};
}

AdminAnswer AnswerAdmin(const AdminContext& context, const AdminRequest& request) {
  switch (request.route) {
    case Route::kLoadAdapter: return LoadAdapter(context, request.body);
    case Route::kUnloadAdapter: return UnloadAdapter(context, request.body);
    default: return ActOnVariant(context, request);
  }
}

}  // namespace df::server
