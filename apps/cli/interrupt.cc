#include "cli/interrupt.h"

#include <signal.h>

namespace df::cli {
namespace {

sigset_t HeldSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  const sigset_t set = HeldSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

InterruptGuard::~InterruptGuard() {
  const sigset_t set = HeldSignals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

bool InterruptGuard::Interrupted() const {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1;
}

}  // namespace df::cli
