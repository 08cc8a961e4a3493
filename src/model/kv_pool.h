// The paged KV cache's memory: n_blocks blocks of 16 tokens for every layer. Who holds which block is engine/kv_cache's
// matter.
#ifndef DELTAFOLD_MODEL_KV_POOL_H_
#define DELTAFOLD_MODEL_KV_POOL_H_

#include <vector>

#include "format/model_config.h"
#include "kernels/attention.h"
#include "tensor/mat.h"

namespace df {

struct KvPoolOptions {
  DType dtype = DType::kF32;  // kF32 or kBf16
  size_t n_blocks = 0;
};

class KvPool {
 public:
  KvPool(const ModelConfig& config, KvPoolOptions options);

  size_t n_blocks() const { return n_blocks_; }
  DType dtype() const { return dtype_; }
  kernels::KvLayerView Layer(size_t layer);
  size_t bytes() const { return keys_.size_bytes() + values_.size_bytes(); }

  // Bytes of one block over all layers, keys and values.
  static size_t BlockBytes(const ModelConfig& config, DType dtype);

 private:
  DType dtype_;
  size_t n_blocks_, n_kv_heads_, head_dim_;
  size_t layer_bytes_;
  Buffer<uint8_t> keys_, values_;  // [n_layers][n_blocks][n_kv_heads] blocks as in kernels/attention.h
};

}  // namespace df

#endif  // DELTAFOLD_MODEL_KV_POOL_H_
