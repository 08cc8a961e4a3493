#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>

#include "base/atomic_file.h"
#include "base/json.h"
#include "format/delta_dir.h"
#include "format/delta_tensors.h"
#include "format/digest.h"
#include "format/message.h"
#include "format/step_journal.h"

namespace df {
namespace {

using internal::TensorMap;

constexpr char kTensorFile[] = "delta_model.safetensors";
constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr uint64_t kHeaderAlignmentBytes = 64;
constexpr uint64_t kDataBytesPerBlank = 256;  // of a header with room left

struct Spooled {
  DType dtype = DType::kU8;
  Shape shape;
  uint64_t begin_bytes = 0;
  uint64_t size_bytes = 0;
};

// The shared dtype and presence of one optional scale of all planes, or why they cannot be stored together.
Result<std::vector<Bytes>> ScalePieces(const std::string& name, const LinearDelta& delta,
                                       std::optional<TensorView> SignPlane::* scale, size_t size) {
  std::vector<Bytes> pieces;
  for (const SignPlane& plane : delta.planes) {
    const std::optional<TensorView>& first = delta.planes.front().*scale;
    const std::optional<TensorView>& own = plane.*scale;
    if (own.has_value() != first.has_value() || (own && own->dtype != first->dtype)) {
      return InvalidArgument("the planes of " + Quoted(name) + " differ in which scales they have or in their dtype");
    }
    if (!own) continue;
    if (own->shape != Shape{size}) {
      return InvalidArgument("a scale of " + Quoted(name) + " has shape " + ToString(own->shape) + ", expected " +
                             ToString(Shape{size}));
    }
    pieces.push_back(own->bytes);
  }
  return pieces;
}

// What is stored of all planes, piece by piece.
struct PlanePieces {
  std::vector<Bytes> bits, rows, cols;
  std::vector<float> scales;
};

Result<PlanePieces> PiecesOf(const std::string& name, const LinearDelta& delta) {
  PlanePieces pieces;
  const size_t plane_bytes = delta.d_out * SignRowBytes(delta.d_in);
  for (const SignPlane& plane : delta.planes) {
    if (plane.bits.size() != plane_bytes) {
      return InvalidArgument("a plane of " + Quoted(name) + " has " + std::to_string(plane.bits.size()) +
                             " bytes of signs, expected " + std::to_string(plane_bytes));
    }
    pieces.bits.push_back(plane.bits);
    pieces.scales.push_back(plane.scale);
  }
  DF_ASSIGN_OR_RETURN(pieces.rows, ScalePieces(name, delta, &SignPlane::row_scale, delta.d_out));
  DF_ASSIGN_OR_RETURN(pieces.cols, ScalePieces(name, delta, &SignPlane::col_scale, delta.d_in));
  return pieces;
}

class DeltaWriterImpl final : public DeltaWriter {
 public:
  DeltaWriterImpl(AtomicDirectory directory, StepJournal journal, Options options)
      : directory_(std::move(directory)), journal_(std::move(journal)), options_(std::move(options)) {}
  // Of the steps that another writer did.
  Status ReadSteps();

  Status Add(const std::string& name, DType dtype, const Shape& shape, Bytes data) override {
    return AddPieces(name, dtype, shape, {data});
  }
  Status AddLinear(const std::string& name, const LinearDelta& delta) override;
  Status AddFile(const std::string& file_name, std::string_view content) override;
  Status EndStep(const Json& note) override;
  const std::vector<Json>& done_steps() const override { return done_steps_; }
  void Keep() override { directory_.Keep(journal_.has_steps()); }
  void Discard() { directory_.Keep(false); }
  Status Commit(const Json& summary) override;

 private:
  Status AddPieces(const std::string& name, DType dtype, const Shape& shape, const std::vector<Bytes>& pieces);
  Status AddPlanes(const std::string& name, const LinearDelta& delta, const PlanePieces& pieces);
  std::vector<TensorSpec> LayOut() const;
  std::map<std::string, std::string> Metadata(const std::string& content_digest) const;
  // Whether the spool has exactly the data of `specs`, in that order.
  bool IsSpooledAs(const std::vector<TensorSpec>& specs) const;
  Result<std::string> ContentDigest(const MappedFile& spool) const;
  Status WriteTensors();
  Status CopyTensors(const MappedFile& spool, const std::vector<TensorSpec>& specs,
                     const std::map<std::string, std::string>& metadata);
  Status WriteConfig(const Json& summary);

