#include "text/text_stream.h"

#include <utility>

#include "text/border.h"

namespace df {

DecodeStream::DecodeStream(std::shared_ptr<const Tokenizer> tokenizer, DecodeOptions options)
    : tokenizer_(std::move(tokenizer)), handle_(dft_stream_new(tokenizer_->handle_, options.skip_special_tokens)) {}

DecodeStream::~DecodeStream() { dft_stream_free(handle_); }

DecodeStream::DecodeStream(DecodeStream&& other) noexcept
    : tokenizer_(std::move(other.tokenizer_)), handle_(std::exchange(other.handle_, nullptr)) {}

DecodeStream& DecodeStream::operator=(DecodeStream&& other) noexcept {
  std::swap(tokenizer_, other.tokenizer_);
  std::swap(handle_, other.handle_);
  return *this;
}

Result<std::string> DecodeStream::Push(int32_t id) {
  RustBuffer out;
  RustBuffer error;
  DF_RETURN_IF_ERROR(RustStatus(dft_stream_push(handle_, id, out.out(), error.out()), error));
  return std::string(out.text());
}

Result<std::string> DecodeStream::Finish() {
  RustBuffer out;
  RustBuffer error;
  DF_RETURN_IF_ERROR(RustStatus(dft_stream_finish(handle_, out.out(), error.out()), error));
  return std::string(out.text());
}

}  // namespace df
