// The prompt of a TextRequest as token ids.
#ifndef DELTAFOLD_ENGINE_PROMPT_TOKENS_H_
#define DELTAFOLD_ENGINE_PROMPT_TOKENS_H_

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/session.h"

namespace df {

// By the template and tokenizer of the request's variant. A text that cannot fit `context_tokens` is refused before it
// is tokenised. Errors as of StartText.
Result<std::vector<int32_t>> PromptTokens(const TextRequest& request, size_t context_tokens);

}  // namespace df

#endif  // DELTAFOLD_ENGINE_PROMPT_TOKENS_H_
