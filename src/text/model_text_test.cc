#include "text/model_text.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "text/prompt.h"
#include "text/text_fixture.h"

namespace df {
namespace {

using testing::ReadTextData;
using testing::ValueOrDie;

// A directory of the test's own, removed at its end.
class ModelTextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = (std::filesystem::temp_directory_path() /
                  ("model_text_" + std::string(test->name()) + std::to_string(::getpid())))
                     .string();
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Write(const std::string& name, const std::string& content) {
    std::ofstream(directory_ + "/" + name, std::ios::binary) << content;
  }
  ModelText Base() {
    Write("tokenizer.json", ReadTextData("qwen_like.json"));
    Write("tokenizer_config.json", R"({"bos_token": null, "eos_token": {"content": "<|im_end|>", "lstrip": false},)"
                                   R"("pad_token": "<|endoftext|>", "chat_template": "from config {{ eos_token }}"})");
    Write("generation_config.json", R"({"eos_token_id": [422, 420]})");
    return ValueOrDie(LoadModelText(directory_));
  }
  std::string Render(const ModelText& text) { return ValueOrDie(text.chat_template->Render(Json::array())); }

  std::string directory_;
};

TEST_F(ModelTextTest, ReadsAModelDirectory) {
  const ModelText text = Base();
  EXPECT_FALSE(text.bos_id);
  EXPECT_EQ(text.eos_id, 422);
  EXPECT_EQ(text.pad_id, 420);
  EXPECT_EQ(text.stop_ids, (std::vector<int32_t>{420, 422}));
  EXPECT_EQ(Render(text), "from config <|im_end|>");
}

TEST_F(ModelTextTest, TheTemplateFileWins) {
  (void)Base();
  Write("chat_template.jinja", "from file");
  EXPECT_EQ(Render(ValueOrDie(LoadModelText(directory_))), "from file");
}

TEST_F(ModelTextTest, ReadsAListOfTemplates) {
  (void)Base();
  Write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  const ModelText text = ValueOrDie(LoadModelText(directory_));
  EXPECT_EQ(Render(text), "d");
  EXPECT_EQ(ValueOrDie(text.chat_template->Render(Json::array(), {.tools = Json::array({1})})), "t");
}

TEST_F(ModelTextTest, ReadsAFolderOfTemplates) {
  (void)Base();
  const std::string folder = directory_ + "/additional_chat_templates";
  std::filesystem::create_directory(folder);
  Write("additional_chat_templates/tool_use.jinja", "t");
  Write("additional_chat_templates/README.md", "{% no template %}");
  const RenderOptions with_tools = {.tools = Json::array({1})};
  const ModelText alone = ValueOrDie(LoadModelText(directory_));
  EXPECT_EQ(ValueOrDie(alone.chat_template->Render(Json::array(), with_tools)), "t");
  Write("chat_template.jinja", "d");
  const ModelText both = ValueOrDie(LoadModelText(directory_));
  EXPECT_EQ(Render(both), "d");
  EXPECT_EQ(ValueOrDie(both.chat_template->Render(Json::array(), with_tools)), "t");

  Write("additional_chat_templates/default.jinja", "x");
  EXPECT_EQ(LoadModelText(directory_).status().code(), StatusCode::kCorrupt);
  std::filesystem::remove(folder + "/default.jinja");
  std::filesystem::create_symlink("nowhere", folder + "/rag.jinja");
  EXPECT_NE(LoadModelText(directory_).status().message().find("rag.jinja"), std::string::npos);
  std::filesystem::remove(folder + "/rag.jinja");
  for (int i = 0; i < 16; ++i) Write("additional_chat_templates/" + std::to_string(i) + ".jinja", "x");
  EXPECT_EQ(LoadModelText(directory_).status().code(), StatusCode::kResourceExhausted);
}

// A file of an unfinished download must not be taken for one that the model does not have.
TEST_F(ModelTextTest, ALinkToNothingIsNotAnAbsentFile) {
  const ModelText base = Base();
  const std::string variant = directory_ + "/variant";
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"}) {
    std::filesystem::create_directory(variant);
    std::filesystem::create_symlink("../blobs/0123", variant + "/" + name);
    const Status status = LoadModelText(variant, &base).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << name;
    EXPECT_NE(status.message().find(std::string(name) + " is a link to ../blobs/0123"), std::string::npos)
        << status.message();
    std::filesystem::remove_all(variant);
  }
}

TEST_F(ModelTextTest, AVariantInheritsWhatItLacks) {
  const ModelText base = Base();
  const std::string empty = directory_ + "/empty";
  std::filesystem::create_directory(empty);
  const ModelText all = ValueOrDie(LoadModelText(empty, &base));
  EXPECT_EQ(all.tokenizer, base.tokenizer);
  EXPECT_EQ(all.chat_template, base.chat_template);
  EXPECT_EQ(all.eos_id, base.eos_id);
  EXPECT_EQ(all.stop_ids, base.stop_ids);

  std::ofstream(empty + "/chat_template.jinja") << "own {{ eos_token }}";
  EXPECT_EQ(Render(ValueOrDie(LoadModelText(empty, &base))), "own <|im_end|>");
  std::ofstream(empty + "/generation_config.json") << R"({"eos_token_id": 421})";
  EXPECT_EQ(ValueOrDie(LoadModelText(empty, &base)).stop_ids, (std::vector<int32_t>{421, 422}));

  std::filesystem::copy_file(directory_ + "/tokenizer.json", empty + "/tokenizer.json");
  EXPECT_EQ(ValueOrDie(LoadModelText(empty, &base)).tokenizer, base.tokenizer) << "the same bytes share their tables";
  EXPECT_EQ(LoadModelText(directory_ + "/nothing").status().code(), StatusCode::kNotFound);
}

TEST_F(ModelTextTest, RefusesBrokenFilesByName) {
  const struct {
    const char* file;
    const char* content;
    const char* words;
  } cases[] = {
      {"tokenizer_config.json", "[]", "tokenizer_config.json"},
      {"tokenizer_config.json", "{", "tokenizer_config.json"},
      {"tokenizer_config.json", R"({"eos_token": 5})", "eos_token"},
      {"tokenizer_config.json", R"({"eos_token": "<nowhere>"})", "<nowhere>"},
      {"tokenizer_config.json", R"({"chat_template": 7})", "chat_template"},
      {"tokenizer_config.json", R"({"chat_template": [{"name": "a"}]})", "template"},
      {"tokenizer_config.json", R"({"chat_template": "{% if %}"})", "line 1"},
      {"generation_config.json", R"({"eos_token_id": "x"})", "eos_token_id"},
      {"generation_config.json", R"({"eos_token_id": [-1]})", "eos_token_id"},
      {"tokenizer.json", "{}", "tokenizer.json"},
  };
  for (const auto& c : cases) {
    (void)Base();
    Write(c.file, c.content);
    const auto text = LoadModelText(directory_);
    ASSERT_FALSE(text.ok()) << c.content;
    EXPECT_NE(text.status().message().find(c.words), std::string::npos) << text.status().message();
  }
}

}  // namespace
}  // namespace df
