// Load on a running server, and its answers in vLLM's result keys: for every variant, for all, and over the base's.
#ifndef DELTAFOLD_TOOLS_BENCH_SERVE_H_
#define DELTAFOLD_TOOLS_BENCH_SERVE_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "tools/load_client.h"

namespace df::tools {

enum class Mix { kZipf, kUniform };  // kZipf: the k-th name of the list is asked in proportion to 1 / k

struct ServeBenchOptions {
  std::vector<std::string> models = {};  // names to ask; empty = all that the server lists
  std::string baseline = {};             // asked alone first; "" = the listed model without a parent
  bool with_baseline = true;
  std::optional<double> rate = {};  // requests a second (Poisson); absent = all at once
  size_t n_requests = 100;          // at most 100000
  size_t n_prompt = 128, n_output = 32;
  Mix mix = Mix::kZipf;
  uint64_t seed = 0;                         // of arrivals and models
  std::optional<uint64_t> prompt_seed = {};  // absent: another one each time, so that no cache knows the prompts
  LoadOptions load = {};
  std::function<void(const std::string& what)> on_progress = {};  // may be empty
};

// mean, median, population deviation, 99th percentile, in milliseconds; zero without samples.
struct Summary {
  double mean = 0, median = 0, std = 0, p99 = 0;
};

struct LoadFigures {
  std::string name;  // of the model; "total" for all
  size_t completed = 0, failed = 0;
  size_t input_tokens = 0, output_tokens = 0;  // of completed requests
  double duration_s = 0;
  Summary ttft = {}, tpot = {}, itl = {},
          e2el = {};  // first token, a token after it (per request), between chunks, whole answer
};

struct ServeBenchReport {
  std::optional<LoadFigures> baseline;  // the base asked alone, as often and at the same times
  LoadFigures total;
  std::vector<LoadFigures> variants;  // in the order of the list
  std::string first_failure;          // "" = none
  uint64_t prompt_seed = 0;           // that was taken
};

enum class LoadRun : uint64_t { kBaseAlone, kTogether };

// The requests of one run: times and models depend on the options alone. Prompts are of (prompt_seed, run): the base
// would find those of its run alone in the server's prefix cache, and its first tokens would cost nothing.
std::vector<LoadRequest> PlanLoad(const ServeBenchOptions& options, const std::vector<std::string>& models,
                                  uint64_t prompt_seed, LoadRun run);
// `outcomes` [requests]; those of `model` alone, all for "total".
LoadFigures Summarize(const std::string& model, const std::vector<LoadRequest>& requests, const LoadResult& result);

// kInvalidArgument (an option out of range), kUnavailable (nobody answers there; not one request succeeded: the first
// cause is named), kCorrupt (the server's list of models is no such list).
Result<ServeBenchReport> RunServeBench(const Endpoint& endpoint, ServeBenchOptions options);

Json ToJson(const LoadFigures& figures);
Json ToJson(const ServeBenchReport& report);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_BENCH_SERVE_H_
