// Threads of libraries: signals that ask the process to end go to the program's own threads, which know what to do.
#ifndef DELTAFOLD_BASE_QUIET_THREAD_H_
#define DELTAFOLD_BASE_QUIET_THREAD_H_

#include <signal.h>

#include <thread>
#include <utility>

namespace df {

// A thread that is never sent SIGINT, SIGTERM or SIGHUP. Faults of its own (SIGBUS) still reach it.
template <typename Body>
std::thread StartQuietThread(Body body) {
  sigset_t ending, former;
  sigemptyset(&ending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ending, signal);
  pthread_sigmask(SIG_BLOCK, &ending, &former);
  struct Restore {
    const sigset_t& mask;
    ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
  } const restore{former};  // also when no thread can be had
  return std::thread(std::move(body));
}

}  // namespace df

#endif  // DELTAFOLD_BASE_QUIET_THREAD_H_