  AtomicDirectory directory_;
  StepJournal journal_;
  Options options_;
  std::map<std::string, Spooled> tensors_;
  // Of all tensors, as long as they arrive in the order of their names and none was there before this writer.
  std::optional<Digest> content_digest_ = Digest();
  Json step_tensors_ = Json::array();  // those added since the last step
  std::vector<Json> done_steps_;
  int format_version_ = 1;
  std::map<std::string, std::string> file_digests_;
  std::set<std::string> files_;
};

Status DeltaWriterImpl::AddPieces(const std::string& name, DType dtype, const Shape& shape,
                                  const std::vector<Bytes>& pieces) {
  Spooled spooled{.dtype = dtype, .shape = shape, .begin_bytes = journal_.data_bytes()};
  for (const Bytes piece : pieces) spooled.size_bytes += piece.size();
  const std::optional<size_t> elements = shape.TryElements();
  if (!elements || spooled.size_bytes / DTypeBytes(dtype) != *elements || spooled.size_bytes % DTypeBytes(dtype) != 0) {
    return InvalidArgument("tensor " + Quoted(name) + " of " + std::string(DTypeName(dtype)) + " " + ToString(shape) +
                           " was given " + std::to_string(spooled.size_bytes) + " bytes");
  }
  if (!tensors_.emplace(name, spooled).second) return InvalidArgument("tensor " + Quoted(name) + " is stored already");
  if (tensors_.rbegin()->first != name) content_digest_.reset();
  if (content_digest_) content_digest_->AddTensorHead(name, {dtype, shape, {}});
  for (const Bytes piece : pieces) {
    if (content_digest_) content_digest_->AddBytes(piece);
    DF_RETURN_IF_ERROR(journal_.Append(piece));
  }
  step_tensors_.push_back({name, DTypeName(dtype), shape.dims(), spooled.begin_bytes});
  return Status::Ok();
}

Status DeltaWriterImpl::EndStep(const Json& note) {
  Json tensors = Json::array();
  std::swap(tensors, step_tensors_);
  return journal_.EndStep({{"format_version", format_version_}, {"tensors", tensors}, {"note", note}});
}

Status DeltaWriterImpl::AddPlanes(const std::string& name, const LinearDelta& delta, const PlanePieces& pieces) {
  const SignPlane& first = delta.planes.front();
  const size_t n_planes = delta.planes.size();
  // A scalar of one beside a row or column scale says nothing.
  const bool unit = std::all_of(pieces.scales.begin(), pieces.scales.end(), [](float s) { return s == 1.0F; });
  if (!unit || (pieces.rows.empty() && pieces.cols.empty())) {
    const Bytes scales = AsBytes(std::span<const float>(pieces.scales));
    DF_RETURN_IF_ERROR(AddPieces(name + ".scale", DType::kF32, {n_planes}, {scales}));
  }
  if (!pieces.cols.empty()) {
    DF_RETURN_IF_ERROR(AddPieces(name + ".scale_col", first.col_scale->dtype, {n_planes, delta.d_in}, pieces.cols));
  }
  if (!pieces.rows.empty()) {
    DF_RETURN_IF_ERROR(AddPieces(name + ".scale_row", first.row_scale->dtype, {n_planes, delta.d_out}, pieces.rows));
  }
  return AddPieces(name + ".sign", DType::kU8, {n_planes, delta.d_out, SignRowBytes(delta.d_in)}, pieces.bits);
}

Status DeltaWriterImpl::AddLinear(const std::string& name, const LinearDelta& delta) {
  if (delta.gain_row || delta.magnitude) {
    return InvalidArgument("the gain of " + Quoted(name) + " has no place in a delta directory");
  }
  if (delta.low_rank.size() > 1 || (!delta.low_rank.empty() && delta.low_rank.front().scale != 1.0F)) {
    return InvalidArgument("a delta directory stores one low-rank pair of scale 1, " + Quoted(name) +
                           " has others: fold the scale into B");
  }
  if (delta.rows && delta.byte_rows) return InvalidArgument("rows of " + Quoted(name) + " are stored in two ways");
  format_version_ = std::max(format_version_, internal::FormatVersionOf(delta));
  DF_ASSIGN_OR_RETURN(const PlanePieces planes, PiecesOf(name, delta));
  // In the order of their names.
  if (delta.raw) DF_RETURN_IF_ERROR(Add(name, delta.raw->dtype, delta.raw->shape, delta.raw->bytes));
  for (const LowRank& pair : delta.low_rank) {
    DF_RETURN_IF_ERROR(Add(name + ".lora_A", pair.a.dtype, pair.a.shape, pair.a.bytes));
    DF_RETURN_IF_ERROR(Add(name + ".lora_B", pair.b.dtype, pair.b.shape, pair.b.bytes));
  }
  if (delta.rows) {
    const std::span<const int32_t> index(delta.rows->index);
    DF_RETURN_IF_ERROR(
        Add(name + ".rows", delta.rows->values.dtype, delta.rows->values.shape, delta.rows->values.bytes));
    DF_RETURN_IF_ERROR(Add(name + ".rows_index", DType::kI32, {index.size()}, AsBytes(index)));
  }
  if (delta.byte_rows) {
    const ByteRows& rows = *delta.byte_rows;
    const std::span<const int32_t> index(rows.index);
    DF_RETURN_IF_ERROR(Add(name + ".rows_index", DType::kI32, {index.size()}, AsBytes(index)));
    DF_RETURN_IF_ERROR(Add(name + ".rows_q", rows.values.dtype, rows.values.shape, rows.values.bytes));
    DF_RETURN_IF_ERROR(Add(name + ".rows_step", rows.step.dtype, rows.step.shape, rows.step.bytes));
  }
  if (!delta.planes.empty()) DF_RETURN_IF_ERROR(AddPlanes(name, delta, planes));
  if (!delta.bias) return Status::Ok();
  constexpr std::string_view kWeight = ".weight";
  if (!name.ends_with(kWeight)) return InvalidArgument("the bias of " + Quoted(name) + " has no name");
  const std::string bias = name.substr(0, name.size() - kWeight.size()) + ".bias";
  return Add(bias, delta.bias->dtype, delta.bias->shape, delta.bias->bytes);
}

Status DeltaWriterImpl::AddFile(const std::string& file_name, std::string_view content) {
  if (!internal::IsSideFileName(file_name) || file_name.starts_with("delta_")) {
    return InvalidArgument("a file beside a delta cannot be named " + Quoted(file_name));
  }
  if (content.size() > kMaxSideFileBytes) {
    return ResourceExhausted("file " + Quoted(file_name) + " has " + std::to_string(content.size()) +
                             " bytes, at most " + std::to_string(kMaxSideFileBytes) + " can be stored beside a delta");
  }
  if (!files_.insert(file_name).second) return InvalidArgument("file " + Quoted(file_name) + " is stored already");
  if (file_name != "README.md") {  // for people to edit
    Digest digest;
    digest.AddText(content);
    file_digests_.emplace(file_name, digest.Hex());
  }
  const std::string path = directory_.path() + "/" + file_name;
  const std::string folder = path.substr(0, path.rfind('/'));
  if (mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) return IoError("cannot create directory " + folder, errno);
  return directory_.WriteFile(file_name, content);
}

std::vector<TensorSpec> DeltaWriterImpl::LayOut() const {
  std::vector<TensorSpec> specs;
  uint64_t end_bytes = 0;
  bool is_aligned = true;
  for (const auto& [name, spooled] : tensors_) {
    specs.push_back({name, spooled.dtype, spooled.shape});
    is_aligned = is_aligned && end_bytes % DTypeBytes(spooled.dtype) == 0;
    end_bytes += spooled.size_bytes;
  }
  if (is_aligned) return specs;
  std::sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) {
    const size_t a_bytes = DTypeBytes(a.dtype), b_bytes = DTypeBytes(b.dtype);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.name < b.name;
  });
  return specs;
}

