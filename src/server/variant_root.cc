#include "server/variant_root.h"

#include <filesystem>
#include <optional>
#include <system_error>

#include "format/hub_cache.h"
#include "store/confinement.h"

namespace df::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxPathBytes = 4096;  // PATH_MAX

Confinement ConfinementTo(const std::string& root) {
  return {.root = root, .root_name = "the directory that the server was given as --variant-root", .what = "lora_path"};
}

}  // namespace

Result<VariantRoot> VariantRoot::Open(const std::string& directory) {
  const std::optional<std::string> canonical = CanonicalPlace(directory);
  if (!canonical) return NotFound("variant-root " + directory + " does not exist");
  std::error_code error;
  if (!fs::is_directory(*canonical, error)) {
    return FailedPrecondition("variant-root " + directory + " is not a directory");
  }
  const fs::path given = fs::absolute(directory, error);
  return VariantRoot(*canonical, error ? *canonical : given.string());
}

std::string VariantRoot::AsGiven(const std::string& given) const {
  const fs::path wanted = fs::path(given_) / given;
  std::error_code error;
  return fs::exists(wanted, error) ? wanted.string() : given;
}

Result<std::string> VariantRoot::Resolve(const std::string& given) const {
  if (given.empty() || given.size() > kMaxPathBytes || given.find('\0') != std::string::npos) {
    return InvalidArgument("lora_path must be a path of 1 to " + std::to_string(kMaxPathBytes) + " bytes without NUL");
  }
  const Confinement confinement = ConfinementTo(directory_);
  const fs::path wanted = fs::path(directory_) / given;  // `given` alone where it is absolute
  std::optional<std::string> place = CanonicalPlace(wanted.string());
  if (!place) {
    const Result<std::string> snapshot = FindInHubCache(given);
    if (snapshot.ok()) place = CanonicalPlace(*snapshot);
    if (place && !IsUnder(*place, directory_)) place.reset();
  }
  if (!place) {
    std::error_code error;
    const fs::path nearest = fs::weakly_canonical(wanted, error);
    if (error || !IsUnder(nearest.string(), directory_)) return LeadsOut(confinement);
    return NotFound("lora_path cannot be found under --variant-root, nor as a model of the local hub cache there");
  }
  if (!IsUnder(*place, directory_)) return LeadsOut(confinement);
  std::error_code error;
  if (!fs::is_directory(*place, error)) return FailedPrecondition("lora_path is not a directory");
  DF_RETURN_IF_ERROR(CheckConfined(*place, confinement));
  return *std::move(place);
}

}  // namespace df::server
