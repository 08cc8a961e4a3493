#include "format/safetensors.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <ctime>

#include "testing/refusal.h"
#include "testing/temporary_directory.h"

namespace df {
namespace {

using testing::ExpectRefusal;
using testing::ReadFile;
using testing::TemporaryDirectory;
using testing::ValueOrDie;

constexpr char kHostile[] = DELTAFOLD_SOURCE_DIR "/tests/hostile/safetensors/";

std::string FileOf(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += header;
  file += data;
  return file;
}

Result<SafetensorsHeader> Parse(std::string_view header, std::string_view data) {
  // A copy of exact size: a read past the end is seen by the address sanitizer.
  const std::string file = FileOf(header, data);
  const std::vector<uint8_t> exact(file.begin(), file.end());
  return ParseSafetensors(exact);
}

constexpr std::string_view kTwo =
    R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})";

TEST(Safetensors, GivesTensorsInFileOrderWithMetadata) {
  const std::string file = FileOf(R"({"__metadata__":{"k":"v"},"late":{"dtype":"U8","shape":[1],"data_offsets":[8,9]},)"
                                  R"("early":{"shape":[2,1],"data_offsets":[0,8],"dtype":"F32"}}   )",
                                  "abcdefghi");
  const SafetensorsHeader header = ValueOrDie(ParseSafetensors(AsBytes(file)));
  ASSERT_EQ(header.tensors.size(), 2U);
  EXPECT_EQ(header.tensors[0].name, "early");
  EXPECT_EQ(header.tensors[0].view.dtype, DType::kF32);
  EXPECT_EQ(header.tensors[0].view.shape, (Shape{2, 1}));
  EXPECT_EQ(AsText(header.tensors[0].view.bytes), "abcdefgh");
  EXPECT_EQ(AsText(header.tensors[1].view.bytes), "i");
  EXPECT_EQ(header.metadata.at("k"), "v");
}

struct HostileCase {
  const char* name;
  StatusCode code;
  std::vector<const char*> words;
};

TEST(Safetensors, RefusesEveryHostileFileNamingTensorAndNumbers) {
  const std::vector<HostileCase> cases = {
      {"empty_file", StatusCode::kCorrupt, {"0 bytes", "8-byte"}},
      {"length_only", StatusCode::kCorrupt, {"header length"}},
      {"header_len_0", StatusCode::kCorrupt, {"'{'"}},
      {"header_len_max", StatusCode::kCorrupt, {"18446744073709551615"}},
      {"header_len_over_file", StatusCode::kCorrupt, {"header length"}},
      {"header_len_99mb", StatusCode::kCorrupt, {"header length", "more than the"}},
      {"header_array", StatusCode::kCorrupt, {"'{'"}},
      {"header_bad_utf8", StatusCode::kCorrupt, {"UTF-8"}},
      {"header_truncated_json", StatusCode::kCorrupt, {"header"}},
      {"header_nul_padding", StatusCode::kCorrupt, {"'}' and spaces"}},
      {"header_deep_nesting", StatusCode::kCorrupt, {"an array"}},
      {"metadata_not_string", StatusCode::kCorrupt, {"__metadata__", "only strings"}},
      {"duplicate_tensor", StatusCode::kCorrupt, {"twice"}},
      {"offset_negative", StatusCode::kCorrupt, {"negative", "data_offsets"}},
      {"offset_reversed", StatusCode::kCorrupt, {"reversed"}},
      {"offset_past_eof", StatusCode::kCorrupt, {"past the end"}},
      {"offset_overlap", StatusCode::kCorrupt, {"overlap"}},
      {"offset_hole", StatusCode::kCorrupt, {"bytes 4 to 8", "no tensor"}},
      {"size_mismatch", StatusCode::kCorrupt, {"24 bytes", "16"}},
      {"shape_overflow_to_0", StatusCode::kCorrupt, {"larger than 2^64"}},
      {"shape_float", StatusCode::kCorrupt, {"shape", "number"}},
      {"dtype_unknown", StatusCode::kUnsupported, {"dtype"}},
      {"rank_1000", StatusCode::kUnsupported, {"more than 8 dimensions"}},
      {"trailing_bytes", StatusCode::kCorrupt, {"5 trailing bytes"}},
  };
  for (const HostileCase& c : cases) {
    SCOPED_TRACE(c.name);
    const auto opened = SafetensorsFile::Open(kHostile + std::string(c.name) + ".safetensors");
    ExpectRefusal(opened, c.code, {c.name});
    for (const char* word : c.words) ExpectRefusal(opened, c.code, {word});
  }
}

