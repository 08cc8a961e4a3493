#include "model/kv_pool.h"

namespace df {
namespace {

// Bytes of the keys (or values) of one block in one layer.
size_t HalfBlockBytes(const ModelConfig& config, DType dtype) {
  return config.n_kv_heads * kernels::kKvBlockTokens * config.head_dim * DTypeBytes(dtype);
}

}  // namespace

KvPool::KvPool(const ModelConfig& config, KvPoolOptions options)
    : dtype_(options.dtype),
      n_blocks_(options.n_blocks),
      n_kv_heads_(config.n_kv_heads),
      head_dim_(config.head_dim),
      layer_bytes_(options.n_blocks * HalfBlockBytes(config, options.dtype)),
      keys_(config.n_layers * layer_bytes_),
      values_(config.n_layers * layer_bytes_) {}

kernels::KvLayerView KvPool::Layer(size_t layer) {
  return {.dtype = dtype_,
          .keys = keys_.data() + layer * layer_bytes_,
          .values = values_.data() + layer * layer_bytes_,
          .n_kv_heads = n_kv_heads_,
          .head_dim = head_dim_};
}

size_t KvPool::BlockBytes(const ModelConfig& config, DType dtype) {
  return 2 * config.n_layers * HalfBlockBytes(config, dtype);
}

}  // namespace df
