#include "tools/bench_codec.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/clock.h"
#include "base/json.h"
#include "codec/compressor.h"
#include "codec/verify.h"
#include "format/delta_dir.h"
#include "kernels/packed.h"
#include "kernels/target.h"
#include "model/weights.h"
#include "store/variant_source.h"
#include "tools/machine.h"
#include "tools/statistics.h"
#include "tools/synthetic_files.h"
#include "tools/synthetic_shape.h"
#include "tools/temporary_directory.h"

namespace df::tools {
namespace {

constexpr size_t kDiskBytes = size_t{256} << 20;
constexpr size_t kDiskPieceBytes = size_t{8} << 20;

// A file descriptor, closed at the end.
struct File {
  explicit File(int descriptor) : fd(descriptor) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd >= 0) close(fd);
  }
  int fd;
};

Status RemoveAll(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? IoError("cannot remove " + path, error.value()) : Status::Ok();
}

double SecondsSince(int64_t start_us) { return static_cast<double>(SteadyClock().NowUs() - start_us) * 1e-6; }

Result<double> WriteSeconds(const std::string& path, const std::vector<char>& piece) {
  const int64_t start_us = SteadyClock().NowUs();
  const File file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (file.fd < 0) return IoError("cannot create " + path, errno);
  for (size_t done = 0; done < kDiskBytes;) {
    const ssize_t n = write(file.fd, piece.data(), piece.size());
    if (n <= 0) return IoError("cannot write " + path, n < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(n);
  }
  if (fsync(file.fd) != 0) return IoError("cannot write " + path, errno);
  return SecondsSince(start_us);
}

Status ReadInSequence(const std::string& path, std::vector<char>& piece) {
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd < 0) return IoError("cannot open " + path, errno);
  for (;;) {
    const ssize_t n = read(file.fd, piece.data(), piece.size());
    if (n < 0) return IoError("cannot read " + path, errno);
    if (n == 0) return Status::Ok();
  }
}

// Nobody may have it mapped.
Status DropFromPageCache(const std::string& path) {
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd < 0) return IoError("cannot open " + path, errno);
  if (fdatasync(file.fd) != 0) return IoError("cannot write " + path, errno);
  const int error = posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED);
  return error == 0 ? Status::Ok() : IoError("cannot drop the pages of " + path, error);
}

Result<double> ReadSeconds(const std::string& path, std::vector<char>& piece) {
  DF_RETURN_IF_ERROR(DropFromPageCache(path));
  const int64_t start_us = SteadyClock().NowUs();
  DF_RETURN_IF_ERROR(ReadInSequence(path, piece));
  return SecondsSince(start_us);
}

class CodecRun {
 public:
  CodecRun(const CodecBenchOptions& options, std::string directory, CodecBenchReport& report)
      : options_(options), directory_(std::move(directory)), report_(report), context_(report.n_threads) {}

  Status All() {
    Say("limits");
    const Machine machine = MeasureMachine(context_);
    report_.read_bytes_per_second = machine.read_bytes_per_second;
    report_.copy_bytes_per_second = machine.copy_bytes_per_second;
    DF_RETURN_IF_ERROR(MeasureDisk());
    Say("a family of shape " + options_.shape);
    DF_RETURN_IF_ERROR(WriteSyntheticFamily(directory_, options_.shape, 1));
    DF_ASSIGN_OR_RETURN(base_, Checkpoint::Open(directory_ + "/base"));
    DF_ASSIGN_OR_RETURN(fine_tune_, Checkpoint::Open(directory_ + "/fine-tune"));
    DF_RETURN_IF_ERROR(MeasureCompress());
    DF_RETURN_IF_ERROR(MeasureLoads());
    return MeasurePacking();
  }

 private:
  void Say(const std::string& what) const {
    if (options_.on_progress) options_.on_progress(what);
  }

  CodecLine& LastLine() { return report_.lines.back(); }

  // `body` returns a Status; so does `prepare`, which is not timed.
  template <typename Body, typename Prepare>
  Status Measure(const std::string& what, uint64_t bytes, const Body& body, const Prepare& prepare) {
    Say(what);
    std::vector<double> seconds;
    for (size_t round = 0; round < options_.n_rounds; ++round) {
      DF_RETURN_IF_ERROR(prepare());
      const int64_t start_us = SteadyClock().NowUs();
      DF_RETURN_IF_ERROR(body());
      seconds.push_back(SecondsSince(start_us));
    }
    report_.lines.push_back({.what = what, .bytes = bytes, .seconds = Median(seconds)});
    return Status::Ok();
  }

