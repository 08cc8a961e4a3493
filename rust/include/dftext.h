/* C border of the Rust crate dftext: tokenizers, streaming decode and chat templates.
 *
 * Every function that can fail returns a dft_code and, unless it is DFT_OK, writes a message to `error`. No Rust panic
 * crosses this border: it comes back as DFT_PANIC. Buffers are owned by the caller and freed with dft_buffer_free;
 * on entry they must be zero or freed. Text is UTF-8; other bytes are DFT_INVALID_ARGUMENT. Tokenizers and templates
 * are immutable and may be used by many threads at once; a stream belongs to one thread at a time. */
#ifndef DFTEXT_H_
#define DFTEXT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dft_code {
  DFT_OK = 0,
  DFT_INVALID_ARGUMENT = 1,
  DFT_CORRUPT = 2,
  DFT_RESOURCE_EXHAUSTED = 3,
  DFT_DEADLINE_EXCEEDED = 4,
  DFT_UNSUPPORTED = 5,
  DFT_PANIC = 6,
  DFT_UNAVAILABLE = 7
} dft_code;

typedef struct dft_buffer {
  uint8_t* data;
  size_t size_bytes;
  size_t capacity_bytes;
} dft_buffer;

void dft_buffer_free(dft_buffer* buffer);

typedef struct dft_tokenizer dft_tokenizer;

/* Reads the bytes of a tokenizer.json whose nesting the caller has limited. */
dft_code dft_tokenizer_new(const uint8_t* json, size_t size_bytes, dft_tokenizer** out, dft_buffer* error);
void dft_tokenizer_free(dft_tokenizer* tokenizer);

/* JSON: {"vocab", "memory_bytes", "max_bytes_per_token" (0: unbounded), "prefix": [id], "suffix": [id],
 * "added": [{"id", "text", "special"}] by ascending id}. */
dft_code dft_tokenizer_describe(const dft_tokenizer* tokenizer, dft_buffer* out, dft_buffer* error);

typedef struct dft_encode_options {
  bool add_special_tokens;
  bool parse_special_tokens;
  int64_t max_ms;
  /* NULL: the whole text is trusted. Else special tokens count only as they are spelled, and not with one of these
   * ascending offsets strictly inside. */
  const size_t* broken_at;
  size_t n_broken;
} dft_encode_options;

/* `out` holds int32_t ids. */
dft_code dft_tokenizer_encode(const dft_tokenizer* tokenizer, const uint8_t* text, size_t size_bytes,
                              const dft_encode_options* options, dft_buffer* out, dft_buffer* error);
dft_code dft_tokenizer_decode(const dft_tokenizer* tokenizer, const int32_t* ids, size_t n_ids,
                              bool skip_special_tokens, dft_buffer* out, dft_buffer* error);
/* The id of the token spelled `text`, or -1. */
int32_t dft_tokenizer_id(const dft_tokenizer* tokenizer, const uint8_t* text, size_t size_bytes);
dft_code dft_tokenizer_token(const dft_tokenizer* tokenizer, int32_t id, dft_buffer* out, dft_buffer* error);
/* What the token adds to a text that has begun: bytes, maybe a part of a character. */
dft_code dft_tokenizer_token_bytes(const dft_tokenizer* tokenizer, int32_t id, dft_buffer* out, dft_buffer* error);

typedef struct dft_stream dft_stream;

/* Keeps the tokenizer's tables alive by itself. */
dft_stream* dft_stream_new(const dft_tokenizer* tokenizer, bool skip_special_tokens);
void dft_stream_free(dft_stream* stream);
dft_code dft_stream_push(dft_stream* stream, int32_t id, dft_buffer* out, dft_buffer* error);
dft_code dft_stream_finish(dft_stream* stream, dft_buffer* out, dft_buffer* error);

typedef struct dft_template dft_template;

dft_code dft_template_new(const uint8_t* source, size_t size_bytes, dft_template** out, dft_buffer* error);
void dft_template_free(dft_template* source);

typedef struct dft_render_options {
  uint64_t max_output_bytes;
  int64_t now_unix_s;
  uint32_t sentinel; /* a code point that tojson and repr never escape; 0: none */
} dft_render_options;

/* `context`: one JSON object, the variables in scope. */
dft_code dft_template_render(const dft_template* source, const uint8_t* context, size_t size_bytes,
                             const dft_render_options* options, dft_buffer* out, dft_buffer* error);

#ifdef __cplusplus
}
#endif

#endif /* DFTEXT_H_ */
