#include "server/wake.h"

#include <boost/asio/post.hpp>

namespace df::server {

void Wake::Notify() {
  const std::lock_guard lock(mutex_);
  if (closed_ || posted_) return;
  boost::asio::post(executor_, [self = shared_from_this()] {
    {
      const std::lock_guard inner(self->mutex_);
      self->posted_ = false;
      if (self->closed_) return;
    }
    self->signal_.Set();  // closed_ only changes on this thread
  });
  posted_ = true;  // under the lock still, which what was posted takes first; not where posting has failed
}

void Wake::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

}  // namespace df::server
