#include "merge/vocabulary.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "base/atomic_file.h"
#include "base/presence.h"
#include "codec/row_ops.h"
#include "format/delta_dir.h"
#include "text/tokenizer.h"

namespace df::merge {
namespace {

// Of all sources, the base first.
std::vector<const MergeSource*> AllOf(const MergeSources& sources) {
  std::vector<const MergeSource*> all;
  if (sources.base) all.push_back(&*sources.base);
  for (const MergeSource& model : sources.models) all.push_back(&model);
  return all;
}

// "" where it has none.
Result<std::string> TokenizerPath(const MergeSource& source) {
  for (const std::string& directory : {source.own_directory(), source.checkpoint_directory()}) {
    const std::string path = directory + "/tokenizer.json";
    DF_ASSIGN_OR_RETURN(const bool is_there, HasFile(path));
    if (is_there) return path;
  }
  return std::string();
}

Result<TokenTable> ReadTable(const std::string& json, const std::string& path) {
  const auto tokenizer = Tokenizer::Parse(json);
  if (!tokenizer.ok()) return tokenizer.status().Annotate(path);
  TokenTable table(static_cast<size_t>((*tokenizer)->vocab()));
  for (size_t id = 0; id < table.size(); ++id) {
    Result<std::string> text = (*tokenizer)->TokenText(static_cast<int32_t>(id));
    if (text.ok()) table[id] = std::move(*text);
  }
  return table;
}

// tokenizer.json and its table; of equal bytes only one is read.
struct Text {
  std::string path, json;
  std::shared_ptr<const TokenTable> table;  // null: there is no tokenizer.json
};

Result<std::vector<Text>> ReadTexts(const std::vector<const MergeSource*>& sources) {
  std::vector<Text> texts;
  for (const MergeSource* source : sources) {
    Text text;
    DF_ASSIGN_OR_RETURN(text.path, TokenizerPath(*source));
    if (!text.path.empty()) {
      DF_ASSIGN_OR_RETURN(text.json, ReadFileBounded(text.path, kMaxSideFileBytes));
      const auto same = std::ranges::find_if(texts, [&](const Text& t) { return t.table && t.json == text.json; });
      if (same != texts.end()) {
        text.table = same->table;
      } else {
        DF_ASSIGN_OR_RETURN(TokenTable table, ReadTable(text.json, text.path));
        text.table = std::make_shared<const TokenTable>(std::move(table));
      }
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

// For `unsaid`: that a place means the same everywhere. Equal files are not parsed, and those without one not asked.
Status CheckPlaces(const std::vector<const MergeSource*>& sources, const MergeSource& pattern) {
  constexpr char kAdvice[] =
      ": say which to take: base, union or a model's, by --tokenizer, in a recipe by tokenizer: {source: base}";
  for (const MergeSource* source : sources) {
    if (source->config().vocab == pattern.config().vocab) continue;
    return FailedPrecondition("model " + source->name + " has a vocabulary of " +
                              std::to_string(source->config().vocab) + " rows, " + pattern.name + " one of " +
                              std::to_string(pattern.config().vocab) + kAdvice);
  }
  std::optional<std::string> first;
  bool differ = false;
  for (const MergeSource* source : sources) {
    DF_ASSIGN_OR_RETURN(const std::string path, TokenizerPath(*source));
    if (path.empty()) continue;
    DF_ASSIGN_OR_RETURN(std::string json, ReadFileBounded(path, kMaxSideFileBytes));
    if (first && *first != json) differ = true;
    if (!first) first = std::move(json);
  }
  if (!differ) return Status::Ok();
  DF_ASSIGN_OR_RETURN(const std::vector<Text> texts, ReadTexts(sources));
  const size_t leader = static_cast<size_t>(
      std::ranges::find_if(texts, [](const Text& t) { return t.table != nullptr; }) - texts.begin());
  for (size_t i = leader + 1; i < texts.size(); ++i) {
    if (!texts[i].table) continue;
    const TokenTable &a = *texts[leader].table, &b = *texts[i].table;
    for (size_t id = 0; id < std::min(a.size(), b.size()); ++id) {
      if (a[id] == b[id] || a[id].empty() || b[id].empty()) continue;
      return FailedPrecondition("token " + std::to_string(id) + " is \"" + b[id].substr(0, 80) + "\" in " +
                                sources[i]->name + " and \"" + a[id].substr(0, 80) + "\" in " + sources[leader]->name +
                                kAdvice);
    }
  }
  return Status::Ok();
}

using IdOfText = std::unordered_map<std::string_view, int32_t>;

IdOfText IdsOf(const TokenTable& table) {
  IdOfText ids;
  for (size_t id = 0; id < table.size(); ++id) {
    if (!table[id].empty()) ids.emplace(table[id], static_cast<int32_t>(id));
  }
  return ids;
}

// The tokens of the output and whose rows stand where there is no token.
struct Target {
  TokenTable table;
  std::optional<size_t> leader;  // among the sources
};

size_t RowsOf(const Target& target, const std::vector<const MergeSource*>& sources, size_t multiple) {
  size_t rows = target.table.size();
  if (target.leader) rows = std::max(rows, sources[*target.leader]->config().vocab);
  return (rows + multiple - 1) / multiple * multiple;
}

// Row of `ids` for each of the output's; `gives_rest`: this is the leader.
std::vector<int32_t> RowsFor(const Target& target, size_t rows, const IdOfText& ids, size_t source_rows,
                             bool gives_rest) {
  std::vector<int32_t> row_of(rows, kNoRow);
  for (size_t row = 0; row < rows; ++row) {
    const std::string_view text = row < target.table.size() ? std::string_view(target.table[row]) : "";
    if (text.empty()) {
      if (gives_rest && row < source_rows) row_of[row] = static_cast<int32_t>(row);
      continue;
    }
    const auto found = ids.find(text);
    if (found != ids.end() && static_cast<size_t>(found->second) < source_rows) row_of[row] = found->second;
  }
  return row_of;
}

// Appends to `target` what only others have, and makes the tokenizer.
Status Unite(const std::vector<Text>& texts, size_t leader, Target& target, Vocabulary& vocabulary) {
  target.table = *texts[leader].table;
  const size_t first_id = target.table.size();
  std::unordered_map<std::string, bool> known;
  for (const std::string& text : target.table) known.emplace(text, true);
  std::vector<UnionPart> parts;
  std::vector<TokenTable> tables;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i == leader || texts[i].table == texts[leader].table) continue;
    UnionPart part{.json = texts[i].json, .ids = {}};
    for (size_t id = 0; id < texts[i].table->size(); ++id) {
      const std::string& text = (*texts[i].table)[id];
      if (text.empty() || !known.emplace(text, true).second) continue;
      part.ids.push_back(id);
      target.table.push_back(text);
    }
    if (part.ids.empty()) continue;
    vocabulary.n_added += part.ids.size();
    parts.push_back(std::move(part));
    tables.push_back(*texts[i].table);
  }
  if (parts.empty()) return Status::Ok();
  DF_ASSIGN_OR_RETURN(vocabulary.tokenizer_json, UnionTokenizer(texts[leader].json, tables, first_id, parts));
  return Status::Ok();
}

Status NoTokenizer(const MergeSource& source) {
  return FailedPrecondition("model " + source.name + " has no tokenizer.json: its rows cannot be matched by token");
}

// Of another directory than those of the merge.
Status TakeOther(const std::string& model, Target& target, Vocabulary& vocabulary) {
  DF_ASSIGN_OR_RETURN(const std::string directory, ResolveModelDirectory(model));
  const std::string path = directory + "/tokenizer.json";
  DF_ASSIGN_OR_RETURN(const std::string json, ReadFileBounded(path, kMaxSideFileBytes));
  DF_ASSIGN_OR_RETURN(target.table, ReadTable(json, path));
  vocabulary.text_directory = vocabulary.text_fallback = directory;
  vocabulary.takes_ids = true;
  return Status::Ok();
}

}  // namespace

Result<Vocabulary> PlanVocabulary(const Recipe& recipe, const MergeSources& sources) {
  using Source = TokenizerChoice::Source;
  const std::vector<const MergeSource*> all = AllOf(sources);
  const MergeSource& pattern = sources.pattern();
  Vocabulary vocabulary{.rows = pattern.config().vocab,
                        .text_directory = pattern.own_directory(),
                        .text_fallback = pattern.checkpoint_directory()};
  const TokenizerChoice& choice = recipe.tokenizer;
  if (choice.source == Source::kUnsaid) {
    DF_RETURN_IF_ERROR(CheckPlaces(all, pattern));
    return vocabulary;
  }
  DF_ASSIGN_OR_RETURN(const std::vector<Text> texts, ReadTexts(all));
  for (size_t i = 0; i < all.size(); ++i) {
    if (!texts[i].table) return NoTokenizer(*all[i]);
  }
  Target target{.table = {}, .leader = 0};  // the pattern is the first of all
  if (choice.source == Source::kBase) {
    target.table = *texts.front().table;
  } else if (choice.source == Source::kUnion) {
    DF_RETURN_IF_ERROR(Unite(texts, 0, target, vocabulary));
  } else {
    const auto found =
        std::ranges::find(all, choice.model, [](const MergeSource* s) -> const std::string& { return s->argument; });
    if (found != all.end()) {
      target.leader = static_cast<size_t>(found - all.begin());
      target.table = *texts[*target.leader].table;
      vocabulary.text_directory = (*found)->own_directory();
      vocabulary.text_fallback = (*found)->checkpoint_directory();
      vocabulary.takes_ids = *target.leader != 0;
    } else {
      target.leader.reset();
      DF_RETURN_IF_ERROR(TakeOther(choice.model, target, vocabulary));
    }
  }
  vocabulary.rows = RowsOf(target, all, choice.pad_to_multiple_of);
  for (size_t i = 0; i < all.size(); ++i) {
    vocabulary.row_of.push_back(RowsFor(target, vocabulary.rows, IdsOf(*texts[i].table), all[i]->config().vocab,
                                        target.leader && *target.leader == i));
  }
  return vocabulary;
}

namespace {

// Whose row stands where a source has none: the base's, else that of all that have it (none: zeros).
std::vector<size_t> FillersOf(const Vocabulary& vocabulary, const MatchOptions& options, size_t row) {
  if (options.has_base && vocabulary.row_of.front()[row] != kNoRow) return {0};
  std::vector<size_t> fillers;
  for (size_t i = 0; i < vocabulary.row_of.size(); ++i) {
    if (vocabulary.row_of[i][row] != kNoRow) fillers.push_back(i);
  }
  return fillers;
}

bool IsInPlace(const std::vector<int32_t>& row_of, size_t n_rows) {
  if (n_rows < row_of.size()) return false;
  for (size_t row = 0; row < row_of.size(); ++row) {
    if (row_of[row] != static_cast<int32_t>(row)) return false;
  }
  return true;
}

TensorView RowOf(const TensorView& view, size_t row, size_t d) {
  const size_t row_bytes = d * DTypeBytes(view.dtype);
  return {view.dtype, Shape{1, d}, view.bytes.subspan(row * row_bytes, row_bytes)};
}

// Row `row` of what MatchRows makes of source `i`.
struct Matching {
  const Vocabulary& vocabulary;
  const MatchOptions& options;
  const std::vector<TensorView>& views;
  size_t d = 0;

