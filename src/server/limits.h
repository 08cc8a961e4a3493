// What a client may make the server hold or wait for. Every limit has an answer in docs/api.md.
#ifndef DELTAFOLD_SERVER_LIMITS_H_
#define DELTAFOLD_SERVER_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace df::server {

struct ServerLimits {
  size_t max_header_bytes = size_t{32} << 10;       // 431; common proxies stop at 8 to 32 KiB
  size_t max_header_fields = 100;                   // 431
  size_t max_body_bytes = size_t{16} << 20;         // 413; a 1 M token prompt is about 4 MiB
  size_t max_body_bytes_total = size_t{256} << 20;  // 503; all bodies being read or waiting for a worker
  size_t max_connections = 1024;                    // beyond: the longest idle one is closed
  size_t reserve_connections = 16;                  // beyond max_connections when none is idle: probes only
  int64_t idle_timeout_ms = 75'000;                 // silent close between requests
  int64_t header_timeout_ms = 15'000;               // 408; from the first byte of a request
  int64_t body_timeout_ms = 60'000;                 // 408
  int64_t write_timeout_ms = 30'000;                // a reader that takes nothing is dropped
  int64_t linger_ms = 2'000;                        // for a client that still sends while it is refused
  int64_t comment_interval_ms = 10'000;             // SSE comment while there is nothing to say
  size_t n_workers = 2;                             // templates and tokenising
  size_t max_queued_jobs = 256;                     // 429; requests waiting for a worker
  size_t max_admin_body_bytes = size_t{64} << 10;   // 413; a name and a path
  size_t n_admin_workers = 2;                       // opening and checking files of variants
  size_t max_queued_admin_jobs = 64;                // 429
};

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_LIMITS_H_
