// How many requests wait in the line of each variant, the base being one. Every line has a bound of its own, so that a
// variant which many ask for and nobody can load yet refuses nobody who asks for another.
#ifndef DELTAFOLD_ENGINE_QUEUE_PLACES_H_
#define DELTAFOLD_ENGINE_QUEUE_PLACES_H_

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

#include "store/generation.h"

namespace df {

// Thread-safe.
class QueuePlaces {
 public:
  // One place in a line, given back at its end. Move-only; must not outlive its QueuePlaces.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept
        : places_(std::exchange(other.places_, nullptr)), line_(std::exchange(other.line_, nullptr)) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(places_, other.places_);
      std::swap(line_, other.line_);
      return *this;
    }
    ~Place() { End(); }

    bool is_taken() const { return places_ != nullptr; }
    void End() {
      if (QueuePlaces* places = std::exchange(places_, nullptr)) places->GiveBack(line_);
    }

   private:
    friend class QueuePlaces;
    Place(QueuePlaces* places, const Generation* line) : places_(places), line_(line) {}

    QueuePlaces* places_ = nullptr;     // null: none is held
    const Generation* line_ = nullptr;  // null: the base's; alive, since whoever holds the place refers to it
  };

  explicit QueuePlaces(size_t most_each) : most_each_(most_each) {}

  // Not taken when as many wait for `line` as may.
  Place TryTake(const Generation* line);
  size_t most_each() const { return most_each_; }

 private:
  void GiveBack(const Generation* line);

  const size_t most_each_;  // >= 1
  std::mutex mutex_;
  std::map<const Generation*, size_t> n_taken_;  // none is 0
};

}  // namespace df

#endif  // DELTAFOLD_ENGINE_QUEUE_PLACES_H_