  template <typename Body>
  Status Measure(const std::string& what, uint64_t bytes, const Body& body) {
    return Measure(what, bytes, body, [] { return Status::Ok(); });
  }

  Status MeasureDisk() {
    Say("the disk");
    const std::string path = directory_ + "/disk";
    std::vector<char> piece(kDiskPieceBytes, 'x');
    std::vector<double> write_s, read_s;
    for (size_t round = 0; round < options_.n_rounds; ++round) {
      DF_ASSIGN_OR_RETURN(const double written, WriteSeconds(path, piece));
      DF_ASSIGN_OR_RETURN(const double read, ReadSeconds(path, piece));
      write_s.push_back(written);
      read_s.push_back(read);
    }
    std::filesystem::remove(path);
    report_.disk_write_bytes_per_second = kDiskBytes / Median(write_s);
    report_.disk_read_bytes_per_second = kDiskBytes / Median(read_s);
    return Status::Ok();
  }

  // Reading both models is the least it takes. They are in the page cache, having just been written or read by a round
  // before; the delta is written to the disk, and there is none before: removing it is not part of compressing.
  Status MeasureCompressBy(const std::string& code) {
    constexpr double kWantedShare = 0.4;
    const std::string out = directory_ + "/compressed";
    CompressOptions options;
    DF_ASSIGN_OR_RETURN(options.matrices, ParseCode(code));
    DF_RETURN_IF_ERROR(Measure(
        "compress by " + code + " (of both models)", base_->weight_bytes() + fine_tune_->weight_bytes(),
        [&] { return Compress(context_.pool, *base_, *fine_tune_, out, options).status(); },
        [&] { return RemoveAll(out); }));
    LastLine().target = {
        .of = "memory read", .limit_bytes_per_second = report_.read_bytes_per_second, .share = kWantedShare};
    return Status::Ok();
  }

  Status MeasureCompress() {
    const std::string out = directory_ + "/compressed";
    for (const char* code : {"scalar", "row"}) DF_RETURN_IF_ERROR(MeasureCompressBy(code));
    DF_RETURN_IF_ERROR(Measure("compress (of the fine-tune)", fine_tune_->weight_bytes(), [&] {
      const auto report = Compress(context_.pool, *base_, *fine_tune_, out, {.replace = true});
      return report.ok() ? Status::Ok() : report.status();
    }));
    return Measure("verify (of the fine-tune)", fine_tune_->weight_bytes(), [&] {
      const auto report = Verify(context_.pool, *base_, out, fine_tune_.get(), {});
      return report.ok() ? Status::Ok() : report.status();
    });
  }

