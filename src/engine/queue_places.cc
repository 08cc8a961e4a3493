#include "engine/queue_places.h"

namespace df {

QueuePlaces::Place QueuePlaces::TryTake(const Generation* line) {
  const std::scoped_lock lock(mutex_);
  size_t& n_taken = n_taken_[line];
  if (n_taken >= most_each_) return {};
  ++n_taken;
  return {this, line};
}

void QueuePlaces::GiveBack(const Generation* line) {
  const std::scoped_lock lock(mutex_);
  const auto found = n_taken_.find(line);
  if (--found->second == 0) n_taken_.erase(found);
}

}  // namespace df
