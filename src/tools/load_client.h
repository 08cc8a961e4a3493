// Many streamed completions over HTTP at set times, and when their tokens came. Speaks to any server with OpenAI's
// /v1/completions that takes token ids as prompt.
#ifndef DELTAFOLD_TOOLS_LOAD_CLIENT_H_
#define DELTAFOLD_TOOLS_LOAD_CLIENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "tools/http_client.h"

namespace df::tools {

struct LoadRequest {
  std::string model = {};
  size_t n_prompt = 0, n_output = 0;  // tokens
  double at_s = 0;                    // after the start
  uint64_t seed = 0;                  // of the prompt's token ids
};

struct LoadOutcome {
  Status status = {};              // not ok: the other figures say nothing
  size_t n_output = 0;             // as the server counts; else chunks
  double ttft_s = 0;               // from sending
  double e2e_s = 0;                // from sending to the last chunk
  std::vector<double> gap_s = {};  // between chunks
};

struct LoadOptions {
  size_t max_concurrency = 256;  // beyond, requests wait for others to end
  double timeout_s = 600;        // of one request
  size_t vocab = 100;            // prompts are of token ids 1 .. vocab
};

struct LoadResult {
  std::vector<LoadOutcome> outcomes = {};  // [requests]
  double duration_s = 0;                   // from the first arrival to the last end
};

// The only errors are kUnavailable (no such host) and kInternal.
Result<LoadResult> SendLoad(const Endpoint& endpoint, const std::vector<LoadRequest>& requests,
                            const LoadOptions& options);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_LOAD_CLIENT_H_
