#include "store/registry.h"

#include <string_view>
#include <utility>

#include "base/utf8.h"

namespace df {
namespace {

constexpr size_t kMaxNameBytes = 256;
constexpr std::string_view kMismatch = "generation mismatch: ", kInUse = "in use: ";

// `name` is UTF-8.
bool HasUnseenCharacter(std::string_view name) {
  for (size_t at = 0; at < name.size(); ++at) {
    const bool is_lead = (static_cast<unsigned char>(name[at]) & 0xC0) != 0x80;
    if (is_lead && UnseenBytes(name, at) > 0) return true;
  }
  return false;
}

}  // namespace

Status CheckServedName(const std::string& name) {
  if (name.empty()) return InvalidArgument("a served model needs a name, got an empty one");
  if (name.size() > kMaxNameBytes) {
    return InvalidArgument("a served model's name may have " + std::to_string(kMaxNameBytes) + " bytes, got " +
                           std::to_string(name.size()));
  }
  if (!IsValidUtf8(name)) return InvalidArgument("a served model's name must be UTF-8");
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= ' ' || byte == 0x7F || c == ',' || c == '"' || c == '\'' || c == '\\' || c == '=') {
      return InvalidArgument(
          "a served model's name may not contain spaces, control characters, comma, equals sign, quote or backslash");
    }
  }
  if (HasUnseenCharacter(name)) {
    return InvalidArgument("a served model's name may not contain characters that nobody sees");
  }
  const std::string path = "/" + name + "/";
  if (path.find("//") != std::string::npos || path.find("/./") != std::string::npos ||
      path.find("/../") != std::string::npos) {
    return InvalidArgument("a served model's name may not contain empty, \".\" or \"..\" path parts");
  }
  return Status::Ok();
}

std::string_view Variant::KindName() const {
  if (IsBase()) return "base";
  return generation->info().kind == VariantKind::kLora ? "lora" : "delta";
}

Registry::Registry(std::string base_name, std::shared_ptr<const Variant> base) : base_name_(std::move(base_name)) {
  variants_.emplace(base_name_, std::move(base));
}

Result<Registry::Map::const_iterator> Registry::FindLocked(const std::string& name,
                                                           const std::string& expected_generation) const {
  const auto found = variants_.find(name);
  if (found == variants_.end()) return NotFound("the model \"" + name + "\" cannot be found");
  if (found->second->IsBase()) return FailedPrecondition("\"" + name + "\" is the base: it cannot be changed");
  const std::string& generation = found->second->generation->info().digest;
  if (!expected_generation.empty() && expected_generation != generation) {
    return GenerationMismatch(expected_generation, generation);
  }
  return found;
}

Status Registry::CheckName(const std::string& name) const {
  DF_RETURN_IF_ERROR(CheckServedName(name));
  if (!name.starts_with(base_name_ + ":")) return Status::Ok();
  return InvalidArgument("a served model's name may not begin with the base's and a colon: \"" + name +
                         "\" means the variant \"" + name.substr(base_name_.size() + 1) + "\"");
}

// Nothing is counted when memory runs out.
void Registry::Count(const Variant& variant) {
  size_t& n = n_names_.try_emplace(variant.generation.get(), 0).first->second;
  if (!variant.parent.empty()) children_[variant.parent].insert(variant.name);
  ++n;
}

// Of a name that is gone, or that now sits on `next_parent`.
void Registry::Uncount(const Variant& former, const std::string& next_parent) {
  const auto children = children_.find(former.parent);
  if (children != children_.end() && former.parent != next_parent) {
    children->second.erase(former.name);
    if (children->second.empty()) children_.erase(children);
  }
  const auto n = n_names_.find(former.generation.get());
  if (--n->second == 0) n_names_.erase(n);
}

Result<std::shared_ptr<const Variant>> Registry::Put(std::shared_ptr<const Variant> variant,
                                                     const PutOptions& options) {
  DF_RETURN_IF_ERROR(CheckName(variant->name));
  const std::scoped_lock lock(mutex_);
  const auto found = variants_.find(variant->name);
  if (found == variants_.end() && options.expected_generation.empty()) {
    const auto added = variants_.emplace(variant->name, nullptr).first;
    try {
      Count(*variant);
    } catch (...) {
      variants_.erase(added);
      throw;
    }
    added->second = std::move(variant);
    return std::shared_ptr<const Variant>();
  }
  if (found != variants_.end() && !options.replace) {
    return FailedPrecondition("the name \"" + variant->name + "\" is taken already");
  }
  DF_RETURN_IF_ERROR(FindLocked(variant->name, options.expected_generation).status());
  Count(*variant);
  Uncount(*found->second, variant->parent);
  return std::exchange(found->second, std::move(variant));
}

Result<std::shared_ptr<const Variant>> Registry::Remove(const std::string& name,
                                                        const std::string& expected_generation) {
  const std::scoped_lock lock(mutex_);
  DF_ASSIGN_OR_RETURN(const auto found, FindLocked(name, expected_generation));
  std::shared_ptr<const Variant> removed = found->second;
  Uncount(*removed, "");
  variants_.erase(found);
  return removed;
}

Result<std::shared_ptr<const Variant>> Registry::Find(const std::string& name,
                                                      const std::string& expected_generation) const {
  const std::scoped_lock lock(mutex_);
  DF_ASSIGN_OR_RETURN(const auto found, FindLocked(name, expected_generation));
  return found->second;
}

std::shared_ptr<const Variant> Registry::FindOrNull(std::string_view name) const {
  const std::scoped_lock lock(mutex_);
  if (const auto found = variants_.find(name); found != variants_.end()) return found->second;
  const std::string prefix = base_name_ + ":";
  if (!name.starts_with(prefix)) return nullptr;
  const auto found = variants_.find(name.substr(prefix.size()));
  return found == variants_.end() || found->second->IsBase() ? nullptr : found->second;
}

std::vector<std::shared_ptr<const Variant>> Registry::List() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::shared_ptr<const Variant>> list{variants_.at(base_name_)};
  for (const auto& [name, variant] : variants_) {
    if (!variant->IsBase()) list.push_back(variant);
  }
  return list;
}

std::string Registry::ChildOf(const std::string& name) const {
  const std::scoped_lock lock(mutex_);
  const auto children = children_.find(name);
  return children == children_.end() || children->second.empty() ? "" : *children->second.begin();
}

bool Registry::HasNameFor(const Generation& generation) const {
  const std::scoped_lock lock(mutex_);
  const auto n = n_names_.find(&generation);
  return n != n_names_.end() && n->second > 0;
}

Status GenerationMismatch(const std::string& expected, const std::string& found) {
  return Unavailable(std::string(kMismatch) + "expected " + expected + ", the name stands for " + found);
}

bool IsGenerationMismatch(const Status& status) {
  return status.code() == StatusCode::kUnavailable && status.message().starts_with(kMismatch);
}

bool IsInUse(const Status& status) {
  return status.code() == StatusCode::kFailedPrecondition && status.message().find(kInUse) != std::string::npos;
}

Status InUse(const std::string& why) { return FailedPrecondition(std::string(kInUse) + why); }

}  // namespace df
