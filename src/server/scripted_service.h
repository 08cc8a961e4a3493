// For tests: a TextService whose models do what their names say. Tokens are characters; no weights.
#ifndef DELTAFOLD_SERVER_SCRIPTED_SERVICE_H_
#define DELTAFOLD_SERVER_SCRIPTED_SERVICE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "server/scripted_store.h"
#include "server/store_snapshot.h"
#include "server/text_service.h"

namespace df::server {

struct Script {
  std::vector<std::string> pieces = {"Hello", ", ", "world"};
  std::chrono::milliseconds pause{0};  // before each piece
  bool hangs = false;                  // after the pieces
  bool ends_at_the_gate = false;       // as `hangs`, until the gate is opened
  Status failure = Status::Ok();       // ends with it when not ok
  Status refusal = Status::Ok();       // of Start
  bool tokenises_at_the_gate = false;  // does not return before the gate is opened
};

struct StreamCounts {
  std::atomic<int> tokenising{0}, started{0}, live{0}, cancelled{0};
};

class ScriptedStream final : public TextStream {
 public:
  struct Shared {
    StreamCounts& counts;
    const Gate& gate;
  };
  ScriptedStream(Script script, TextRequest request, std::function<void()> wake, Shared shared)
      : script_(std::move(script)),
        request_(std::move(request)),
        prompt_(std::get<std::vector<int32_t>>(request_.prompt)),
        wake_(std::move(wake)),
        counts_(shared.counts),
        gate_(shared.gate) {
    usage_.prompt_tokens = prompt_.size();
    ++counts_.started;
    ++counts_.live;
    thread_ = std::thread([this] { Play(); });
  }
  ~ScriptedStream() override {
    Cancel();
    thread_.join();
    --counts_.live;
  }
  std::vector<TextDelta> TakeAll() override {
    const std::lock_guard lock(mutex_);
    std::vector<TextDelta> taken = std::move(deltas_);
    deltas_.clear();
    for (const TextDelta& delta : taken) usage_.completion_tokens += delta.tokens.size();
    return taken;
  }
  std::vector<TextDelta> TakeAllBlocking() override { return TakeAll(); }
  const Usage& usage() const override { return usage_; }
  const std::vector<int32_t>& prompt() const override { return prompt_; }
  void Cancel() override {
    {
      const std::lock_guard lock(mutex_);
      if (!finished_ && !cancelled_) ++counts_.cancelled;
      cancelled_ = true;
    }
    changed_.notify_all();
  }

 private:
  // False when cancelled.
  bool Say(TextDelta delta) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, script_.pause, [this] { return cancelled_; });
      if (cancelled_) return false;
      finished_ = delta.finish.has_value();
      deltas_.push_back(std::move(delta));
    }
    wake_();
    return true;
  }
  // The n-th of an answer has a log-probability of -n / 4; the likeliest ones are "0", "1", ...
  static LikelyTokens Likely(const std::string& bytes, int64_t n, size_t n_top) {
    LikelyTokens likely = {.token = {.bytes = bytes}};
    if (n < 0) return likely;  // nothing tells the first
    likely.token.logprob = -0.25F * static_cast<float>(n);
    for (size_t i = 0; i < n_top; ++i) likely.top.push_back({std::to_string(i), -0.125F * static_cast<float>(i)});
    return likely;
  }
  // The prompt's tokens are its characters.
  TextDelta Echo() const {
    TextDelta delta;
    delta.text = request_.prompt_text;
    if (!request_.params.prompt_logprobs) return delta;
    for (size_t i = 0; i < prompt_.size(); ++i) {
      const std::string character(1, static_cast<char>(prompt_[i]));
      const int64_t nth = i == 0 ? -1 : static_cast<int64_t>(i);
      delta.logprobs.push_back(Likely(character, nth, *request_.params.prompt_logprobs));
    }
    return delta;
  }
  void Play() {
    if (request_.echo && !Say(Echo())) return;
    int32_t token = 0;
    for (const std::string& piece : script_.pieces) {
      if (request_.params.max_tokens == size_t{0}) break;
      TextDelta delta;
      delta.text = piece;
      delta.tokens = {token++};
      if (const auto n_top = request_.params.logprobs) {
        delta.logprobs.push_back(Likely(piece, token, *n_top));
      }
      if (!Say(std::move(delta))) return;
    }
    if (script_.hangs || script_.ends_at_the_gate) {
      std::unique_lock lock(mutex_);
      while (!cancelled_ && (script_.hangs || !gate_.is_open())) {
        changed_.wait_for(lock, std::chrono::milliseconds(2));
      }
    }
    TextDelta last;
    last.finish = script_.failure.ok() ? FinishReason::kStop : FinishReason::kError;
    last.status = script_.failure;
    Say(std::move(last));
  }

  const Script script_;
  const TextRequest request_;
  const std::vector<int32_t> prompt_;
  const std::function<void()> wake_;
  StreamCounts& counts_;
  const Gate& gate_;
  Usage usage_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TextDelta> deltas_;
  bool cancelled_ = false, finished_ = false;
  std::thread thread_;
};