  Status MeasureLoads() {
    std::shared_ptr<const BaseWeights> base;
    DF_RETURN_IF_ERROR(Measure("load the base (of its file)", base_->weight_bytes(), [&]() -> Status {
      base.reset();
      DF_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(directory_ + "/base"));
      DF_ASSIGN_OR_RETURN(base, LoadBase(context_, checkpoint));
      return Status::Ok();
    }));
    return MeasureVariantLoads(*base, directory_ + "/compressed");
  }

  // As the store's loader threads do it: one thread each. Registering reads everything once to verify it, a load reads
  // it once, digests and packs.
  Status MeasureVariantLoads(const BaseWeights& base, const std::string& path) {
    KernelContext context(1);
    uint64_t bytes = 0;
    {
      DF_ASSIGN_OR_RETURN(const auto delta, DeltaDirectory::Open(path));
      bytes = delta->stored_bytes();
      DF_RETURN_IF_ERROR(Measure("repack a delta, one thread, no digest (of its file)", bytes, [&]() -> Status {
        for (const Slot& slot : ListSlots(base.config, base.tied)) {
          if (slot.IsVector()) continue;
          DF_ASSIGN_OR_RETURN(const LinearDelta change, delta->Linear(slot.name, {slot.d_out, slot.d_in}, slot.d_out));
          kernels::PackDelta(context, change);
        }
        return Status::Ok();
      }));
    }
    DF_RETURN_IF_ERROR(Measure("register a delta: open and verify (of its file)", bytes,
                               [&] { return OpenVariant(base, path).status(); }));
    const double repack_bytes_per_second = report_.lines[report_.lines.size() - 2].bytes_per_second();
    const CodecTarget target = {
        .of = "disk read or repacking, the slower",
        .limit_bytes_per_second = std::min(report_.disk_read_bytes_per_second, repack_bytes_per_second),
        .share = 0.7};
    const auto load = [&]() -> Status {
      DF_ASSIGN_OR_RETURN(const auto source, OpenVariant(base, path, {.verify = false}));
      return PackVariant(context, base, *source, {.first_reading = true}).status();
    };
    DF_RETURN_IF_ERROR(
        Measure("load a delta from the page cache, one thread, digest checked (of its file)", bytes, load));
    LastLine().target = target;
    const std::string file = path + "/delta_model.safetensors";
    const auto drop = [&] { return DropFromPageCache(file); };
    DF_RETURN_IF_ERROR(
        Measure("load a delta from the disk, one thread, digest checked (of its file)", bytes, load, drop));
    LastLine().target = target;
    // What the disk gives of a file of this size: it needs tens of megabytes to get to its full speed.
    std::vector<char> piece(kDiskPieceBytes);
    return Measure(
        "read a delta's file from the disk in sequence (of its file)", bytes,
        [&] { return ReadInSequence(file, piece); }, drop);
  }

  // The base's largest matrix and the delta's signs of it, again and again from the page cache.
  Status MeasurePacking() {
    const StoredTensor* largest = nullptr;
    std::string name;
    for (const Slot& slot : ListSlots(base_->config(), base_->config().tied_head)) {
      if (slot.kind != SlotKind::kMatrix) continue;
      const StoredTensor* tensor = base_->FindOrNull(slot.name);
      if (tensor == nullptr || (largest != nullptr && tensor->view.bytes.size() <= largest->view.bytes.size()))
        continue;
      largest = tensor;
      name = slot.name;
    }
    DF_CHECK(largest != nullptr);
    DF_RETURN_IF_ERROR(Measure("pack a base matrix", largest->view.bytes.size(), [&] {
      kernels::PackWeight(context_, largest->view);
      return Status::Ok();
    }));
    const size_t d_out = largest->view.shape[0], d_in = largest->view.shape[1];
    DF_ASSIGN_OR_RETURN(const auto directory, DeltaDirectory::Open(directory_ + "/delta-0"));
    DF_ASSIGN_OR_RETURN(const LinearDelta delta, directory->Linear(name, {d_out, d_in}, d_out));
    return Measure("pack a matrix of signs", delta.planes.front().bits.size(), [&] {
      kernels::PackDelta(context_, delta);
      return Status::Ok();
    });
  }

  const CodecBenchOptions& options_;
  const std::string directory_;
  CodecBenchReport& report_;
  KernelContext context_;
  std::shared_ptr<const Checkpoint> base_, fine_tune_;
};

}  // namespace

Result<CodecBenchReport> RunCodecBench(const CodecBenchOptions& options) {
  CodecBenchReport report = {
      .shape = options.shape, .n_threads = options.n_threads == 0 ? UsableCpus() : options.n_threads, .lines = {}};
  if (kernels::IsScalarTarget()) {
    return FailedPrecondition("the scalar target is the oracle and has no limits to be measured against");
  }
  DF_RETURN_IF_ERROR(SyntheticConfig(options.shape).status());
  if (!options.family.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.family, error);
    if (error) return IoError("cannot make " + options.family, error.value());
    DF_RETURN_IF_ERROR(CodecRun(options, options.family, report).All());
    return report;
  }
  DF_ASSIGN_OR_RETURN(TemporaryDirectory directory, TemporaryDirectory::Make(options.directory));
  DF_RETURN_IF_ERROR(CodecRun(options, directory.path(), report).All());
  if (options.keep) report.kept = directory.Release();
  return report;
}

Json ToJson(const CodecBenchReport& report) {
  Json json = {{"shape", report.shape},
               {"threads", report.n_threads},
               {"limits",
                {{"read_bytes_per_second", report.read_bytes_per_second},
                 {"copy_bytes_per_second", report.copy_bytes_per_second},
                 {"disk_read_bytes_per_second", report.disk_read_bytes_per_second},
                 {"disk_write_bytes_per_second", report.disk_write_bytes_per_second}}}};
  if (!report.kept.empty()) json["kept"] = report.kept;
  json["results"] = Json::array();
  for (const CodecLine& line : report.lines) {
    Json& result = json["results"].emplace_back(
        Json{{"name", line.what},
             {"bytes", line.bytes},
             {"seconds", line.seconds},
             {"bytes_per_second", line.bytes_per_second()},
             {"read_share", line.bytes_per_second() / report.read_bytes_per_second},
             {"copy_share", line.bytes_per_second() / report.copy_bytes_per_second},
             {"disk_read_share", line.bytes_per_second() / report.disk_read_bytes_per_second}});
    if (!line.target) continue;
    result["target"] = {{"of", line.target->of}, {"share", line.target->share}};
    result["share"] = line.share_of_limit();
    result["pass"] = line.passes();
  }
  return json;
}

}  // namespace df::tools
