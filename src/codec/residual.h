// What a delta leaves of the difference: R = D - D^, row by row, never stored. For codes that go on from there and for
// measuring them all in one way.
#ifndef DELTAFOLD_CODEC_RESIDUAL_H_
#define DELTAFOLD_CODEC_RESIDUAL_H_

#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "codec/codec.h"
#include "linalg/randomized_svd.h"

namespace df {

// r -= the planes' part of row `row`; r [d_in]. The scales are F32, as the encoders make them.
void SubtractPlanes(const std::vector<SignPlane>& planes, size_t row, std::span<float> r);

// Looks at `pair` and `delta`, which must outlive it and not change; f32 copies of the low-rank factors and of scales
// in BF16 are held. Thread-safe.
class Residual {
 public:
  Residual(const WeightPair& pair, const LinearDelta& delta);

  size_t rows() const { return delta_.d_out; }
  size_t cols() const { return delta_.d_in; }
  // d [cols] = row `row` of D; a row that the base lacks starts from 0.
  void ReadDifference(size_t row, std::span<float> d) const;
  // Rows [first, first + out.rows) of R; d [out.rows, cols] gets those of D besides.
  void Read(size_t first, MatView<float> d, MatView<float> r) const;
  // R as a matrix whose leading part can be found.
  linalg::RowSource Source() const;

 private:
  void ReadRow(size_t row, std::span<const float> d, std::span<float> r) const;

  const WeightPair& pair_;
  const LinearDelta& delta_;
  std::vector<SignPlane> planes_;  // with F32 scales
  std::vector<Buffer<float>> scales_;
  std::vector<Mat<float>> a_, b_;  // [r, d_in] and [d_out, r] of each low-rank part, its scale within B
};

// How far `delta` is from D over all its rows (QualityOfRows). Reads both tensors once; depends on them alone, not on
// `pool`.
Quality MeasureQuality(ThreadPool& pool, const WeightPair& pair, const LinearDelta& delta);

}  // namespace df

#endif  // DELTAFOLD_CODEC_RESIDUAL_H_
