// For tests: a VariantStore without weights. A directory's last part says what is found in it: "corrupt", "wrong-base",
// "unsupported", "missing-file", "unreadable", "too-large"; anything else is a sound delta. "at-the-gate" in it waits.
#ifndef DELTAFOLD_SERVER_SCRIPTED_STORE_H_
#define DELTAFOLD_SERVER_SCRIPTED_STORE_H_

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "store/variant_store.h"

namespace df::server {

// Holds what waits for it until it is opened: so tests decide the order of things whatever the load of the machine.
class Gate {
 public:
  void Open() { open_ = true; }
  void Close() { open_ = false; }
  bool is_open() const { return open_; }
  void Wait() const {
    while (!open_) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

 private:
  std::atomic<bool> open_{false};
};

class ScriptedGeneration final : public Generation {
 public:
  explicit ScriptedGeneration(GenerationInfo info) : info_(std::move(info)) {}
  const GenerationInfo& info() const override { return info_; }
  LeaseAttempt TryLease(int64_t /*now_us*/) const override { return {}; }

 private:
  const GenerationInfo info_;
};

class ScriptedStore final : public VariantStore {
 public:
  ScriptedStore() {
    auto base = std::make_shared<Variant>();
    base->name = base->root = "base";
    base->resident_bytes = 1000;
    base->created_unix = 1700000000;
    base_ = std::move(base);
  }

  // Registers and makes resident at once.
  void Add(const std::string& name) {
    const std::lock_guard lock(mutex_);
    RegisterOptions options;
    options.root = "models/" + name;
    rows_[name] = Row(name, options);
    rows_[name].state = ResidencyState::kResident;
  }
  // `change` sees the row of `name`.
  template <typename Change>
  void Edit(const std::string& name, const Change& change) {
    const std::lock_guard lock(mutex_);
    change(rows_.at(name));
  }

  const std::string& base_name() const override { return base_->name; }
  std::shared_ptr<const Variant> FindOrNull(std::string_view name) const override {
    const std::lock_guard lock(mutex_);
    if (name == base_->name) return base_;
    const auto found = rows_.find(name);
    return found == rows_.end() ? nullptr : found->second.variant;
  }
  std::vector<std::shared_ptr<const Variant>> List() const override {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<const Variant>> list = {base_};
    for (const auto& [name, row] : rows_) list.push_back(row.variant);
    return list;
  }

  Result<std::shared_ptr<const Variant>> Register(const std::string& name, const std::string& directory,
                                                  const RegisterOptions& options) override {
    ++n_registering;
    if (directory.find("at-the-gate") != std::string::npos) gate.Wait();
    --n_registering;
    DF_RETURN_IF_ERROR(FoundIn(directory));
    const std::lock_guard lock(mutex_);
    const auto found = rows_.find(name);
    if (found != rows_.end() && !options.replace) return FailedPrecondition("the name \"" + name + "\" is taken");
    if (found != rows_.end()) DF_RETURN_IF_ERROR(Check(found->second, options.expected_generation));
    for (const auto& [child, row] : rows_) {
      if (row.variant->parent == name) return InUse("\"" + name + "\" is the parent of \"" + child + "\"");
    }
    ++n_registered;
    rows_[name] = Row(name, options);
    return rows_[name].variant;
  }
  Status Retire(const std::string& name, const std::string& expected_generation) override {
    const std::lock_guard lock(mutex_);
    if (name == base_->name) return FailedPrecondition("\"" + name + "\" is the base");
    DF_RETURN_IF_ERROR(Find(name, expected_generation));
    for (const auto& [child, row] : rows_) {
      if (row.variant->parent == name) return InUse("\"" + name + "\" is the parent of \"" + child + "\"");
    }
    rows_.erase(name);
    return Status::Ok();
  }
  Status Pin(const std::string& name, const std::string& generation) override {
    return Change(name, generation, [](VariantStatus& row) {
      if (row.variant->name == "no-room") return ResourceExhausted("needs 9 bytes, the budget is 5");
      row.pinned = true;
      return Status::Ok();
    });
  }
  Status Unpin(const std::string& name, const std::string& generation) override {
    return Change(name, generation, [](VariantStatus& row) {
      row.pinned = false;
      return Status::Ok();
    });
  }
  Status Prefetch(const std::string& name, const std::string& generation) override {
    return Change(name, generation, [](VariantStatus& row) {
      row.state = ResidencyState::kLoading;
      return Status::Ok();
    });
  }
  Status Evict(const std::string& name, const std::string& generation) override {
    return Change(name, generation, [](VariantStatus& row) {
      if (row.pinned) return FailedPrecondition("it is pinned");
      row.state = ResidencyState::kRegistered;
      return Status::Ok();
    });
  }
  std::vector<VariantStatus> Statuses() const override {
    const std::lock_guard lock(mutex_);
    std::vector<VariantStatus> statuses;
    for (const auto& [name, row] : rows_) statuses.push_back(row);
    return statuses;
  }
  StoreStats Stats() const override {
    StoreStats stats;
    stats.budget_bytes = 500;
    stats.reserved_bytes = 200;
    stats.resident_bytes = 100;
    stats.lookups = 9;
    stats.hits = 7;
    return stats;
  }
  bool Ready() const override { return ready; }
  void SetWaker(std::function<void()> /*wake*/) override {}

  Gate gate;
  std::atomic<bool> ready{true};
  std::atomic<int> n_registering{0}, n_registered{0};

 private:
  static Status FoundIn(const std::string& directory) {
    const std::string file = directory + "/delta_config.json";
    const std::string what = directory.substr(directory.rfind('/') + 1);
    if (what == "corrupt") return Corrupt(file + ": byte 3 is no JSON");
    if (what == "wrong-base") return FailedPrecondition(directory + ": made for base ab12, this is base cd34");
    if (what == "unsupported") return Unsupported(file + ": use_qalora is not supported");
    if (what == "missing-file") return NotFound("no file " + file);
    if (what == "unreadable") return Status(StatusCode::kIo, file + ": Input/output error");
    if (what == "too-large") return ResourceExhausted("takes 9 bytes, the budget is 5");
    return Status::Ok();
  }
  VariantStatus Row(const std::string& name, const RegisterOptions& options) {
    GenerationInfo info;
    info.digest = "digest-" + std::to_string(++n_digests_);
    info.resident_bytes = 100;
    info.stored_bytes = 110;
    auto variant = std::make_shared<Variant>();
    variant->name = name;
    variant->root = options.root;
    variant->parent = options.parent;
    variant->created_unix = 1700000000;
    variant->generation = std::make_shared<const ScriptedGeneration>(std::move(info));
    VariantStatus row;
    row.variant = std::move(variant);
    row.pinned = options.pinned;
    return row;
  }
  static Status Check(const VariantStatus& row, const std::string& generation) {
    const std::string& digest = row.variant->generation->info().digest;
    return generation.empty() || generation == digest ? Status::Ok() : GenerationMismatch(generation, digest);
  }
  Status Find(const std::string& name, const std::string& generation) const {
    const auto found = rows_.find(name);
    return found == rows_.end() ? NotFound("no variant \"" + name + "\"") : Check(found->second, generation);
  }
  template <typename Do>
  Status Change(const std::string& name, const std::string& generation, const Do& change) {
    const std::lock_guard lock(mutex_);
    DF_RETURN_IF_ERROR(Find(name, generation));
    return change(rows_.at(name));
  }

  std::shared_ptr<const Variant> base_;
  mutable std::mutex mutex_;
  std::map<std::string, VariantStatus, std::less<>> rows_;
  int n_digests_ = 0;
};

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_SCRIPTED_STORE_H_
