// For tests: a TextService whose models do what their names say. Tokens are characters; no weights.
#ifndef DELTAFOLD_SERVER_SCRIPTED_SERVICE_H_
#define DELTAFOLD_SERVER_SCRIPTED_SERVICE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "server/text_service.h"

namespace df::server {

struct Script {
  std::vector<std::string> pieces = {"Hello", ", ", "world"};
  std::chrono::milliseconds pause{0};  // before each piece
  bool hangs = false;                  // after the pieces
  Status failure = Status::Ok();       // ends with it when not ok
  Status refusal = Status::Ok();       // of Start
  std::chrono::milliseconds start_takes{0};
};

struct StreamCounts {
  std::atomic<int> started{0}, live{0}, cancelled{0};
};

class ScriptedStream final : public TextStream {
 public:
  ScriptedStream(Script script, std::vector<int32_t> prompt, std::function<void()> wake, StreamCounts& counts)
      : script_(std::move(script)), prompt_(std::move(prompt)), wake_(std::move(wake)), counts_(counts) {
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
  void Play() {
    int32_t token = 0;
    for (const std::string& piece : script_.pieces) {
      TextDelta delta;
      delta.text = piece;
      delta.tokens = {token++};
      if (!Say(std::move(delta))) return;
    }
    if (script_.hangs) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return cancelled_; });
      return;
    }
    TextDelta last;
    last.finish = script_.failure.ok() ? FinishReason::kStop : FinishReason::kError;
    last.status = script_.failure;
    Say(std::move(last));
  }

  const Script script_;
  const std::vector<int32_t> prompt_;
  const std::function<void()> wake_;
  StreamCounts& counts_;
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
    auto variant = std::make_shared<Variant>();
    variant->name = name;
    variant->root = "models/" + name;
    variant->created_unix = 1700000000;
    variants_[name] = variant;
    scripts_[name] = std::move(script);
  }

  std::shared_ptr<const Variant> FindOrNull(std::string_view name) const override {
    const auto found = variants_.find(std::string(name));
    return found == variants_.end() ? nullptr : found->second;
  }
  std::vector<std::shared_ptr<const Variant>> List() const override {
    std::vector<std::shared_ptr<const Variant>> list;
    for (const auto& [name, variant] : variants_) list.push_back(variant);
    return list;
  }
  const std::string& base_name() const override { return base_name_; }
  std::string SystemFingerprint(const Variant&) const override { return "fp_test"; }
  size_t ContextLength(const Variant&) const override { return kContextLength; }
  SamplingParams DefaultSampling(const Variant&) const override { return {}; }
  Result<std::unique_ptr<TextStream>> Start(TextRequest request, std::function<void()> wake) override {
    const Script& script = scripts_.at(request.variant->name);
    std::this_thread::sleep_for(script.start_takes);
    if (!script.refusal.ok()) return script.refusal;
    std::vector<int32_t> prompt;
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&request.prompt)) {
      prompt = *ids;
    } else {
      const auto* text = std::get_if<std::string>(&request.prompt);
      const std::string all = text != nullptr ? *text : DumpJson(std::get<Json>(request.prompt));
      prompt.assign(all.begin(), all.end());
    }
    if (prompt.size() + 1 > kContextLength) return InvalidArgument("context: the prompt is too long");
    return std::unique_ptr<TextStream>(
        std::make_unique<ScriptedStream>(script, std::move(prompt), std::move(wake), counts));
  }
  bool IsContextLengthExceeded(const Status& status) const override { return status.message().starts_with("context"); }
  MetricsSnapshot Snapshot() const override {
    return {.n_running = static_cast<uint64_t>(counts.live.load()), .kv_block_tokens = 16, .kv_blocks_total = 8};
  }
  bool Healthy() const override { return healthy; }

  StreamCounts counts;
  std::atomic<bool> healthy{true};

 private:
  std::string base_name_ = "base";
  std::map<std::string, std::shared_ptr<const Variant>> variants_;
  std::map<std::string, Script> scripts_;
};

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_SCRIPTED_SERVICE_H_
