// The names under which atomic_file.h writes, "TARGET.tmp-PID-N", and what becomes of those whose writer was killed.
//
// A writer holds a lock (flock) on what it writes from its creation to its end; the kernel gives the lock back when the
// process dies, however it dies. What bears such a name, is locked by nobody, and names no living process, was
// abandoned. Private to base/.
#ifndef DELTAFOLD_BASE_TEMPORARY_NAME_H_
#define DELTAFOLD_BASE_TEMPORARY_NAME_H_

#include <string>
#include <vector>

namespace df::internal {

// A name beside `target` that this process has not used before.
std::string TemporaryName(const std::string& target);

// Marks what `fd` has open as being written, until all copies of `fd` are closed. False when another has marked it.
// Without effect on file systems that know no locks.
bool LockTemporary(int fd);

// Removes what killed writers of `target` left behind, files and directories. What cannot be removed stays.
void RemoveAbandoned(const std::string& target);

// Paths of all that bears such a name, ascending; none where the folder cannot be read.
std::vector<std::string> ListTemporaries(const std::string& target);

// Whether a living writer holds `path`'s lock; false as well where locks are unknown.
bool IsLocked(const std::string& path);

}  // namespace df::internal

#endif  // DELTAFOLD_BASE_TEMPORARY_NAME_H_
