// tokenizer.json of a union of vocabularies.
#include <unordered_map>
#include <unordered_set>

#include "base/json.h"
#include "format/delta_dir.h"
#include "merge/vocabulary.h"

namespace df::merge {
namespace {

Result<Json> Parse(const std::string& json) { return ParseJson(json, {.max_bytes = kMaxSideFileBytes}); }

const Json* AddedTokens(const Json& tokenizer) {
  const Json* const added = JsonMemberOrNull(tokenizer, "added_tokens");
  return added != nullptr && added->is_array() ? added : nullptr;
}

// Text -> its entry among the added tokens.
std::unordered_map<std::string, const Json*> EntriesOf(const Json& tokenizer) {
  std::unordered_map<std::string, const Json*> entries;
  const Json* const added = AddedTokens(tokenizer);
  if (added == nullptr) return entries;
  for (const Json& entry : *added) {
    const Json* const content = JsonMemberOrNull(entry, "content");
    if (content != nullptr && content->is_string()) entries.emplace(content->get<std::string>(), &entry);
  }
  return entries;
}

// The words of the model, where it lists them with their ids; null otherwise.
Json* WordsOf(Json& tokenizer) {
  const auto model = tokenizer.find("model");
  if (model == tokenizer.end() || !model->is_object()) return nullptr;
  const auto vocab = model->find("vocab");
  return vocab != model->end() && vocab->is_object() ? &*vocab : nullptr;
}

// A look-up of an ordered object reads it all; that `text` is not there is known.
void AddWord(Json& words, const std::string& text, size_t id) {
  static_cast<Json::object_t::Container&>(words.get_ref<Json::object_t&>()).emplace_back(text, id);
}

// Readers give an added token that is no word of the model the next id behind those: with more words it would be
// another one. So all become words.
void MakeAddedTokensWords(const Json& entries, Json& words) {
  std::unordered_set<std::string_view> known;
  for (const auto& [word, id] : words.get_ref<const Json::object_t&>()) known.insert(word);
  std::vector<std::pair<std::string, size_t>> missing;
  for (const Json& entry : entries) {
    const Json* const content = JsonMemberOrNull(entry, "content");
    const Json* const id = JsonMemberOrNull(entry, "id");
    if (content == nullptr || !content->is_string() || id == nullptr || !id->is_number_unsigned()) continue;
    const auto text = content->get<std::string>();
    if (!known.contains(text)) missing.emplace_back(text, id->get<size_t>());
  }
  for (const auto& [text, id] : missing) AddWord(words, text, id);
}

}  // namespace

Result<std::string> UnionTokenizer(const std::string& base, const std::vector<TokenTable>& tables, size_t first_id,
                                   const std::vector<UnionPart>& added) {
  DF_ASSIGN_OR_RETURN(Json result, Parse(base));
  if (AddedTokens(result) == nullptr) result["added_tokens"] = Json::array();
  Json& entries = result["added_tokens"];
  Json* const words = WordsOf(result);
  if (words != nullptr) MakeAddedTokensWords(entries, *words);
  size_t id = first_id;
  for (size_t i = 0; i < added.size(); ++i) {
    DF_ASSIGN_OR_RETURN(const Json donor, Parse(added[i].json));
    const auto donor_entries = EntriesOf(donor);
    for (const size_t donor_id : added[i].ids) {
      const std::string& text = tables[i][donor_id];
      const auto entry = donor_entries.find(text);
      const bool is_added = entry != donor_entries.end();
      if (is_added) {
        Json copy = *entry->second;
        copy["id"] = id;
        entries.push_back(std::move(copy));
      }
      if (words != nullptr) {
        AddWord(*words, text, id);
      } else if (!is_added) {
        return Unsupported(
            "a union of vocabularies: token \"" + text.substr(0, 80) +
            "\" would join a vocabulary that is no list of words with ids; take tokenizer: {source: base}");
      }
      ++id;
    }
  }
  return DumpJson(result, 2);
}

}  // namespace df::merge
