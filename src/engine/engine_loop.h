// The one implementation of Engine. Calls from other threads are in engine_calls.cc, the loop itself in engine.cc.
#ifndef DELTAFOLD_ENGINE_ENGINE_LOOP_H_
#define DELTAFOLD_ENGINE_ENGINE_LOOP_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/inbox.h"
#include "engine/logprobs.h"
#include "engine/scheduler.h"
#include "model/decoder.h"
#include "model/kv_pool.h"

namespace df {

class EngineLoop final : public Engine {
 public:
  // `options` as resolved; `seed` for the draws of requests that bring none.
  EngineLoop(std::shared_ptr<const BaseWeights> base, const EngineOptions& options, uint64_t seed);
  ~EngineLoop() override;

  Status Submit(GenerationRequest request) override;
  void Cancel(const std::string& id) override;
  void Wake() override;
  EngineStats Stats() const override;
  const EngineOptions& options() const override { return options_; }
  const BaseWeights& base() const override { return *base_; }
  bool Healthy() const override;

 private:
  // Engine thread.
  void Run();
  void Turn(News& news);
  void EndWithoutMemory();
  void Accept(News& news);
  void AcceptOne(Submission& submission);
  void SharePrefix(Sequence& sequence) const;
  void EndCancelled(const News& news);
  void EndFailed();
  void Step();
  void Draw();
  void DeliverPrompts();
  void DeliverTokens();
  bool Deliver(Sequence& sequence, TokenEvent event);
  void CountStep(int64_t start_us);
  void End(std::vector<std::unique_ptr<Sequence>> sequences, const Status& why);
  int64_t PatienceUs() const;
  void PublishStats();

  // Any thread.
  RequestLimits LimitsOf(const GenerationRequest& request) const;

  static constexpr int64_t kIdle = -1;

  const std::shared_ptr<const BaseWeights> base_;
  const EngineOptions options_;
  const uint64_t seed_;
  const SteadyClock clock_;
  Inbox inbox_;

  // Engine thread only.
  KernelContext context_;
  KvPool kv_pool_;
  Decoder decoder_;
  KvBlocks blocks_;  // before whoever leases from it
  Scheduler scheduler_;
  StepBatch step_;
  StepLogprobs logprobs_;
  bool is_stepping_ = false;  // the last plan had rows: there is a next step without any news
  uint64_t n_accepted_ = 0;
  EngineStats counters_;

  mutable std::mutex stats_mutex_;
  EngineStats stats_;                          // the last published counters_
  std::atomic<int64_t> busy_since_us_{kIdle};  // start of the step under way; relaxed: only its age matters
  std::thread thread_;
};

}  // namespace df

#endif  // DELTAFOLD_ENGINE_ENGINE_LOOP_H_
