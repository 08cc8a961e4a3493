// What the store says of itself, for a scrape.
#ifndef DELTAFOLD_SERVER_STORE_SNAPSHOT_H_
#define DELTAFOLD_SERVER_STORE_SNAPSHOT_H_

#include "metrics/metrics.h"
#include "store/variant_store.h"

namespace df::server {

// The members of the snapshot that are about variants; the engine's are zero. Asked anew each time: nothing is kept.
MetricsSnapshot StoreSnapshot(const VariantStore& store);

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_STORE_SNAPSHOT_H_
