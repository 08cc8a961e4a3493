#include "text/model_text.h"

#include <algorithm>
#include <array>

#include "base/atomic_file.h"
#include "base/json.h"
#include "base/presence.h"
#include "text/chat_template.h"
#include "text/control_text.h"

namespace df {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

// tokenizer_config.json lists added tokens again and may hold several templates: a few MB in the largest known.
constexpr JsonLimits kConfigLimits = {.max_depth = 64, .max_bytes = size_t{32} << 20};

constexpr std::array<std::string_view, 7> kSpecialNames = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                           "pad_token", "cls_token", "mask_token"};

constexpr size_t kMaxTemplates = 16;  // the most known in one model are four

// null when the file does not exist.
Result<Json> ReadOptionalJson(const std::string& path) {
  DF_ASSIGN_OR_RETURN(const bool exists, HasFile(path));
  if (!exists) return Json(nullptr);
  DF_ASSIGN_OR_RETURN(Json json, ReadJsonFile(path, kConfigLimits));
  if (!json.is_object()) return Corrupt(path + ": must be an object");
  return json;
}

// "<s>" or {"content": "<s>", ...}
Result<std::optional<std::string>> TokenName(const Json& config, std::string_view name) {
  const Json* value = JsonMemberOrNull(config, name);
  if (value == nullptr) return std::optional<std::string>();
  if (value->is_object()) value = JsonMemberOrNull(*value, "content");
  if (value == nullptr || !value->is_string()) {
    return Corrupt("\"" + std::string(name) + "\" must be a string or an object with \"content\"");
  }
  return std::optional<std::string>(value->get<std::string>());
}

// The named tokens, as the variables that a template sees.
Result<Json> SpecialTokens(const Json& config) {
  Json tokens = Json::object();
  for (const std::string_view name : kSpecialNames) {
    DF_ASSIGN_OR_RETURN(const std::optional<std::string> text, TokenName(config, name));
    if (text) tokens[std::string(name)] = *text;
  }
  return tokens;
}

using NamedTemplates = std::vector<std::pair<std::string, std::string>>;

Result<NamedTemplates> TemplatesOf(const Json& config) {
  NamedTemplates templates;
  const Json* value = JsonMemberOrNull(config, "chat_template");
  if (value == nullptr) return templates;
  if (value->is_string()) {
    templates.emplace_back("default", value->get<std::string>());
    return templates;
  }
  if (!value->is_array()) return Corrupt("\"chat_template\" must be a string or a list of {name, template}");
  for (const Json& entry : *value) {
    DF_ASSIGN_OR_RETURN(std::string name, JsonString(entry, "name"));
    DF_ASSIGN_OR_RETURN(std::string source, JsonString(entry, "template"));
    templates.emplace_back(std::move(name), std::move(source));
  }
  return templates;
}

// chat_template.jinja ("default") and additional_chat_templates/NAME.jinja.
Result<NamedTemplates> TemplateFiles(const std::string& directory) {
  NamedTemplates templates;
  const auto add = [&](std::string name, const std::string& path) {
    Result<std::string> source = ReadFileBounded(path, kMaxTemplateBytes);
    if (source.ok()) templates.emplace_back(std::move(name), *std::move(source));
    return source.status();
  };
  const std::string path = directory + "/chat_template.jinja";
  DF_ASSIGN_OR_RETURN(const bool has_default, HasFile(path));
  if (has_default) DF_RETURN_IF_ERROR(add("default", path));
  constexpr std::string_view kExtension = ".jinja";
  const std::string folder = directory + "/additional_chat_templates";
  DF_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFiles(folder, kExtension, kMaxTemplates));
  for (const std::string& name : names) {
    const std::string stem = name.substr(0, name.size() - kExtension.size());
    if (has_default && stem == "default") return Corrupt(folder + "/" + name + ": " + path + " is the default already");
    DF_RETURN_IF_ERROR(add(stem, folder + "/" + name));
  }
  return templates;
}

