#include "cli/eval_family.h"

#include <algorithm>
#include <filesystem>

#include "base/json.h"
#include "cli/command.h"
#include "format/checkpoint.h"
#include "format/variant_kind.h"

namespace df::cli {
namespace {

eval::Subject& SubjectOf(EvalFamily& family, const std::string& name) {
  const auto found = std::find_if(family.subjects.begin(), family.subjects.end(),
                                  [&](const eval::Subject& subject) { return subject.name == name; });
  if (found != family.subjects.end()) return *found;
  family.subjects.push_back({.name = name, .full_directory = {}, .codes = {}, .task_file = {}});
  return family.subjects.back();
}

// A full model is the subject's fine-tune, anything else one of its codes.
Status AddPath(const std::string& path, const std::string& code, eval::Subject& subject) {
  DF_ASSIGN_OR_RETURN(const std::string directory, ResolveModelDirectory(path));
  DF_ASSIGN_OR_RETURN(const DirectoryKind kind, KindOfDirectory(directory));
  const bool is_full = kind == DirectoryKind::kModel && (code.empty() || code == "full");
  if (!is_full && (code == "full" || code == "base")) {
    return FailedPrecondition("a delta or adapter cannot be called \"" + code + "\": " + path);
  }
  const auto is_taken = [&](const eval::CodedVariant& other) { return !code.empty() && other.code == code; };
  if (std::ranges::any_of(subject.codes, is_taken)) {
    return FailedPrecondition("two variants of " + subject.name + " are called \"" + code + "\": " + path +
                              " is the second");
  }
  if (!is_full) {
    subject.codes.push_back({.code = code, .directory = directory});
    return Status::Ok();
  }
  if (!subject.full_directory.empty()) {
    return FailedPrecondition("two full models for " + subject.name + ": " + subject.full_directory + " and " + path);
  }
  subject.full_directory = directory;
  return Status::Ok();
}

// A path of the file, or a hub id as it stands.
std::string Beside(const std::string& file, const std::string& path) {
  const std::filesystem::path beside = std::filesystem::path(file).parent_path() / path;
  std::error_code ignored;
  return std::filesystem::exists(beside, ignored) ? beside.string() : path;
}

Status ReadVariant(const Json& json, const std::string& file, EvalFamily& family) {
  if (!json.is_object()) return Corrupt("a variant must be an object");
  DF_ASSIGN_OR_RETURN(const std::string name, JsonString(json, "name"));
  eval::Subject& subject = SubjectOf(family, name);
  for (const char* key : {"path", "full"}) {
    DF_ASSIGN_OR_RETURN(const std::string path, JsonStringOr(json, key, ""));
    if (!path.empty()) DF_RETURN_IF_ERROR(AddPath(Beside(file, path), "", subject));
  }
  if (const Json* codes = JsonMemberOrNull(json, "codes")) {
    if (!codes->is_object()) return Corrupt("\"codes\" must be an object of paths");
    for (const auto& [code, path] : codes->items()) {
      if (!path.is_string()) return Corrupt("\"codes\" must be an object of paths");
      DF_RETURN_IF_ERROR(AddPath(Beside(file, path.get<std::string>()), code, subject));
    }
  }
  DF_ASSIGN_OR_RETURN(const std::string skill, JsonStringOr(json, "eval", ""));
  DF_ASSIGN_OR_RETURN(const std::string task,
                      JsonStringOr(json, "task", skill.empty() ? "" : "eval/" + skill + ".jsonl"));
  if (!task.empty()) subject.task_file = Beside(file, task);
  return Status::Ok();
}

}  // namespace

Status AddFamilyFile(const std::string& path, EvalFamily& family) {
  DF_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  const Json* base = JsonMemberOrNull(json, "base");
  if (base != nullptr && base->is_object() && family.base.empty()) {
    const Result<std::string> directory = JsonStringOr(*base, "path", "");
    if (!directory.ok()) return FromFiles(directory.status()).Annotate(path);
    if (!directory->empty()) family.base = Beside(path, *directory);
  }
  const Json* variants = JsonMemberOrNull(json, "variants");
  if (variants == nullptr || !variants->is_array()) return Corrupt(path + ": \"variants\" must be a list");
  for (const Json& variant : *variants) {
    const Status status = FromFiles(ReadVariant(variant, path, family));
    if (!status.ok()) return status.Annotate(path + ": variant " + DumpJson(variant).substr(0, 80));
  }
  return Status::Ok();
}

Status AddVariant(const std::string& argument, EvalFamily& family) {
  const size_t equals = argument.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == argument.size()) {
    return InvalidArgument("--variant must be NAME=PATH or NAME:CODE=PATH, got \"" + argument + "\"");
  }
  const std::string given = argument.substr(0, equals);
  const size_t colon = given.find(':');
  const std::string code = colon == std::string::npos ? "" : given.substr(colon + 1);
  return FromFiles(AddPath(argument.substr(equals + 1), code, SubjectOf(family, given.substr(0, colon))));
}

Status AddTask(const std::string& argument, EvalFamily& family) {
  const size_t equals = argument.find('=');
  if (equals == std::string::npos) {
    for (eval::Subject& subject : family.subjects) {
      if (subject.task_file.empty()) subject.task_file = argument;
    }
    return Status::Ok();
  }
  const std::string name = argument.substr(0, equals);
  const auto named = [&](const eval::Subject& subject) { return subject.name == name; };
  const auto found = std::find_if(family.subjects.begin(), family.subjects.end(), named);
  if (found == family.subjects.end()) return InvalidArgument("--task " + argument + ": there is no variant " + name);
  found->task_file = argument.substr(equals + 1);
  return Status::Ok();
}

}  // namespace df::cli
