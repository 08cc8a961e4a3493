// A live store over a tiny family, and what its tests wait for and ask.
#ifndef DELTAFOLD_STORE_LIVE_STORE_FIXTURE_H_
#define DELTAFOLD_STORE_LIVE_STORE_FIXTURE_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "store/live_store.h"
#include "store/store_fixture.h"

namespace df {

// What holds loads back at their first weight until it is opened.
class Gate {
 public:
  void Open() { open_.store(true); }
  std::function<bool()> Probe() {
    return [this] {
      entered_.store(true);
      while (!open_.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return false;
    };
  }
  bool entered() const { return entered_.load(); }

 private:
  std::atomic<bool> open_{false}, entered_{false};
};

class LiveStoreTest : public StoreFixture {
 protected:
  std::unique_ptr<LiveStore> Make(LiveStoreOptions options = {}) {
    options.warn = [this](const std::string& line) {
      const std::scoped_lock lock(mutex_);
      warnings_ += line + "\n";
    };
    options.look_every_ms = 5;
    options.load_bytes_per_second = uint64_t{1} << 40;  // so that the probe is asked
    return testing::ValueOrDie(LiveStore::Create(base_, options));
  }
  std::string Warnings() {
    const std::scoped_lock lock(mutex_);
    return warnings_;
  }
  // For what other threads do within a moment.
  static bool Eventually(const std::function<bool()>& holds) {
    for (int i = 0; i < 5000; ++i) {
      if (holds()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }
  static LeaseAttempt Ask(const Variant& variant) { return variant.generation->TryLease(SteadyClock().NowUs()); }
  static LeaseAttempt WaitFor(const Variant& variant) {
    LeaseAttempt attempt;
    Eventually([&] {
      attempt = Ask(variant);
      return attempt.granted() || !attempt.failure.ok();
    });
    return attempt;
  }
  static VariantStatus StatusFor(const LiveStore& store, const std::string& name) {
    for (VariantStatus& status : store.Statuses()) {
      if (status.variant->name == name) return std::move(status);
    }
    return {};
  }
  static uint64_t BytesOf(const std::string& name) {
    return testing::ValueOrDie(OpenVariant(*base_.weights, Path(name)))->info.resident_bytes;
  }

  std::mutex mutex_;
  std::string warnings_;
};

}  // namespace df

#endif  // DELTAFOLD_STORE_LIVE_STORE_FIXTURE_H_
