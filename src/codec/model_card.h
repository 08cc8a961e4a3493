// README.md of a delta directory, as model hubs show it.
#ifndef DELTAFOLD_CODEC_MODEL_CARD_H_
#define DELTAFOLD_CODEC_MODEL_CARD_H_

#include <string>

#include "codec/compressor.h"

namespace df {

// The front matter: what a hub reads.
std::string CardHead(const std::string& base_name);

std::string ModelCard(const CompressReport& report, const CompressOptions& options);

}  // namespace df

#endif  // DELTAFOLD_CODEC_MODEL_CARD_H_
