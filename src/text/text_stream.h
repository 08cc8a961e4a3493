// Token ids of a running generation to text, piece by piece.
//
// Input:  one id after another.
// Output: pieces of complete, final UTF-8; all pieces together and the one of Finish are exactly Tokenizer::Decode of
//         all ids. A piece is held back only while later ids could still change it: unfinished UTF-8, and a run of
//         byte-fallback tokens, which the decoder judges as a whole.
// Called by: engine/session.
#ifndef DELTAFOLD_TEXT_TEXT_STREAM_H_
#define DELTAFOLD_TEXT_TEXT_STREAM_H_

#include <memory>
#include <string>

#include "base/status.h"
#include "text/tokenizer.h"

struct dft_stream;

namespace df {

// Thread-compatible. Work per id does not grow with the number of ids before it.
class DecodeStream {
 public:
  explicit DecodeStream(std::shared_ptr<const Tokenizer> tokenizer, DecodeOptions options = {});
  ~DecodeStream();
  DecodeStream(DecodeStream&& other) noexcept;
  DecodeStream& operator=(DecodeStream&& other) noexcept;

  // What `id` adds, often empty. The only errors are those of Tokenizer::Decode; the id then counts as not given.
  Result<std::string> Push(int32_t id);
  // What was still held back. The stream is then as at its start.
  Result<std::string> Finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  dft_stream* handle_;  // owned
};

}  // namespace df

#endif  // DELTAFOLD_TEXT_TEXT_STREAM_H_