std::map<std::string, std::string> DeltaWriterImpl::Metadata(const std::string& content_digest) const {
  std::map<std::string, std::string> metadata = {{"format", "deltafold"},
                                                 {"format_version", std::to_string(format_version_)},
                                                 {"base_fingerprint", options_.base_fingerprint},
                                                 {"base_quant", "none"},
                                                 {"sign_zero", "+1"},
                                                 {"content_digest", content_digest}};
  for (const auto& [name, digest] : file_digests_) metadata[std::string(internal::kFileDigestPrefix) + name] = digest;
  return metadata;
}

bool DeltaWriterImpl::IsSpooledAs(const std::vector<TensorSpec>& specs) const {
  uint64_t end_bytes = journal_.first_byte();
  for (const TensorSpec& spec : specs) {
    const Spooled& spooled = tensors_.find(spec.name)->second;
    if (spooled.begin_bytes != end_bytes) return false;
    end_bytes += spooled.size_bytes;
  }
  return end_bytes == journal_.data_bytes();
}

Result<std::string> DeltaWriterImpl::ContentDigest(const MappedFile& spool) const {
  if (content_digest_) return content_digest_->Hex();
  TensorMap map;
  for (const auto& [name, spooled] : tensors_) {
    const Bytes bytes = spool.bytes().subspan(spooled.begin_bytes, spooled.size_bytes);
    map.emplace(name, StoredTensor{{spooled.dtype, spooled.shape, bytes}, &spool});
  }
  const std::string digest = internal::ContentDigest(map);
  DF_RETURN_IF_ERROR(spool.CheckIntact());
  return digest;
}

