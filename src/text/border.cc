#include "text/border.h"

namespace df {

Status RustStatus(dft_code code, const RustBuffer& error) {
  const std::string message(error.text());
  switch (code) {
    case DFT_OK: return Status::Ok();
    case DFT_INVALID_ARGUMENT: return InvalidArgument(message);
    case DFT_CORRUPT: return Corrupt(message);
    case DFT_RESOURCE_EXHAUSTED: return ResourceExhausted(message);
    case DFT_DEADLINE_EXCEEDED: return DeadlineExceeded(message);
    case DFT_UNSUPPORTED: return Unsupported(message);
    case DFT_UNAVAILABLE: return Unavailable(message);
    // The libraries behind the border panic on input that they do not expect: the file is at fault, not the process.
    case DFT_PANIC: return Corrupt("the text library stopped: " + message);
  }
  return Internal("unknown code of the text library");
}

}  // namespace df
