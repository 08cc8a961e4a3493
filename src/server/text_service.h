// What the routes need from below: the store's names, generation, counters. The engine in production, a script in
// tests.
#ifndef DELTAFOLD_SERVER_TEXT_SERVICE_H_
#define DELTAFOLD_SERVER_TEXT_SERVICE_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/session.h"
#include "metrics/metrics.h"
#include "store/variant_store.h"

namespace df::server {

// Thread-safe.
class TextService {
 public:
  virtual ~TextService() = default;

  virtual VariantStore& store() const = 0;
  // The same string for the same weights: base fingerprint and variant digest.
  virtual std::string SystemFingerprint(const Variant& variant) const = 0;
  virtual size_t ContextLength(const Variant& variant) const = 0;
  // How many of the likeliest tokens a request may ask for beside each of its own.
  virtual size_t MaxLogprobs() const = 0;
  virtual SamplingParams DefaultSampling(const Variant& variant) const = 0;
  // The prompt by template and tokenizer: may take long, runs on a worker. Errors as of StartText.
  virtual Result<std::vector<int32_t>> PromptTokens(const TextRequest& request) const = 0;
  // As StartText.
  virtual Result<std::unique_ptr<TextStream>> Start(TextRequest request, std::function<void()> wake) = 0;
  virtual MetricsSnapshot Snapshot() const = 0;
  virtual bool Healthy() const = 0;
};

// `engine` and `store` must outlive it.
std::unique_ptr<TextService> MakeTextService(Engine& engine, VariantStore& store);

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_TEXT_SERVICE_H_