Status DeltaWriterImpl::CopyTensors(const MappedFile& spool, const std::vector<TensorSpec>& specs,
                                    const std::map<std::string, std::string>& metadata) {
  DF_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                      SafetensorsWriter::Create(directory_.path() + "/" + kTensorFile, specs, metadata));
  for (const TensorSpec& spec : specs) {
    const Spooled& spooled = tensors_.find(spec.name)->second;
    const Bytes bytes = spool.bytes().subspan(spooled.begin_bytes, spooled.size_bytes);
    for (size_t done = 0; done < bytes.size(); done += kPieceBytes) {
      const Bytes piece = bytes.subspan(done, std::min(kPieceBytes, bytes.size() - done));
      DF_RETURN_IF_ERROR(writer.Write(piece));
      spool.DropPages(piece);
    }
  }
  DF_RETURN_IF_ERROR(spool.CheckIntact());
  DF_RETURN_IF_ERROR(writer.Commit());
  return journal_.Remove();
}

Status DeltaWriterImpl::WriteTensors() {
  DF_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> spool, journal_.MapData());
  const std::vector<TensorSpec> specs = LayOut();
  DF_ASSIGN_OR_RETURN(const std::string digest, ContentDigest(*spool));
  const std::map<std::string, std::string> metadata = Metadata(digest);
  DF_ASSIGN_OR_RETURN(SafetensorsLayout layout, LayOutSafetensors(specs, metadata));
  std::string prefix = std::move(layout.prefix);
  const uint64_t room_bytes = journal_.first_byte();
  const bool fits = prefix.size() <= room_bytes &&
                    (room_bytes - prefix.size()) * kDataBytesPerBlank <= journal_.data_bytes() - room_bytes;
  if (!fits || !IsSpooledAs(specs)) return CopyTensors(*spool, specs, metadata);
  PadSafetensorsPrefix(room_bytes, prefix);
  return journal_.Publish(prefix, directory_.path() + "/" + kTensorFile);
}

Status DeltaWriterImpl::WriteConfig(const Json& summary) {
  Json config = Json::object();
  config["format"] = "deltafold";
  config["format_version"] = format_version_;
  config["base_model_name_or_path"] = options_.base_name;
  config["base_fingerprint"] = options_.base_fingerprint;
  if (summary.is_object()) {
    for (const auto& [key, value] : summary.items()) {
      if (!config.contains(key)) config[key] = value;
    }
  }
  return directory_.WriteFile("delta_config.json", DumpJson(config, 2) + "\n");
}

Status DeltaWriterImpl::Commit(const Json& summary) {
  if (!files_.contains("config.json")) return InvalidArgument("a delta needs the fine-tune's config.json");
  DF_RETURN_IF_ERROR(WriteConfig(summary));
  DF_RETURN_IF_ERROR(WriteTensors());  // at last: the steps are gone with it
  // Nothing is published that the reader would refuse.
  const auto written = DeltaDirectory::Open(directory_.path());
  if (!written.ok()) return written.status().Annotate("the delta as written cannot be read");
  return directory_.Commit();
}

// One entry of a step's "tensors": name, dtype, shape, first byte of the spool.
struct SteppedTensor {
  std::string name;
  Spooled spooled;
};
std::optional<SteppedTensor> ReadTensor(const Json& entry, uint64_t spool_bytes) {
  if (!entry.is_array() || entry.size() != 4 || !entry[0].is_string() || !entry[1].is_string() ||
      !entry[2].is_array() || !entry[3].is_number_unsigned()) {
    return std::nullopt;
  }
  const std::optional<DType> dtype = DTypeFromName(entry[1].get<std::string>());
  std::vector<size_t> dims;
  for (const Json& dim : entry[2]) {
    if (!dim.is_number_unsigned()) return std::nullopt;
    dims.push_back(dim.get<size_t>());
  }
  const std::optional<Shape> shape = Shape::FromSpan(dims);
  if (!dtype || !shape) return std::nullopt;
  Spooled spooled{.dtype = *dtype, .shape = *shape, .begin_bytes = entry[3].get<uint64_t>()};
  const std::optional<size_t> elements = spooled.shape.TryElements();
  if (!elements || __builtin_mul_overflow(*elements, DTypeBytes(*dtype), &spooled.size_bytes)) return std::nullopt;
  if (spooled.begin_bytes > spool_bytes || spooled.size_bytes > spool_bytes - spooled.begin_bytes) return std::nullopt;
  return SteppedTensor{entry[0].get<std::string>(), std::move(spooled)};
}