TEST(Safetensors, OpensSoundFilesWithOddFeatures) {
  for (const char* name : {"ok_plain", "ok_metadata", "ok_zero_size", "ok_unaligned_header"}) {
    DF_EXPECT_OK(SafetensorsFile::Open(kHostile + std::string(name) + ".safetensors"));
  }
}

TEST(Safetensors, RefusesEveryTruncation) {
  for (const std::string& whole : {FileOf(kTwo, "abc"), ReadFile(std::string(kHostile) + "ok_metadata.safetensors")}) {
    DF_ASSERT_OK(ParseSafetensors(AsBytes(whole)));
    for (size_t n = 0; n < whole.size(); ++n) {
      const std::vector<uint8_t> exact(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(n));
      EXPECT_EQ(testing::StatusOf(ParseSafetensors(exact)).code(), StatusCode::kCorrupt) << n << " bytes";
    }
  }
}

TEST(Safetensors, RefusesAnyTrailingBytesSayingHowMany) {
  ExpectRefusal(Parse(kTwo, "abcd"), StatusCode::kCorrupt, {"1 trailing bytes"});
  ExpectRefusal(Parse(kTwo, "abc0123456789"), StatusCode::kCorrupt, {"10 trailing bytes"});
  ExpectRefusal(Parse("{}", "x"), StatusCode::kCorrupt, {"1 trailing bytes"});
}

TEST(Safetensors, AcceptsAFileWithoutTensors) {
  EXPECT_TRUE(ValueOrDie(Parse("{}", "")).tensors.empty());
  EXPECT_TRUE(ValueOrDie(Parse(R"({"__metadata__":{}}  )", "")).tensors.empty());
}

TEST(Safetensors, AcceptsAScalar) {
  const std::string file = FileOf(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "abcd");
  EXPECT_EQ(ValueOrDie(ParseSafetensors(AsBytes(file))).tensors[0].view.elements(), 1U);
}

TEST(Safetensors, AcceptsEmptyTensorsBetweenOthers) {
  DF_EXPECT_OK(Parse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                     R"("e":{"dtype":"F32","shape":[0,7],"data_offsets":[2,2]},)"
                     R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                     "abc"));
}

TEST(Safetensors, RefusesAnEmptyTensorInsideAnother) {
  ExpectRefusal(Parse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                      R"("e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
                      "ab"),
                StatusCode::kCorrupt, {"\"e\"", "begins at 1", "ends at 2"});
}

TEST(Safetensors, RefusesTwoTensorsOnTheSameBytes) {
  ExpectRefusal(Parse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                      R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                      "ab"),
                StatusCode::kCorrupt, {"\"b\"", "overlaps"});
}

TEST(Safetensors, RefusesAHoleBeforeTheFirstTensor) {
  ExpectRefusal(Parse(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "ab"), StatusCode::kCorrupt,
                {"bytes 0 to 1", "\"a\""});
}

TEST(Safetensors, RefusesASizeThatOverflowsOnlyWithTheElementSize) {
  // 2^61 elements of 8 bytes are 2^64 bytes: 0 after wrapping.
  ExpectRefusal(Parse(R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", ""),
                StatusCode::kCorrupt, {"\"a\"", "larger than 2^64"});
}

TEST(Safetensors, RefusesOffsetsNearTheEndOfTheNumberRange) {
  ExpectRefusal(
      Parse(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615]}})", "a"),
      StatusCode::kCorrupt, {"\"a\"", "past the end"});
  ExpectRefusal(Parse(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551616]}})", "a"),
                StatusCode::kCorrupt, {"\"a\"", "data_offsets"});
}

struct HeaderCase {
  std::string_view header;
  std::string_view word;
};

