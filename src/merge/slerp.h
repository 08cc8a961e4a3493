// Between two models along the arc of the sphere (Shoemake, "Animating rotation with quaternion curves", 1985), each
// tensor flattened to one vector.
//
//   cos h = <a, b> / (|a| |b|),  W = (sin((1 - t) h) a + sin(t h) b) / sin h
//
// and (1 - t) a + t b where |cos h| > 0.9995; a norm of at most 1e-8 counts as 1.
#ifndef DELTAFOLD_MERGE_SLERP_H_
#define DELTAFOLD_MERGE_SLERP_H_

#include "merge/method.h"

namespace df::merge {

// The models are a and b; no base is looked at. Reads them twice. Errors as Merge.
Result<Report> MergeSlerp(ThreadPool& pool, const TensorGroup& group, const Settings& settings, const Sink& sink);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_SLERP_H_