class ScriptedService final : public TextService {
 public:
  static constexpr size_t kContextLength = 1000;

  ScriptedService() {
    Add("base", {});
    Add("sql", {.pieces = {"SELECT", " 1"}});
  }
  void Add(const std::string& name, Script script) {
    if (name != store_.base_name()) store_.Add(name);
    scripts_[name] = std::move(script);
  }
  ScriptedStore& scripted_store() { return store_; }

  VariantStore& store() const override { return store_; }
  std::string SystemFingerprint(const Variant&) const override { return "fp_test"; }
  size_t ContextLength(const Variant&) const override { return kContextLength; }
  size_t MaxLogprobs() const override { return 20; }
  SamplingParams DefaultSampling(const Variant&) const override { return {}; }
  Result<std::vector<int32_t>> PromptTokens(const TextRequest& request) const override {
    ++counts.tokenising;
    if (ScriptOf(request).tokenises_at_the_gate) gate.Wait();
    --counts.tokenising;
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&request.prompt)) return *ids;
    const auto* text = std::get_if<std::string>(&request.prompt);
    const std::string all = text != nullptr ? *text : DumpJson(std::get<Json>(request.prompt));
    return std::vector<int32_t>(all.begin(), all.end());
  }
  Result<std::unique_ptr<TextStream>> Start(TextRequest request, std::function<void()> wake) override {
    const Script& script = ScriptOf(request);
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&request.prompt)) {
      const std::lock_guard lock(started_mutex_);
      started_.push_back(*ids);
    }
    if (!script.refusal.ok()) return script.refusal;
    return std::unique_ptr<TextStream>(std::make_unique<ScriptedStream>(
        script, std::move(request), std::move(wake), ScriptedStream::Shared{.counts = counts, .gate = gate}));
  }
  MetricsSnapshot Snapshot() const override {
    MetricsSnapshot snapshot = StoreSnapshot(store_);
    snapshot.n_running = static_cast<uint64_t>(counts.live.load());
    snapshot.kv_block_tokens = 16;
    snapshot.kv_blocks_total = 8;
    return snapshot;
  }
  bool Healthy() const override { return healthy; }

  // Token ids of all prompts so far, in the order in which they were started.
  std::vector<std::vector<int32_t>> StartedPrompts() const {
    const std::lock_guard lock(started_mutex_);
    return started_;
  }

  mutable StreamCounts counts;
  Gate gate;
  std::atomic<bool> healthy{true};

 private:
  // What was registered while the server runs does as any script.
  const Script& ScriptOf(const TextRequest& request) const {
    const auto found = scripts_.find(request.variant->name);
    return found == scripts_.end() ? any_ : found->second;
  }

  mutable ScriptedStore store_;
  std::map<std::string, Script> scripts_;
  mutable std::mutex started_mutex_;
  std::vector<std::vector<int32_t>> started_;
  const Script any_;
};

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_SCRIPTED_SERVICE_H_
