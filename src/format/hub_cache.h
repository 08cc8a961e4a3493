// The Hugging Face client's local cache of models. Never the network.
#ifndef DELTAFOLD_FORMAT_HUB_CACHE_H_
#define DELTAFOLD_FORMAT_HUB_CACHE_H_

#include <string>

#include "base/status.h"

namespace df {

// The directory of hub id `id` in the cache, as ResolveModelDirectory (checkpoint.h) finds it where there is no
// directory of that name: looks at nothing but the cache. The only error is kNotFound.
Result<std::string> FindInHubCache(const std::string& id);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_HUB_CACHE_H_
