// The queue into the engine thread: requests, cancellations and news of weights from any thread.
#ifndef DELTAFOLD_ENGINE_INBOX_H_
#define DELTAFOLD_ENGINE_INBOX_H_

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/queue_places.h"
#include "engine/request.h"

namespace df {

struct Submission {
  GenerationRequest request;
  int64_t submitted_us = 0;
  QueuePlaces::Place place = {};  // in its variant's line, from Inbox::Submit on
  EndPromise promise = {};        // from its acceptance on
};

// What arrived since the last look.
struct News {
  std::vector<Submission> submitted;
  std::vector<std::string> cancelled;  // ids
  bool woken = false;                  // weights may be there, or have failed
};

// Thread-safe.
class Inbox {
 public:
  // Outlives all places.
  explicit Inbox(size_t max_queued_requests) : places_(max_queued_requests) {}

  // The only errors are kResourceExhausted (as many requests wait for its variant as may) and kUnavailable (stopping).
  Status Submit(Submission submission);
  void Cancel(const std::string& id);
  void Wake();
  void Stop();

  // Engine thread: takes the news, waiting for some for `patience_us` at most. False once stopping; what is left is in
  // `news` then.
  bool Take(int64_t patience_us, News& news);
  // Engine thread: requests taken that still wait for a place.
  void SetWaiting(size_t n_waiting);
  // Requests that wait, taken or not.
  size_t n_waiting() const;

 private:
  QueuePlaces places_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  News news_;
  size_t n_waiting_ = 0;
  bool stopping_ = false;
};

}  // namespace df

#endif  // DELTAFOLD_ENGINE_INBOX_H_
