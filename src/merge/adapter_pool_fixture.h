// A pool over made-up adapters for its tests.
#ifndef DELTAFOLD_MERGE_ADAPTER_POOL_FIXTURE_H_
#define DELTAFOLD_MERGE_ADAPTER_POOL_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "merge/adapter_fixture.h"
#include "merge/adapter_pool.h"
#include "testing/temporary_directory.h"

namespace df {

// Of one made adapter: two modules of rank 3, f32.
inline constexpr uint64_t kOne = 3 * (24 + 20) * 2 * 4;
inline const std::vector<testing::MadeModule> kModules = {{}, {.path = testing::kDown}};

class AdapterPoolTest : public ::testing::Test {
 protected:
  std::string Made(uint64_t seed, float common = 0) {
    const std::string path = directory_ / ("made-" + std::to_string(seed) + "-" + std::to_string(common));
    return std::filesystem::exists(path) ? path
                                         : testing::WriteMade(testing::MakeFactors(kModules, seed, common), path);
  }
  void Create(PoolSettings settings) {
    pool_.reset();
    std::filesystem::remove_all(Path());
    pool_ = testing::ValueOrDie(AdapterPool::Create(Path(), settings));
  }
  void Reopen() {
    pool_.reset();
    pool_ = testing::ValueOrDie(AdapterPool::Open(Path()));
  }
  Result<PoolAdded> Add(const std::string& id, const std::string& adapter, const PoolAddOptions& options = {}) {
    return pool_->Add(threads_, id, adapter, options);
  }
  const PoolSlot& SlotOf(const std::string& id) const { return *pool_->state().FindOrNull(id); }
  const PoolMember& MemberOf(const std::string& id) const {
    return *std::ranges::find(SlotOf(id).members, id, &PoolMember::id);
  }
  AdapterFactors FactorsOf(const std::string& id) const {
    return testing::ReadMade(pool_->DirectoryOf(SlotOf(id).name));
  }
  size_t SlotDirectories() const {
    size_t n = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(Path() + "/slots")) ++n;
    return n;
  }
  std::string Path() const { return directory_ / "pool"; }

  testing::TemporaryDirectory directory_;
  ThreadPool threads_{2};
  std::unique_ptr<AdapterPool> pool_;
};

}  // namespace df

#endif  // DELTAFOLD_MERGE_ADAPTER_POOL_FIXTURE_H_
