#include "store/registry.h"

#include <set>

#include "base/utf8.h"

namespace df {
namespace {

constexpr size_t kMaxNameBytes = 256;

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

Status Registry::Add(std::shared_ptr<const Variant> variant) {
  DF_RETURN_IF_ERROR(CheckServedName(variant->name));
  const std::scoped_lock lock(mutex_);
  const std::string name = variant->name;
  if (!variants_.emplace(name, std::move(variant)).second) {
    return FailedPrecondition("the name \"" + name + "\" is taken already");
  }
  return Status::Ok();
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

uint64_t Registry::ResidentWeightBytes() const {
  const std::scoped_lock lock(mutex_);
  std::set<std::string_view> counted;  // digests
  uint64_t sum = 0;
  for (const auto& [name, variant] : variants_) {
    if (variant->IsBase()) {
      sum += variant->resident_bytes;
    } else if (counted.insert(variant->generation->info().digest).second) {
      sum += variant->generation->info().resident_bytes;
    }
  }
  return sum;
}

}  // namespace df
