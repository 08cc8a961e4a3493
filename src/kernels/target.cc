#include "kernels/target.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

#include "hwy/highway.h"

namespace df::kernels {
namespace {

struct NamedTarget {
  std::string_view name;
  std::string_view highway_name;  // as hwy::TargetName and other projects spell it
  int64_t bit;
};

// Best first.
constexpr std::array kTargets = {
#if HWY_ARCH_X86
    NamedTarget{"avx512", "AVX3", HWY_AVX3},
    NamedTarget{"avx2", "AVX2", HWY_AVX2},
    NamedTarget{"sse4", "SSE4", HWY_SSE4},
#elif HWY_ARCH_ARM
    NamedTarget{"neon", "NEON", HWY_NEON},
#endif
    NamedTarget{"scalar", "SCALAR", 0},
};

// Highway keeps one process-wide set of allowed targets, which every dispatch reads. The empty set selects the last
// entry of the dispatch tables: that is how "scalar" is remembered.
constexpr size_t kScalarIndex = HWY_MAX_DYNAMIC_TARGETS + 1;

bool IsAvailable(const NamedTarget& target) {
  return target.bit == 0 || (hwy::SupportedTargets() & HWY_TARGETS & target.bit) != 0;
}

void Choose(const NamedTarget& target) { hwy::GetChosenTarget().Update(target.bit); }

const NamedTarget& Best() { return *std::find_if(kTargets.begin(), kTargets.end(), IsAvailable); }

void ChooseOnFirstUse() {
  if (hwy::GetChosenTarget().IsInitialized()) return;
  if (!SetTargetFromEnvironment().ok()) Choose(Best());
}

}  // namespace

std::vector<std::string> AvailableTargets() {
  std::vector<std::string> names;
  for (const NamedTarget& target : kTargets) {
    if (IsAvailable(target)) names.emplace_back(target.name);
  }
  return names;
}

Status SetTarget(std::string_view name) {
  if (name == "auto") {
    Choose(Best());
    return Status::Ok();
  }
  for (const NamedTarget& target : kTargets) {
    if ((name == target.name || name == target.highway_name) && IsAvailable(target)) {
      Choose(target);
      return Status::Ok();
    }
  }
  std::string message = "vector target \"" + std::string(name) + "\" is not available; this machine has: auto";
  for (const std::string& available : AvailableTargets()) message += ", " + available;
  return InvalidArgument(std::move(message));
}

Status SetTargetFromEnvironment() {
  const char* name = std::getenv("DELTAFOLD_TARGET");
  if (name == nullptr || *name == '\0') return SetTarget("auto");
  const Status status = SetTarget(name);
  return status.ok() ? status : status.Annotate("DELTAFOLD_TARGET");
}

std::string CurrentTarget() {
  ChooseOnFirstUse();
  const size_t index = hwy::GetChosenTarget().GetIndex();
  for (const NamedTarget& target : kTargets) {
    // GetIndex counts from the shifted bit, see hwy/targets.h.
    if (target.bit == 0 || (HWY_CHOSEN_TARGET_SHIFT(target.bit) >> index & 1) != 0) return std::string(target.name);
  }
  return "scalar";
}

bool IsScalarTarget() {
  ChooseOnFirstUse();
  return hwy::GetChosenTarget().GetIndex() == kScalarIndex;
}

}  // namespace df::kernels
