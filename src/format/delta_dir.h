// The delta directory, format versions 1 and 2 (docs/formats/delta.md): delta_config.json, delta_model.safetensors (or
// shards with an index), config.json, README.md and those text files that differ from the base.
#ifndef DELTAFOLD_FORMAT_DELTA_DIR_H_
#define DELTAFOLD_FORMAT_DELTA_DIR_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/read_ahead.h"
#include "format/checkpoint.h"
#include "format/digest.h"
#include "tensor/linear_delta.h"

namespace df {

// A file beside the tensors may have this many bytes; the largest public tokenizer.json has 35 MB. The writer keeps to
// it as well, so that every delta written can be read.
inline constexpr size_t kMaxSideFileBytes = size_t{256} << 20;

// Further chat templates, "additional_chat_templates/NAME.jinja": side files in a folder of their own, as the hub has
// them.
inline constexpr std::string_view kTemplateFolder = "additional_chat_templates";
inline constexpr std::string_view kTemplateExtension = ".jinja";
inline constexpr size_t kMaxTemplateFiles = 16;

struct DeltaMetadata {
  int format_version = 1;
  std::string base_fingerprint;  // 32 hex digits
  std::string base_quant = "none";
  std::string content_digest;  // 32 hex digits, XXH3-128 of all tensors (name, dtype, shape, bytes) in name order
  std::map<std::string, std::string>
      file_digests;  // side file -> digest of its bytes, for those written with the delta
};

struct ShapeOfWeight {
  size_t d_out = 0;
  size_t d_in = 0;
};

// Immutable, thread-safe; all returned views live as long as it.
class DeltaDirectory {
 public:
  // Reads and checks structure: metadata present and of a known version, every tensor name has a weight and a known
  // suffix, dtypes, ranks and shapes agree with each other. Finite scales are checked here too, unless a ContentCheck
  // is to follow; bits and raw values are covered by VerifyDigest.
  enum class Scales { kCheck, kLeaveToContentCheck };
  static Result<std::shared_ptr<const DeltaDirectory>> Open(const std::string& directory,
                                                            Scales scales = Scales::kCheck);

  const std::string& directory() const { return directory_; }
  const DeltaMetadata& metadata() const { return metadata_; }
  const ModelConfig& config() const { return config_; }  // the fine-tune's
  const Json& delta_config() const { return delta_config_; }
  // Every weight name that has an entry, sorted.
  const std::vector<std::string>& weights() const { return weights_; }

  // The change of matrix `weight`, whose base is [base.d_out, base.d_in] (rows may grow or shrink to `d_out`). Empty
  // when absent. kCorrupt naming tensor, expected and found shape otherwise.
  Result<LinearDelta> Linear(std::string_view weight, ShapeOfWeight base, size_t d_out) const;
  // The replacement of a vector (norm, bias) of `size` elements, or nullopt.
  Result<std::optional<TensorView>> Vector(std::string_view name, size_t size) const;

  // Every stored tensor by its full name, for listings.
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }

  // The content digest, computed piece by piece by whoever reads the tensors anyway. Thread-compatible.
  class ContentCheck;

  // Recomputes the content digest and those of the side files written with the delta: kCorrupt on mismatch (bit flip)
  // or scales that are not finite, streaming over all bytes.
  Status VerifyDigest() const;
  Status VerifySideFiles() const;  // those alone
  // Identity of all that can change an answer: base fingerprint, content digest and the bytes of config.json,
  // generation_config.json, tokenizer and chat templates. Two directories with equal tensors and, say, different RoPE
  // settings have equal content digests, but different generations.
  Result<std::string> Generation() const;
  Status CheckIntact() const;
  uint64_t stored_bytes() const;

 private:
  DeltaDirectory() = default;
  std::string directory_;
  ModelConfig config_;
  Json delta_config_;
  DeltaMetadata metadata_;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::vector<std::string> weights_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

class DeltaDirectory::ContentCheck {
 public:
  explicit ContentCheck(const DeltaDirectory& delta);
  // Digests the tensors of `weight` and of all weights whose names come before; weights come in ascending order.
  void ReadUpTo(std::string_view weight);
  // Gives back the mapped pages of what was digested.
  void DropBehind();
  // Digests the rest. kCorrupt when a scale was not finite, the digest is not the one the delta was written with, or
  // the file was cut short.
  Status Finish();

 private:
  using Position = std::map<std::string, StoredTensor, std::less<>>::const_iterator;
  void AddNext();

  const DeltaDirectory& delta_;
  Digest digest_;
  Status scales_ = Status::Ok();
  Position next_, kept_;  // digested, given back up to here
  ReadAhead ahead_;
};

// Streams a new delta directory, of the oldest format version that has all its parts. Tensors arrive in any order and
// are appended to a temporary data file; Commit lays them out and renames the whole directory into place. The file has
// them in the order of their names where each then lies at a multiple of its element size, else by descending element
// size: as the content alone says. Where they arrived in that order, and the header fits into the room kept for it, the
// temporary file becomes the final one; else they are copied. Work done in steps can be continued after its process was
// killed (format/step_journal.h).
class DeltaWriter {
 public:
  struct Options {
    std::string base_fingerprint;
    std::string base_name = {};            // for people: base_model_name_or_path
    bool replace = false;                  // an existing delta, or an empty directory
    std::vector<std::string> inputs = {};  // directories that must not be replaced
    Json task = Json::object();            // what is made from what, by which steps: an object
    bool resume = false;                   // continue what a stopped writer of `directory` left, if there is anything
    // About as many bytes as the header will take, rather more: kept free before the data, so that these need not be
    // copied. What is left of it is blanks; more than 1/256 of the data is not left. 0: they are copied.
    uint64_t header_bytes = 0;
  };
  // The only errors are kInvalidArgument, kFailedPrecondition (the directory exists, or is being written; what a
  // stopped writer left is in the way, or to be resumed and of another task), kCorrupt (its journal) and kIo.
  static Result<std::unique_ptr<DeltaWriter>> Create(const std::string& directory, Options options);
  virtual ~DeltaWriter() = default;

  virtual Status Add(const std::string& name, DType dtype, const Shape& shape, Bytes data) = 0;
  // Stores every present part of `delta` under its names. Parts already stored under `name` are an error.
  virtual Status AddLinear(const std::string& name, const LinearDelta& delta) = 0;
  // A side file (config.json, tokenizer.json, a further chat template ...) of at most kMaxSideFileBytes;
  // kResourceExhausted beyond.
  virtual Status AddFile(const std::string& file_name, std::string_view content) = 0;
  // Makes a step of all tensors added since the last one: it outlives this process, together with `note` (not null).
  virtual Status EndStep(const Json& note) = 0;
  // The notes of the steps that a stopped writer did; their tensors are added already.
  virtual const std::vector<Json>& done_steps() const = 0;
  // Destroyed without Commit, what was done in steps is kept to be resumed.
  virtual void Keep() = 0;
  // `summary` becomes delta_config.json's codec and quality report.
  virtual Status Commit(const Json& summary) = 0;
};

}  // namespace df

#endif  // DELTAFOLD_FORMAT_DELTA_DIR_H_