  void Write(size_t i, size_t row, DType dtype, uint8_t* to) const {
    const int32_t own = vocabulary.row_of[i][row];
    std::vector<size_t> from = own != kNoRow ? std::vector<size_t>{i} : FillersOf(vocabulary, options, row);
    if (from.size() == 1 && views[from[0]].dtype == dtype) {
      std::ranges::copy(RowOf(views[from[0]], static_cast<size_t>(vocabulary.row_of[from[0]][row]), d).bytes, to);
      return;
    }
    std::vector<float> sum(d), one(d);
    for (size_t n = 0; n < from.size(); ++n) {
      row_ops::ReadRow(views[from[n]], static_cast<size_t>(vocabulary.row_of[from[n]][row]), one);
      for (size_t j = 0; j < d; ++j) sum[j] += (one[j] - sum[j]) / static_cast<float>(n + 1);
    }
    row_ops::Narrow(sum, dtype, to);  // F32, or zeros
  }
};

}  // namespace

std::vector<std::optional<DType>> MatchedTypes(const Vocabulary& vocabulary, const MatchOptions& options,
                                               const std::vector<MatchSource>& sources) {
  const auto is_asked_for = [&](size_t i) { return i > 0 || !options.has_base || options.makes_base; };
  std::vector<std::optional<DType>> types(sources.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!is_asked_for(i) || IsInPlace(vocabulary.row_of[i], sources[i].rows)) continue;
    types[i] = sources[i].dtype;
    for (size_t row = 0; row < vocabulary.rows && types[i] != DType::kF32; ++row) {
      if (vocabulary.row_of[i][row] != kNoRow) continue;
      const std::vector<size_t> from = FillersOf(vocabulary, options, row);
      if (from.size() > 1 || (from.size() == 1 && sources[from[0]].dtype != types[i])) types[i] = DType::kF32;
    }
  }
  return types;
}

std::vector<TensorView> MatchRows(ThreadPool& pool, const Vocabulary& vocabulary, const MatchOptions& options,
                                  const std::vector<TensorView>& views, std::vector<Buffer<uint8_t>>& memory) {
  const size_t d = MatrixCols(views.front()), rows = vocabulary.rows;
  std::vector<MatchSource> sources;
  for (const TensorView& view : views) sources.push_back({view.dtype, view.shape[0]});
  const std::vector<std::optional<DType>> types = MatchedTypes(vocabulary, options, sources);
  std::vector<TensorView> matched(views.size());
  for (size_t i = 0; i < views.size(); ++i) {
    if (types[i]) {
      const size_t n_bytes = rows * d * DTypeBytes(*types[i]);
      if (memory[i].size() < n_bytes) memory[i] = Buffer<uint8_t>(n_bytes);
      matched[i] = {*types[i], Shape{rows, d}, memory[i].span().first(n_bytes)};
    } else if (i > 0 || !options.has_base || options.makes_base) {
      matched[i] = {views[i].dtype, Shape{rows, d}, views[i].bytes.first(rows * d * DTypeBytes(views[i].dtype))};
    }
  }
  const Matching matching{vocabulary, options, views, d};
  pool.ParallelFor(rows, RowGrain(d), [&](size_t begin, size_t end, size_t /*thread*/) {
    for (size_t i = 0; i < views.size(); ++i) {
      if (!types[i]) continue;
      const size_t row_bytes = d * DTypeBytes(*types[i]);
      for (size_t row = begin; row < end; ++row) matching.Write(i, row, *types[i], memory[i].data() + row * row_bytes);
    }
  });
  return matched;
}

}  // namespace df::merge
