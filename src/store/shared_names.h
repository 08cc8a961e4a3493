// A set of names that one thread changes while others look.
#ifndef DELTAFOLD_STORE_SHARED_NAMES_H_
#define DELTAFOLD_STORE_SHARED_NAMES_H_

#include <mutex>
#include <set>
#include <string>

namespace df {

// Thread-safe; never waits for more than another call.
class SharedNames {
 public:
  bool Has(const std::string& name) const {
    const std::scoped_lock lock(mutex_);
    return names_.contains(name);
  }
  std::set<std::string> All() const {
    const std::scoped_lock lock(mutex_);
    return names_;
  }
  // Puts it in or takes it out; whether it was in.
  bool Set(const std::string& name, bool is_in) {
    const std::scoped_lock lock(mutex_);
    return is_in ? !names_.insert(name).second : names_.erase(name) > 0;
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::string> names_;
};

}  // namespace df

#endif  // DELTAFOLD_STORE_SHARED_NAMES_H_
