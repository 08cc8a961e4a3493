// Models of different vocabularies: which row of its embedding and head each gives to a row of the output, and the
// tokenizer that goes with it. Rows are matched by the tokens' texts, never by their places.
#ifndef DELTAFOLD_MERGE_VOCABULARY_H_
#define DELTAFOLD_MERGE_VOCABULARY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "merge/recipe.h"
#include "merge/sources.h"
#include "tensor/mat.h"

namespace df::merge {

// Row of a source, or none: it has no such token.
inline constexpr int32_t kNoRow = -1;

struct Vocabulary {
  size_t rows = 0;  // of the output's embedding and head
  // Of each source the row for each of the output's; the base first where there is one, then the models. Empty: every
  // source gives its rows as they are.
  std::vector<std::vector<int32_t>> row_of = {};
  // The tokenizer and what goes with it (chat template, ids of special tokens, generation config) come from here:
  std::string text_directory = {}, text_fallback = {};
  std::optional<std::string> tokenizer_json = {};  // a union's own; else text_directory's as it is
  bool takes_ids = false;  // bos, eos and pad of config.json come from text_directory, not from the base
  size_t n_added = 0;      // tokens that a union has beyond the base's
};

// Decides on `choice`:
//   unsaid   the pattern's (sources.h). kFailedPrecondition unless all have as many rows, and no id stands for two
//            tokens where both tokenizers can be read.
//   base     the base's tokenizer and rows.
//   union    the pattern's tokenizer, behind it the tokens that only others have, in the recipe's order.
//   model    the tokenizer of that model, of this merge or any other directory.
// Rows without a token are those of the model whose tokenizer it is, and zeros behind its last. The only errors besides
// are those of reading tokenizers and kUnsupported (a union of vocabularies of another kind than listed words).
Result<Vocabulary> PlanVocabulary(const Recipe& recipe, const MergeSources& sources);

// How the sources' embeddings, or their heads, are brought to `vocabulary.rows` rows. The base is the first of them
// where there is one; `makes_base`: its rows are asked for, not only what fills others'.
struct MatchOptions {
  bool has_base = false, makes_base = true;
};
struct MatchSource {
  DType dtype = DType::kF32;
  size_t rows = 0;
};
// What MatchRows makes each of: nothing where its rows stand in their places already or are not asked for; else its own
// dtype, but F32 where it is filled with a mean or with a row of another dtype.
std::vector<std::optional<DType>> MatchedTypes(const Vocabulary& vocabulary, const MatchOptions& options,
                                               const std::vector<MatchSource>& sources);

// Embeddings or heads of all sources, in `row_of`'s order, brought to `vocabulary.rows` rows, those that are made each
// in its place of `memory` [sources]. A source without a token takes the base's row; where that has none, or there is
// no base, the mean of those that have it. views [rows of each, d]; views of the result look at `memory` or at what
// `views` look at; the base's is empty where it is not asked for.
std::vector<TensorView> MatchRows(ThreadPool& pool, const Vocabulary& vocabulary, const MatchOptions& options,
                                  const std::vector<TensorView>& views, std::vector<Buffer<uint8_t>>& memory);

// Text of every id; "" for ids without a token.
using TokenTable = std::vector<std::string>;

// tokenizer.json `base` with the tokens of `added` behind the last id of it: as added tokens where the tokenizer they
// come from lists them so, else as words of its model's vocabulary, which no merge rule leads to.
struct UnionPart {
  std::string json;         // its tokenizer.json
  std::vector<size_t> ids;  // of its tokens that are to be added
};
Result<std::string> UnionTokenizer(const std::string& base, const std::vector<TokenTable>& tables, size_t first_id,
                                   const std::vector<UnionPart>& added);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_VOCABULARY_H_
