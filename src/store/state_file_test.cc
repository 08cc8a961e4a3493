#include "store/state_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/atomic_file.h"
#include "testing/tiny_family.h"

namespace df {
namespace {

using testing::StatusOf;
using testing::ValueOrDie;

// No file grows beyond so many bytes while this lives: a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t n_bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &former_);
    const rlimit limit = {.rlim_cur = n_bytes, .rlim_max = former_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &former_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit former_ = {};
};

class StateFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<StateFile> Open() {
    warnings_.clear();
    return ValueOrDie(StateFile::Open(path_, warnings_));
  }
  std::string Content() { return ValueOrDie(ReadFileBounded(path_, size_t{1} << 30)); }
  void Write(const std::string& content) { std::ofstream(path_, std::ios::binary) << content; }

  testing::TemporaryDirectory directory_{"deltafold-state-file-test"};
  const std::string path_ = directory_ / "state";
  std::vector<std::string> warnings_;
};

TEST_F(StateFileTest, BringsBackWhatWasRegisteredRetiredAndPinned) {
  {
    const auto file = Open();
    EXPECT_TRUE(file->state().registrations.empty());
    DF_EXPECT_OK(file->Register("math", {.directory = "/deltas/math", .root = "math", .parent = ""}));
    DF_EXPECT_OK(file->Register("sql", {.directory = "/deltas/sql-1", .root = "sql", .parent = "math"}));
    DF_EXPECT_OK(file->Register("sql", {.directory = "/deltas/\"sql\"\n2", .root = "sql", .parent = "math"}));
    DF_EXPECT_OK(file->Register("gone", {.directory = "/deltas/gone", .root = "gone", .parent = ""}));
    DF_EXPECT_OK(file->SetPinned("gone", true));
    DF_EXPECT_OK(file->SetPinned("math", true));
    DF_EXPECT_OK(file->SetPinned("given", false));
    DF_EXPECT_OK(file->Retire("gone"));
    DF_EXPECT_OK(file->Retire("never there"));
  }
  for (int i = 0; i < 2; ++i) {  // the second time from the rewritten file
    const auto file = Open();
    EXPECT_TRUE(warnings_.empty());
    const StoredState& state = file->state();
    ASSERT_EQ(state.registrations.size(), 2u);
    EXPECT_EQ(state.registrations.at("sql").directory, "/deltas/\"sql\"\n2");
    EXPECT_EQ(state.registrations.at("sql").parent, "math");
    EXPECT_EQ(state.pins, (std::map<std::string, bool>{{"math", true}, {"given", false}}));
  }
}

// A process killed at any moment: every line that was whole comes back, the one cut short does not.
TEST_F(StateFileTest, LosesNothingAcknowledgedWhereverItIsCut) {
  std::vector<size_t> sizes;
  {
    const auto file = Open();
    sizes.push_back(Content().size());
    for (int i = 0; i < 2; ++i) {
      DF_EXPECT_OK(file->Register("v" + std::to_string(i), {.directory = "/d", .root = "r", .parent = ""}));
      sizes.push_back(Content().size());
    }
  }
  const std::string whole = Content();
  for (size_t size = 0; size <= whole.size(); ++size) {
    Write(whole.substr(0, size));
    size_t acknowledged = 0;
    while (acknowledged + 1 < sizes.size() && sizes[acknowledged + 1] <= size) ++acknowledged;
    {
      const auto file = Open();
      ASSERT_EQ(file->state().registrations.size(), acknowledged) << size;
      EXPECT_EQ(warnings_.empty(), size == 0 || std::ranges::find(sizes, size) != sizes.end()) << size;
      if (size % 8 != 0) continue;
      DF_EXPECT_OK(file->Register("later", {.directory = "/d", .root = "r", .parent = ""}));
    }
    ASSERT_EQ(Open()->state().registrations.size(), acknowledged + 1) << size;
    EXPECT_TRUE(warnings_.empty());
  }
}

TEST_F(StateFileTest, LeavesOutLinesThatAreDamagedAndSaysWhich) {
  Write(
      "{\"deltafold_state\":1}\n{\"op\":\"register\",\"name\":\"a\",\"directory\":\"/a\"}\nnoise\n"
      "{\"op\":\"dance\",\"name\":\"b\"}\n[1]\n{\"op\":\"pin\"}\n{\"op\":\"pin\",\"name\":\"a\"}\n");
  const auto file = Open();
  EXPECT_EQ(file->state().registrations.size(), 1u);
  EXPECT_TRUE(file->state().pins.at("a"));
  ASSERT_EQ(warnings_.size(), 4u);
  EXPECT_NE(warnings_[0].find(path_ + ": line 3"), std::string::npos) << warnings_[0];
}

TEST_F(StateFileTest, RefusesWhatIsNotItsOwn) {
  Write("somebody's notes\n");
  EXPECT_EQ(StatusOf(StateFile::Open(path_, warnings_)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Content(), "somebody's notes\n");
  Write("somebody's notes");  // without the newline that most programs end a file with
  EXPECT_EQ(StatusOf(StateFile::Open(path_, warnings_)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Content(), "somebody's notes");
  Write("{\"deltafold_state\":2}\n");
  EXPECT_EQ(StatusOf(StateFile::Open(path_, warnings_)).code(), StatusCode::kUnsupported);
  EXPECT_EQ(StatusOf(StateFile::Open(directory_ / "absent/state", warnings_)).code(), StatusCode::kIo);
}

TEST_F(StateFileTest, BelongsToOneProcessAtATime) {
  const auto file = Open();
  EXPECT_EQ(StatusOf(StateFile::Open(path_, warnings_)).code(), StatusCode::kFailedPrecondition);
}

// Whoever gets the lock of the file that has just been renamed into place has a file to which another still appends.
TEST_F(StateFileTest, BelongsToOneProcessWhileItIsRewritten) {
  constexpr int kChanges = 15;
  auto file = Open();
  std::atomic<bool> is_done{false};
  std::atomic<int> n_taken{0};
  std::thread other([&] {
    while (!is_done) {
      const int fd = open(path_.c_str(), O_RDWR | O_CLOEXEC);
      if (fd < 0) continue;
      if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        struct stat mine = {}, named = {};
        const bool is_named = fstat(fd, &mine) == 0 && stat(path_.c_str(), &named) == 0 && mine.st_ino == named.st_ino;
        if (is_named && !is_done) ++n_taken;
        if (is_named) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      close(fd);
    }
  });
  const std::string root(600'000, 'r');  // every third change rewrites the file
  for (int i = 0; i < kChanges; ++i) {
    DF_EXPECT_OK(file->Register("v", {.directory = std::to_string(i), .root = root, .parent = ""}));
  }
  is_done = true;
  other.join();
  file.reset();
  EXPECT_EQ(n_taken, 0);
  EXPECT_EQ(Open()->state().registrations.at("v").directory, std::to_string(kChanges - 1));
}

TEST_F(StateFileTest, KeepsItsModeAndTheLinkThatLeadsToIt) {
  const std::string link = directory_ / "link";
  std::filesystem::create_symlink(path_, link);
  for (int i = 0; i < 2; ++i) {
    const auto file = ValueOrDie(StateFile::Open(link, warnings_));
    DF_EXPECT_OK(file->SetPinned("a", true));
    struct stat info = {};
    ASSERT_EQ(stat(path_.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, i == 0 ? 0600u : 0640u);
    ASSERT_EQ(chmod(path_.c_str(), 0640), 0);
  }
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(Open()->state().pins.at("a"));
}

TEST_F(StateFileTest, StaysShortHoweverOftenThingsChange) {
  const auto file = Open();
  const std::string root(50'000, 'r');
  for (int i = 0; i < 80; ++i) DF_EXPECT_OK(file->Register("v", {.directory = "/d", .root = root, .parent = ""}));
  EXPECT_LT(Content().size(), size_t{2} << 20);
}

TEST_F(StateFileTest, IsUsedAsItIsWhereItCannotBeRewritten) {
  const std::string whole =
      "{\"deltafold_state\":1}\n{\"op\":\"register\",\"name\":\"a\",\"directory\":\"/a\"}\n"
      "{\"op\":\"pin\",\"name\":\"a\"}\n";
  for (const std::string cut : {"", "{\"op\":\"unp"}) {
    Write(whole + cut);
    std::unique_ptr<StateFile> file;
    {
      const FileSizeLimit full(8);
      file = Open();
      ASSERT_EQ(warnings_.size(), cut.empty() ? 1u : 2u);
      EXPECT_NE(warnings_.back().find("state file " + path_ + " is used as it is"), std::string::npos)
          << warnings_.back();
      EXPECT_EQ(file->state().registrations.size(), 1u);
      EXPECT_EQ(Content(), whole);
      EXPECT_EQ(file->SetPinned("b", true).code(), StatusCode::kIo);
      EXPECT_EQ(StatusOf(StateFile::Open(path_, warnings_)).code(), StatusCode::kFailedPrecondition);  // it is locked
    }
    DF_EXPECT_OK(file->SetPinned("b", true));
    file.reset();
    EXPECT_EQ(Open()->state().pins, (std::map<std::string, bool>{{"a", true}, {"b", true}}));
    EXPECT_TRUE(warnings_.empty());
  }
}

TEST_F(StateFileTest, SaysWhichFileCannotBeBegunAndWhatToDo) {
  const FileSizeLimit full(8);
  const Status refused = StatusOf(StateFile::Open(path_, warnings_));
  EXPECT_EQ(refused.code(), StatusCode::kIo);
  for (const std::string& word : {"the state file " + path_ + " cannot be written", std::string("--state-file")}) {
    EXPECT_NE(refused.message().find(word), std::string::npos) << refused.message();
  }
}

}  // namespace
}  // namespace df