Status LoadTokenizer(const std::string& directory, const ModelText* base, const TokenizerLoader& load,
                     ModelText& text) {
  const std::string path = directory + "/tokenizer.json";
  DF_ASSIGN_OR_RETURN(const bool own, HasFile(path));
  if (!own) {
    if (base == nullptr) return NotFound(path + ": no such file, and no base model to take the tokenizer from");
    text.tokenizer = base->tokenizer;
    text.control_text = base->control_text;
    return Status::Ok();
  }
  const auto known = base == nullptr ? nullptr : base->tokenizer;
  DF_ASSIGN_OR_RETURN(text.tokenizer, load ? load(path, known) : Tokenizer::Load(path, known));
  const bool shared = base != nullptr && text.tokenizer == base->tokenizer;
  text.control_text = shared ? base->control_text : std::make_shared<const ControlText>(text.tokenizer->added_tokens());
  return Status::Ok();
}

Status LoadTemplate(const std::string& directory, const Json& config, const ModelText* base, ModelText& text) {
  ChatTemplateSource source;
  DF_ASSIGN_OR_RETURN(source.templates, TemplateFiles(directory));
  if (source.templates.empty()) {
    DF_ASSIGN_OR_RETURN(source.templates, TemplatesOf(config));
  }
  if (source.templates.empty()) {
    if (base != nullptr) text.chat_template = base->chat_template;
    return Status::Ok();
  }
  DF_ASSIGN_OR_RETURN(source.special_tokens, SpecialTokens(config));
  if (config.is_null() && base != nullptr && base->chat_template != nullptr) {
    source.special_tokens = base->chat_template->special_tokens();
  }
  DF_ASSIGN_OR_RETURN(text.chat_template, ChatTemplate::Compile(std::move(source)));
  return Status::Ok();
}

Status LoadSpecialIds(const Json& config, const ModelText* base, ModelText& text) {
  if (config.is_null()) {
    if (base == nullptr) return Status::Ok();
    text.bos_id = base->bos_id;
    text.eos_id = base->eos_id;
    text.pad_id = base->pad_id;
    return Status::Ok();
  }
  const std::array<std::pair<std::string_view, std::optional<int32_t>*>, 3> wanted = {
      {{"bos_token", &text.bos_id}, {"eos_token", &text.eos_id}, {"pad_token", &text.pad_id}}};
  for (const auto& [name, id] : wanted) {
    DF_ASSIGN_OR_RETURN(const std::optional<std::string> token, TokenName(config, name));
    if (!token) continue;
    *id = text.tokenizer->IdOrNull(*token);
    if (!*id) return Corrupt(std::string(name) + " \"" + token->substr(0, 80) + "\" is not a token of tokenizer.json");
  }
  return Status::Ok();
}

// eos_token_id of generation_config.json: absent, one id, or a list.
Status AddGenerationStops(const Json& config, ModelText& text) {
  const Json* value = JsonMemberOrNull(config, "eos_token_id");
  if (value == nullptr) return Status::Ok();
  const Json ids = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : ids) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      return Corrupt("\"eos_token_id\" must be an id or a list of ids, got " + DumpJson(*value).substr(0, 80));
    }
    text.stop_ids.push_back(id.get<int32_t>());
  }
  return Status::Ok();
}

Status LoadStopIds(const std::string& directory, const ModelText* base, ModelText& text) {
  const std::string path = directory + "/generation_config.json";
  DF_ASSIGN_OR_RETURN(const Json config, ReadOptionalJson(path));
  if (config.is_null() && base != nullptr) {
    text.stop_ids = base->stop_ids;
  } else if (const Status status = AddGenerationStops(config, text); !status.ok()) {
    return status.Annotate(path);
  }
  if (text.eos_id) text.stop_ids.push_back(*text.eos_id);
  std::sort(text.stop_ids.begin(), text.stop_ids.end());
  text.stop_ids.erase(std::unique(text.stop_ids.begin(), text.stop_ids.end()), text.stop_ids.end());
  return Status::Ok();
}

}  // namespace

Result<ModelText> LoadModelText(const std::string& directory, const ModelText* base,
                                const TokenizerLoader& load_tokenizer) {
  ModelText text;
  const std::string config_path = directory + "/tokenizer_config.json";
  DF_ASSIGN_OR_RETURN(const Json config, ReadOptionalJson(config_path));
  DF_RETURN_IF_ERROR(LoadTokenizer(directory, base, load_tokenizer, text));
  if (const Status status = LoadSpecialIds(config, base, text); !status.ok()) return status.Annotate(config_path);
  if (const Status status = LoadTemplate(directory, config, base, text); !status.ok()) {
    return status.Annotate(directory);
  }
  DF_RETURN_IF_ERROR(LoadStopIds(directory, base, text));
  return text;
}

}  // namespace df
