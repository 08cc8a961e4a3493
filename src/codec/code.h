// Every code by name: what a command line says, what a report shows, what is chosen from. docs/codes.md has their
// formulas and bytes.
//
//   scalar row column rank1    one plane of signs with that scale (sign.h)
//   planes2 .. planes8         that many planes with rank-1 scales; planes2:row, :scalar, :column with others
//   lowrank lowrank:R          D as the product that was fused in, else exact; or as B A at rank R (low_rank.h)
//   ...+lowrank:R              signs, and the leading part of what they leave
//   int8                       changed rows in bytes (byte_rows.h)
//   rows raw exact             changed rows, the whole, or the smallest of absent, rows and raw: exact (exact.h)
#ifndef DELTAFOLD_CODEC_CODE_H_
#define DELTAFOLD_CODEC_CODE_H_

#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "codec/inputs.h"
#include "codec/sign.h"

namespace df {

enum class CodeKind { kSign, kLowRank, kByteRows, kRows, kRaw, kExact };

struct Code {
  CodeKind kind = CodeKind::kSign;
  SignOptions sign = {};  // of kSign
  size_t rank = 0;        // of kSign: of the residual, 0 = none; of kLowRank: 0 = that of a fused product
};

inline bool HasLowRank(const Code& code) { return code.kind == CodeKind::kLowRank || code.rank > 0; }

// Whether inputs would make a difference: signs, and a low rank that is given.
bool TakesInputs(const Code& code);

std::string CodeText(const Code& code);
// The only error is kInvalidArgument, which lists what there is.
Result<Code> ParseCode(std::string_view text);

// Whether `code` can hold the weight: kUnsupported, naming it, for a grown vocabulary by a low rank.
Status CheckCode(const WeightPair& pair, const Code& code);

// Encodes `pair`; an unchanged weight gives an empty delta whatever the code, and no other one does: a difference that
// the code would leave out whole is stored exactly. Rows that only the fine-tune has are stored as they are, under
// kByteRows in bytes. With `inputs` (null: none) scales and low ranks are fitted to the outputs. The only errors are
// those of CheckCode and of the codes.
Result<EncodedWeight> Encode(ThreadPool& pool, const WeightPair& pair, const Code& code,
                             const WeightInputs* inputs = nullptr);

}  // namespace df

#endif  // DELTAFOLD_CODEC_CODE_H_