TEST(Safetensors, RefusesHeadersOfTheWrongForm) {
  for (const HeaderCase& c : std::vector<HeaderCase>{
           {R"({"a":1})", "as entry of tensor \"a\""},
           {R"({"a":null})", "null"},
           {R"({"a":[]})", "an array"},
           {R"({"a":{}})", "lacks"},
           {R"({"a":{"dtype":"U8","shape":[1]}})", "lacks"},
           {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", "1 data_offsets, expected 2"},
           {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}})", "more than 2"},
           {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":{"0":1}}})", "an object"},
           {R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", "an array"},
           {R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", "as shape"},
           {R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", "as dtype"},
           {R"({"a":{"dtype":"u8","shape":[1],"data_offsets":[0,1]}})", "\"u8\""},
           {R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", "negative"},
           {R"({"a":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}})", "shape"},
           {R"({"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", "shape"},
           {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1.0]}})", "data_offsets"},
           {R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "dtype twice"},
           {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"extra":1}})", "unknown field \"extra\""},
           {R"({"__metadata__":{},"__metadata__":{}})", "__metadata__ stands twice"},
           {R"({"__metadata__":{"k":"v","k":"w"}})", "\"k\" twice"},
           {R"({"__metadata__":[]})", "as __metadata__"},
           {R"({"__metadata__":{"k":{}}})", "an object"},
           {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}\n", "'}' and spaces"},
           {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}} })", "not valid JSON"},
           {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],}})", "not valid JSON"},
           {R"({"\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "not valid JSON"},
           {R"({"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}})", "not valid JSON"},
       }) {
    const auto parsed = Parse(c.header, "x");
    ASSERT_FALSE(parsed.ok()) << c.header;
    EXPECT_NE(parsed.status().message().find(c.word), std::string::npos)
        << c.header << ": " << parsed.status().message();
  }
  ExpectRefusal(Parse(" {}", ""), StatusCode::kCorrupt, {"'{'"});
}

TEST(Safetensors, RefusesNamesThatAreEqualOnlyAfterUnescaping) {
  ExpectRefusal(Parse(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                      R"("\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                      "xy"),
                StatusCode::kCorrupt, {"\"a\" stands twice"});
}

TEST(Safetensors, RefusesAHeaderAboveTheLimitThatIsReallyThere) {
  const TemporaryDirectory directory;
  const std::string path = directory / "large.safetensors";
  const uint64_t header_bytes = kMaxSafetensorsHeaderBytes + 1;
  testing::WriteFile(path, AsText(AsBytes(std::span<const uint64_t>(&header_bytes, 1))));
  std::filesystem::resize_file(path, sizeof(uint64_t) + header_bytes);  // sparse
  ExpectRefusal(SafetensorsFile::Open(path), StatusCode::kResourceExhausted, {"100000001", "100000000"});
}

TEST(Safetensors, ShowsHostileNamesHarmlessly) {
  const std::string header =
      "{\"\\u0000\\n\\u001b[31m" + std::string(5000, 'x') + R"(":{"dtype":"U9","shape":[1],"data_offsets":[0,1]}})";
  const Status status = testing::StatusOf(Parse(header, "a"));
  EXPECT_LT(status.message().size(), 400U);
  EXPECT_EQ(status.message().find_first_of(std::string_view("\0\n\033", 3)), std::string::npos);
}