Status DeltaWriterImpl::ReadSteps() {
  for (const Json& step : journal_.notes()) {
    const Json* const tensors = JsonMemberOrNull(step, "tensors");
    const Json* const note = JsonMemberOrNull(step, "note");
    const Result<int64_t> version = JsonInt(step, "format_version", {.min = 1, .max = internal::kNewestFormatVersion});
    bool is_sound = tensors != nullptr && tensors->is_array() && note != nullptr && version.ok();
    for (size_t i = 0; is_sound && i < tensors->size(); ++i) {
      const std::optional<SteppedTensor> tensor = ReadTensor((*tensors)[i], journal_.data_bytes());
      is_sound = tensor && tensors_.emplace(tensor->name, tensor->spooled).second;
    }
    if (!is_sound) {
      return Corrupt(directory_.path() + "/" + StepJournal::kFileName + " holds a step that is none of ours (step " +
                     std::to_string(done_steps_.size()) + "); discard it with --force");
    }
    format_version_ = static_cast<int>(*version);
    if (!tensors->empty()) content_digest_.reset();
    done_steps_.push_back(*note);
  }
  return Status::Ok();
}

// What is not of the journal was begun after the last step, and will be again.
Status RemoveUnfinished(const std::string& directory) {
  std::error_code error;
  for (std::filesystem::directory_iterator entries(directory, error);
       !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (name == StepJournal::kFileName || name == StepJournal::kSpoolName) continue;
    std::filesystem::remove_all(entries->path(), error);
    if (error) break;
  }
  return error ? IoError("cannot empty " + directory, error.value()) : Status::Ok();
}

Result<std::unique_ptr<DeltaWriter>> Continue(AtomicDirectory directory, DeltaWriter::Options options) {
  DF_ASSIGN_OR_RETURN(StepJournal journal, StepJournal::Reopen(directory.path()));
  const std::string difference = FirstDifference(journal.task(), options.task);
  if (!difference.empty()) {
    return FailedPrecondition("the run that was stopped did something else: " + difference +
                              "; run it as it was, or "
                              "discard what it left (" +
                              directory.path() + ") with --force");
  }
  DF_RETURN_IF_ERROR(RemoveUnfinished(directory.path()));
  auto writer = std::make_unique<DeltaWriterImpl>(std::move(directory), std::move(journal), std::move(options));
  DF_RETURN_IF_ERROR(writer->ReadSteps());
  writer->Discard();
  return std::unique_ptr<DeltaWriter>(std::move(writer));
}

}  // namespace

Result<std::unique_ptr<DeltaWriter>> DeltaWriter::Create(const std::string& directory, Options options) {
  if (!IsDigest(options.base_fingerprint)) {
    return InvalidArgument("a base fingerprint has 32 hex digits, got " + Quoted(options.base_fingerprint));
  }
  const AtomicDirectory::Options target = {.replace = options.replace,
                                           .mark = "delta_config.json",
                                           .inputs = options.inputs,
                                           .journal = StepJournal::kFileName};
  if (options.resume) {
    DF_ASSIGN_OR_RETURN(std::optional<AtomicDirectory> left, AtomicDirectory::TakeOver(directory, target));
    if (left) return Continue(std::move(*left), std::move(options));
  }
  DF_ASSIGN_OR_RETURN(AtomicDirectory made, AtomicDirectory::Create(directory, target));
  // As a header has it.
  const uint64_t room_bytes =
      (options.header_bytes + kHeaderAlignmentBytes - 1) / kHeaderAlignmentBytes * kHeaderAlignmentBytes;
  DF_ASSIGN_OR_RETURN(StepJournal journal, StepJournal::Create(made.path(), options.task, room_bytes));
  return std::unique_ptr<DeltaWriter>(
      std::make_unique<DeltaWriterImpl>(std::move(made), std::move(journal), std::move(options)));
}

}  // namespace df
