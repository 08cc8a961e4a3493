// metrics/: what a running server says about itself, as Prometheus text.
//
// Input:  one call a finished request or batch of tokens, and a snapshot of the engine's counters at each scrape.
// Output: the families of docs/api.md: vLLM's names where the meaning is the same, `deltafold_` for ours.
// Called by: server/. Label values come from registered names only, so that requests cannot grow the output; what is
// said of residency is the snapshot's, never a memory of an earlier one.
#ifndef DELTAFOLD_METRICS_METRICS_H_
#define DELTAFOLD_METRICS_METRICS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace df {

// A registered name at the moment of a scrape.
struct VariantSnapshot {
  std::string name;
  std::string kind;    // "base", "delta", "lora"
  std::string pinned;  // "true", "auto" (among the most wanted), "false"
  bool resident = false;
  uint64_t host_bytes = 0;  // reserved for it now
  uint64_t disk_bytes = 0;
  // Of an adapter of the pool: its slot, and how far that is from the adapter, at most.
  std::string pool_slot = {};
  double pool_error = 0;
};

// Times of loads, sorted into intervals.
struct LoadTimes {
  std::vector<double> bounds_s = {};  // upper ends, ascending
  std::vector<uint64_t> counts = {};  // [bounds + 1], the last for what is longer
  double sum_s = 0;
};

// Of the adapter pool; totals only grow.
struct PoolSnapshot {
  uint64_t slots = 0, members = 0, budget_bytes = 0, used_bytes = 0;
  uint64_t merges = 0, refusals = 0, evictions = 0;
};

// Read from engine and store at the moment of a scrape; totals only grow.
struct MetricsSnapshot {
  uint64_t n_running = 0, n_waiting = 0;
  uint64_t kv_block_tokens = 0, kv_blocks_used = 0, kv_blocks_total = 0;
  uint64_t prompt_tokens = 0, generation_tokens = 0, preemptions = 0;
  uint64_t prefix_cache_queries = 0, prefix_cache_hits = 0;  // tokens of prompts: asked for, and found
  uint64_t weight_bytes = 0, kv_bytes = 0;
  uint64_t steps = 0;
  double step_bytes = 0, step_flops = 0, step_seconds = 0;  // of all steps
  std::vector<VariantSnapshot> variants = {};               // all that are registered, the base first
  std::vector<std::string> waiting_names = {};              // wanted by requests and not resident
  uint64_t max_resident = 0;                                // variants that the budget holds, about
  // Of all variants together; a budget of UINT64_MAX is none.
  uint64_t budget_bytes = 0, reserved_bytes = 0, resident_bytes = 0;
  uint64_t lookups = 0, hits = 0, load_failures = 0;
  std::map<std::string, uint64_t> evictions = {};  // cause -> count
  LoadTimes load_times = {};
  std::optional<PoolSnapshot> pool = {};
};

// One choice of one request, at its end. Times in seconds; absent where the request did not get that far.
struct RequestSample {
  std::string_view variant;
  std::string_view finished_reason;  // "stop", "length", "abort" or "error"
  uint64_t prompt_tokens = 0, generation_tokens = 0;
  double e2e_s = 0;
  std::optional<double> queue_s = std::nullopt;             // arrival to the first step that took it
  std::optional<double> prefill_s = std::nullopt;           // that step to the first token
  std::optional<double> decode_s = std::nullopt;            // first to last token
  std::optional<double> per_output_token_s = std::nullopt;  // decode_s / (generation_tokens - 1)
};

// Gaps between tokens, sorted into the histogram's buckets by the one who sees the tokens and handed over in batches.
class InterTokenGaps {
 public:
  InterTokenGaps();
  void Add(double gap_s, uint64_t n_tokens);
  uint64_t count() const { return count_; }

 private:
  friend class ServerMetrics;
  void Clear();

  uint64_t count_ = 0;
  double sum_s_ = 0;
  std::vector<double> buckets_;
};

// Thread-safe.
class ServerMetrics {
 public:
  explicit ServerMetrics(std::string model_name);
  ~ServerMetrics();
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  // `variant` has been a registered name when its request came. Beyond 1024 names at once the label is "other"; names
  // that a snapshot does not have any more lose their series.
  void ObserveFirstToken(std::string_view variant, double ttft_s);
  // Takes the gaps and empties them.
  void ObserveInterToken(InterTokenGaps& gaps);
  void ObserveEnd(const RequestSample& sample);

  // Text format 0.0.4.
  std::string Render(const MetricsSnapshot& snapshot);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace df

#endif  // DELTAFOLD_METRICS_METRICS_H_
