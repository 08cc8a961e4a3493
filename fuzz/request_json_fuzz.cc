// Any bytes as the body of a chat or completion request, up to the point where text would be generated.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/bytes.h"
#include "server/openai_types.h"

namespace {

void CheckFields(const df::server::GenerationFields& fields, size_t min_max_tokens) {
  const df::SamplingParams params = df::server::ToSamplingParams(fields, {});
  const bool sound = params.temperature >= 0 && params.top_p > 0 && params.top_p <= 1 && params.top_k >= -1 &&
                     (!params.max_tokens || *params.max_tokens >= min_max_tokens) &&
                     (!params.logprobs || *params.logprobs <= INT32_MAX) &&
                     fields.stop.size() <= df::server::kMaxStopStrings;
  if (!sound) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  df::Json root;
  if (df::server::ParseBody(df::AsText(df::Bytes(data, size)), root)) return 0;
  df::server::ChatRequest chat;
  if (const auto error = df::server::ReadChatRequest(root, chat)) {
    static_cast<void>(df::server::ErrorResponse(*error));
  } else {
    CheckFields(chat.fields, 1);
    if (chat.messages.empty()) std::abort();
  }
  df::server::CompletionRequest completion;
  if (const auto error = df::server::ReadCompletionRequest(root, completion)) {
    static_cast<void>(df::server::ErrorResponse(*error));
  } else {
    CheckFields(completion.fields, completion.echo ? 0 : 1);
    if (completion.prompts.empty()) std::abort();
  }
  return 0;
}
