// The sketches of a slot, beside its adapter: pool_sketches.safetensors. Private to the pool.
#ifndef DELTAFOLD_MERGE_POOL_SKETCHES_H_
#define DELTAFOLD_MERGE_POOL_SKETCHES_H_

#include <string>
#include <vector>

#include "base/status.h"
#include "merge/adapter_sketch.h"

namespace df {

struct PoolSketches {
  AdapterSketch mean;                  // of all that went into the slot
  std::vector<AdapterSketch> members;  // by PoolMember::sketch_row
  // |delta-W|^2 of each of the slot's modules, in the order of their paths; empty in what was written before there were
  // any.
  std::vector<double> squared_norms = {};
};

// The only errors are kIo.
Status WriteSketches(const PoolSketches& sketches, const std::string& directory);
// The only errors are SafetensorsFile::Open's and kCorrupt (a tensor that is missing, or of another shape, norms that
// are no lengths).
Result<PoolSketches> ReadSketches(const std::string& directory);

}  // namespace df

#endif  // DELTAFOLD_MERGE_POOL_SKETCHES_H_
