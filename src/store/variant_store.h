// store/: names -> variants -> resident weights under a byte budget, while traffic goes on. Input: directories given by
// the operator, a watched directory, runtime calls; output: immutable Variants, whose generations the engine leases.
// Called by the commands at start, by server/ for every request, by the engine thread through Generation::TryLease.
#ifndef DELTAFOLD_STORE_VARIANT_STORE_H_
#define DELTAFOLD_STORE_VARIANT_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "store/load_histogram.h"
#include "store/registry.h"
#include "store/residency_state.h"

namespace df {

// Where an adapter of the pool is (docs/merging.md).
struct PoolPlace {
  std::string slot;
  std::vector<std::string> members;  // all names of the slot
  // How far the slot's delta-W is from what was loaded under the name, relative to that: proven, and by sketches.
  double error_at_most = 0, error_estimate = 0;
};

struct PoolTotals {
  uint64_t slots = 0, members = 0;
  uint64_t budget_bytes = 0, used_bytes = 0;         // of tensors on disk
  uint64_t merges = 0, refusals = 0, evictions = 0;  // since the pool was made
};

// What is known of one name at this moment: a row of GET /v1/variants.
struct VariantStatus {
  std::shared_ptr<const Variant> variant;
  ResidencyState state = ResidencyState::kRegistered;
  Status failure;                      // why, when kFailed; when kRegistered: why pins keep it out
  int64_t retry_in_ms = 0;             // until a load is tried again, when kFailed
  bool pinned = false;                 // by the operator: stays resident
  bool auto_pinned = false;            // among the most wanted
  uint64_t bytes = 0;                  // reserved for it now: 0 unless loading or resident
  uint64_t n_leases = 0;               // running requests
  double requests_per_s = 0;           // decayed, half-life 5 min
  int64_t last_used_unix = 0;          // 0 = never
  double load_seconds = 0;             // of the last load; 0 = none yet
  std::optional<PoolPlace> pool = {};  // of an adapter of the pool
};

// Totals only grow.
struct StoreStats {
  uint64_t budget_bytes = 0, reserved_bytes = 0, resident_bytes = 0;  // variants only; reserved >= resident
  uint64_t lookups = 0, hits = 0;  // Generation::CountRequest, and those that found it resident
  uint64_t loads = 0, load_failures = 0;
  LoadHistogram load_times = {};              // of loads that went through
  std::map<std::string, uint64_t> evictions;  // cause ("budget", "idle", "operator", "retired") -> count
  std::vector<std::string> waiting_names;     // wanted by requests and not resident
  std::optional<PoolTotals> pool = {};        // where there is one
};

struct RegisterOptions {
  std::string root = {};                 // the string the operator gave, shown as it is
  std::string given = {};                // what a restart opens, its links as they are then; "" = the directory
  std::string parent = {};               // a registered 1-bit variant that an adapter sits on; "" = the base
  bool replace = false;                  // a name that is taken gets a new generation
  std::string expected_generation = {};  // digest that a replace (or retire, pin ...) must find; "" = any
  bool pinned = false;
};

// Thread-safe.
class VariantStore {
 public:
  virtual ~VariantStore() = default;

  virtual const std::string& base_name() const = 0;
  // The variant called `name`, the base included; "base:variant" is accepted. nullptr when unknown. Resolved once: the
  // answer keeps its generation whatever happens to the name.
  virtual std::shared_ptr<const Variant> FindOrNull(std::string_view name) const = 0;
  virtual std::vector<std::shared_ptr<const Variant>> List() const = 0;  // base first, then by name

  // Opens and checks `directory` (structure, fingerprint, digest, finite scales) and gives it the name; blocks as long
  // as that takes, holds nobody else up. Weights are loaded on demand, at once when pinned. The only errors are
  // kInvalidArgument (bad name), kFailedPrecondition (taken, another base, parent unknown or no 1-bit variant, a
  // full model), kNotFound (no such directory or file), kUnavailable (expected_generation does not hold: see
  // IsGenerationMismatch), kResourceExhausted (can never fit the budget), and those of the readers,
  // whose own limits are kUnsupported here.
  virtual Result<std::shared_ptr<const Variant>> Register(const std::string& name, const std::string& directory,
                                                          const RegisterOptions& options) = 0;
  // New requests do not find it any more; running ones end on it, then its memory goes. kNotFound,
  // kFailedPrecondition (a parent of others; the base), generation mismatch.
  virtual Status Retire(const std::string& name, const std::string& expected_generation) = 0;
  virtual Status Pin(const std::string& name, const std::string& expected_generation) = 0;
  virtual Status Unpin(const std::string& name, const std::string& expected_generation) = 0;
  // Starts a load; does not wait for it. kResourceExhausted when there is no room for it beside what is pinned.
  virtual Status Prefetch(const std::string& name, const std::string& expected_generation) = 0;
  // Gives its memory back now. kFailedPrecondition while pinned or leased.
  virtual Status Evict(const std::string& name, const std::string& expected_generation) = 0;

  virtual std::vector<VariantStatus> Statuses() const = 0;  // without the base, by name; one moment's picture
  virtual StoreStats Stats() const = 0;
  // What the start asked for is there: each pin of the command line has been loaded once, or it was said why not. True
  // for good from then on: what becomes of a pin later is that variant's state and nobody else's.
  virtual bool Ready() const = 0;
  // `wake` runs after a load has ended or room has come free, on any thread; must not call back. Empty = none.
  virtual void SetWaker(std::function<void()> wake) = 0;
};

}  // namespace df

#endif  // DELTAFOLD_STORE_VARIANT_STORE_H_