TEST(Safetensors, OpensAHundredThousandTensorsQuicklyAndSmall) {
  std::string header = "{";
  constexpr size_t kTensors = 100'000;
  for (size_t i = 0; i < kTensors; ++i) {
    if (i > 0) header += ',';
    header += "\"t." + std::to_string(i) + R"(.weight":{"dtype":"F32","shape":[1],"data_offsets":[)" +
              std::to_string(4 * i) + "," + std::to_string(4 * i + 4) + "]}";
  }
  header += '}';
  const TemporaryDirectory directory;
  testing::WriteFile(directory / "many.safetensors", FileOf(header, std::string(4 * kTensors, 'x')));
  const auto before = mallinfo2().uordblks;
  const std::clock_t start = std::clock();  // of this process: other work on the machine does not count
  const auto file = ValueOrDie(SafetensorsFile::Open(directory / "many.safetensors"));
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_EQ(file->tensors().size(), kTensors);
  EXPECT_NE(file->FindOrNull("t.99999.weight"), nullptr);
  EXPECT_EQ(file->FindOrNull("t.100000.weight"), nullptr);
  EXPECT_LT(seconds, 5.0);                                     // 0.1 s in a release build; sanitizers are slower
  EXPECT_LT(mallinfo2().uordblks - before, size_t{40} << 20);  // 136 bytes a tensor + its name
  RecordProperty("seconds", std::to_string(seconds));
}

TEST(Safetensors, OpensOnlyRegularFilesAndSaysWhichIsMissing) {
  const TemporaryDirectory directory;
  ExpectRefusal(SafetensorsFile::Open(directory / "none.safetensors"), StatusCode::kNotFound, {"none.safetensors"});
  ExpectRefusal(SafetensorsFile::Open(directory.path()), StatusCode::kFailedPrecondition, {directory.path()});
}

TEST(SafetensorsWriter, WritesWhatTheReaderGivesBack) {
  const TemporaryDirectory directory;
  const std::string path = directory / "w.safetensors";
  const std::vector<TensorSpec> specs = {{"f", DType::kF32, {2}},
                                         {"naïve \"name\"\n", DType::kU8, {3, 1}},
                                         {"none", DType::kBf16, {0, 4}},
                                         {"s", DType::kU8, {}}};
  SafetensorsWriter writer = ValueOrDie(SafetensorsWriter::Create(path, specs, {{"format", "pt"}, {"x", "\"\\"}}));
  DF_ASSERT_OK(writer.Write(AsBytes(std::string_view("01234"))));  // pieces need not end with tensors
  DF_ASSERT_OK(writer.Write(AsBytes(std::string_view("567abcs"))));
  EXPECT_FALSE(std::filesystem::exists(path));
  DF_ASSERT_OK(writer.Commit());
  const auto file = ValueOrDie(SafetensorsFile::Open(path));
  EXPECT_EQ(file->metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"x", "\"\\"}}));
  EXPECT_EQ(AsText(file->FindOrNull("f")->bytes), "01234567");
  EXPECT_EQ(AsText(file->FindOrNull("naïve \"name\"\n")->bytes), "abc");
  EXPECT_EQ(file->FindOrNull("none")->shape, (Shape{0, 4}));
  EXPECT_EQ(AsText(file->FindOrNull("s")->bytes), "s");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file->FindOrNull("f")->bytes.data()) % 64, 0U);
}

TEST(SafetensorsWriter, LeavesNothingBehindWithoutCommit) {
  const TemporaryDirectory directory;
  {
    SafetensorsWriter writer = ValueOrDie(SafetensorsWriter::Create(directory / "w", {{"a", DType::kU8, {4}}}, {}));
    DF_ASSERT_OK(writer.Write(AsBytes(std::string_view("ab"))));
    ExpectRefusal(writer.Commit(), StatusCode::kInternal, {"2 bytes"});
    ExpectRefusal(writer.Write(AsBytes(std::string_view("abc"))), StatusCode::kInternal, {"3 bytes", "2"});
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(SafetensorsWriter, RefusesSpecsThatNoFileCanHold) {
  const TemporaryDirectory directory;
  const auto create = [&directory](std::vector<TensorSpec> specs) {
    return SafetensorsWriter::Create(directory / "w", std::move(specs), {});
  };
  ExpectRefusal(create({{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}), StatusCode::kInvalidArgument,
                {"\"a\"", "twice"});
  ExpectRefusal(create({{"__metadata__", DType::kU8, {1}}}), StatusCode::kInvalidArgument, {"__metadata__"});
  ExpectRefusal(create({{"\xff", DType::kU8, {1}}}), StatusCode::kInvalidArgument, {"named"});
  ExpectRefusal(create({{"a", DType::kF64, {size_t{1} << 61}}}), StatusCode::kInvalidArgument, {"2^64"});
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

}  // namespace
}  // namespace df
