// Is a file there? A link that leads nowhere is neither there nor absent: it is an error that names it.
#ifndef DELTAFOLD_BASE_PRESENCE_H_
#define DELTAFOLD_BASE_PRESENCE_H_

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace df {

// True: a regular file stands at `path` (links are followed). False: nothing does. The only errors are kCorrupt (a link
// to nothing, naming both), kFailedPrecondition (something else: a directory, FIFO, socket, device) and kIo (it cannot
// be looked at).
Result<bool> HasFile(const std::string& path);

// kNotFound for `path`, which could not be opened for want of it; kCorrupt where it is a link to nothing.
Status AbsenceOf(const std::string& path);

// kFailedPrecondition for `path`, which is there and no regular file.
Status NoRegularFile(const std::string& path);

// Names of the entries of `directory` that end in `extension`, ascending; none when there is no such directory. The
// only errors are kResourceExhausted (more than `max_files`), kFailedPrecondition (no directory), kCorrupt and kIo as
// above.
Result<std::vector<std::string>> ListFiles(const std::string& directory, std::string_view extension, size_t max_files);

}  // namespace df

#endif  // DELTAFOLD_BASE_PRESENCE_H_
