// Ctrl-C for commands that write: the signal waits until the command asks for it, so that half-written output is
// removed.
#ifndef DELTAFOLD_CLI_INTERRUPT_H_
#define DELTAFOLD_CLI_INTERRUPT_H_

namespace df::cli {

// Holds SIGINT and SIGTERM back in this thread and in threads started after; put back when destroyed.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // Whether one has arrived. It is still delivered when the guard ends.
  bool Interrupted() const;
};

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_INTERRUPT_H_
