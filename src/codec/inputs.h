// What a linear weight is fed with on a calibration text, and what a code of it is therefore judged by: not |D - D^|,
// but the error of the outputs. x are the fine-tune's inputs, x^ those of the model whose layers before are coded
// already (the same where there are none), n_tokens of each:
//
//   sum_t | W_ft x_t - (W_base + D^) x^_t |^2 / n  =  tr( (D - D^) C (D - D^)^T ) + 2 tr( W_ft E (D - D^)^T ) + const
//   C = (1/n) sum_t x^_t x^_t^T + ridge,   E = (1/n) sum_t (x_t - x^_t) x^_t^T
//
// The ridge, a hundredth of C's mean diagonal, stands for inputs that the text did not show.
#ifndef DELTAFOLD_CODEC_INPUTS_H_
#define DELTAFOLD_CODEC_INPUTS_H_

#include "base/thread_pool.h"
#include "tensor/mat.h"

namespace df {

struct WeightInputs {
  MatView<const float> fine_tune;  // x  [n_tokens, d_in]
  MatView<const float> coded;      // x^ [n_tokens, d_in]; the same memory where the layers before are exact
  Mat<float> moment;               // C [d_in, d_in]; empty: too large, codes make do with products by x^
  Mat<float> drift;                // E [d_in, d_in]; empty where x = x^ or `moment` is

  bool HasMoment() const { return moment.rows() > 0; }
  bool HasDrift() const { return fine_tune.data != coded.data; }
};

// Views of the inputs, with C and E where their memory is at most `max_moment_bytes`.
WeightInputs GatherInputs(ThreadPool& pool, MatView<const float> fine_tune, MatView<const float> coded,
                          uint64_t max_moment_bytes);

// Bytes of C and E, and of what solving for column scales takes beside them.
uint64_t MomentBytes(size_t d_in);

}  // namespace df

#endif  // DELTAFOLD_CODEC_INPUTS_H_
