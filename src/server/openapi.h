// The description of the HTTP interface that programs read (OpenAPI 3.1).
#ifndef DELTAFOLD_SERVER_OPENAPI_H_
#define DELTAFOLD_SERVER_OPENAPI_H_

#include <string>
#include <string_view>

#include "base/json_fwd.h"

namespace df::server {

// Paths and methods are those of Routes() (router.h).
Json OpenApi(const std::string& version);

// JSON: the schema of every body, by name. Fields of requests whose features are not built are left out.
extern const std::string_view kOpenApiSchemas;

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_OPENAPI_H_
