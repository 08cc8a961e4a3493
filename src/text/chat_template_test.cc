#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "testing/process_memory.h"
#include "text/text_fixture.h"

namespace df {
namespace {

using testing::CompileTestTemplate;
using testing::ReadJsonData;
using testing::ReadTextData;
using testing::ValueOrDie;

// 26 July 2024, noon UTC: what the reference was given as the present.
constexpr int64_t kNow = 1721995200;

RenderOptions OptionsOf(const Json& row) {
  const Json& arguments = row["arguments"];
  RenderOptions options = {.add_generation_prompt = false, .now_unix_s = kNow};
  for (const auto& [name, value] : arguments.items()) {
    if (name == "add_generation_prompt") {
      options.add_generation_prompt = value.get<bool>();
    } else if (name == "continue_final_message") {
      options.continue_final_message = value.get<bool>();
    } else {
      options.kwargs[name] = value;
    }
  }
  if (row.contains("tools")) options.tools = row["tools"];
  return options;
}

std::string Repeated(const std::string& part, size_t n) {
  std::string text;
  for (size_t i = 0; i < n; ++i) text += part;
  return text;
}

std::string RenderOne(const std::string& source, const Json& message = {{"role", "user"}, {"content", "hi"}},
                      RenderOptions options = {.now_unix_s = kNow}) {
  return ValueOrDie(CompileTestTemplate(source)->Render(Json::array({message}), options));
}

TEST(ChatTemplate, RendersWhatTheReferenceRenders) {
  for (const Json& row : ReadJsonData("chat_expected.json")) {
    SCOPED_TRACE(row["name"].get<std::string>());
    const auto compiled = CompileTestTemplate(ReadTextData(row["template"].get<std::string>()),
                                              row.value("special_tokens", Json::object()));
    const auto rendered = compiled->Render(row["messages"], OptionsOf(row));
    const Json& expected = row["expected"];
    if (expected.contains("error")) {
      EXPECT_EQ(rendered.status().code(), StatusCode::kInvalidArgument);
      EXPECT_NE(rendered.status().message().find(expected["error"].get<std::string>()), std::string::npos)
          << rendered.status().message();
    } else {
      DF_ASSERT_OK(rendered);
      EXPECT_EQ(*rendered, expected["text"].get<std::string>());
    }
  }
}

TEST(ChatTemplate, TakesTheToolTemplateWhenToolsAreGiven) {
  const auto compiled = ValueOrDie(
      ChatTemplate::Compile({.templates = {{"default", "plain"}, {"tool_use", "{{ tools | length }} tools"}}}));
  const Json messages = Json::array();
  EXPECT_EQ(ValueOrDie(compiled->Render(messages, {})), "plain");
  EXPECT_EQ(ValueOrDie(compiled->Render(messages, {.tools = Json::array()})), "plain");
  EXPECT_EQ(ValueOrDie(compiled->Render(messages, {.tools = Json::array({Json::object()})})), "1 tools");
  const auto no_default = ValueOrDie(ChatTemplate::Compile({.templates = {{"rag", "a"}, {"tool_use", "b"}}}));
  EXPECT_EQ(no_default->Render(messages).status().code(), StatusCode::kInvalidArgument);
}

TEST(ChatTemplate, RefusesReservedNames) {
  const auto compiled = CompileTestTemplate("{{ extra }}");
  for (const char* name : {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception",
                           "strftime_now", "namespace"}) {
    RenderOptions options;
    options.kwargs[name] = "x";
    const auto rendered = compiled->Render(Json::array(), options);
    EXPECT_EQ(rendered.status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_NE(rendered.status().message().find(name), std::string::npos);
  }
  RenderOptions options;
  options.kwargs["extra"] = 5;
  EXPECT_EQ(ValueOrDie(compiled->Render(Json::array(), options)), "5");
}

TEST(ChatTemplate, RefusesMessagesOfAWrongForm) {
  const auto compiled = CompileTestTemplate("x");
  EXPECT_EQ(compiled->Render(Json::object()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(compiled->Render(Json::array({1})).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(compiled->Render(Json::array(), {.tools = Json::object()}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(compiled->Render(Json::array(), {.kwargs = 5}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(compiled->Render(Json::array(), {.continue_final_message = true}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      compiled->Render(Json::array(), {.add_generation_prompt = false, .continue_final_message = true}).status().code(),
      StatusCode::kInvalidArgument);
}

TEST(ChatTemplate, RefusesToContinueWhatTheTemplateLeavesOut) {
  const auto compiled = CompileTestTemplate("{{ messages[0].role }}");
  const RenderOptions options = {.add_generation_prompt = false, .continue_final_message = true};
  const Json messages = Json::array({{{"role", "assistant"}, {"content", "so"}}});
  EXPECT_EQ(compiled->Render(messages, options).status().code(), StatusCode::kInvalidArgument);
}

TEST(ChatTemplate, NamesTheLineOfABrokenTemplate) {
  for (const char* source :
       {"ok\n{% if %}", "{{ messages", "{% endfor %}", "a\n{{ x | no_such_filter }}", "{% include 'x' %}"}) {
    const auto compiled = ChatTemplate::Compile({.templates = {{"default", source}}});
    if (compiled.ok()) {  // unknown filters and files show when they are used
      EXPECT_FALSE((*compiled)->Render(Json::array()).ok()) << source;
      continue;
    }
    EXPECT_EQ(compiled.status().code(), StatusCode::kCorrupt) << source;
    EXPECT_NE(compiled.status().message().find("line"), std::string::npos) << compiled.status().message();
  }
  EXPECT_EQ(ChatTemplate::Compile({.templates = {{"default", std::string((1 << 18) + 1, 'x')}}}).status().code(),
            StatusCode::kResourceExhausted);
}

TEST(ChatTemplate, BombsEndWithATypedError) {
  const std::string bombs[] = {
      "{% for i in range(10**9) %}x{% endfor %}",
      "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
      "{{ 'x' * 2**30 }}",
      "{% set ns = namespace(x='x') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x | length "
      "}}",
      "{% set ns = namespace(x='x') %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | length "
      "}}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | length "
      "}}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | "
      "tojson }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x ~ '' }}",
      "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
      "{% macro a(n) %}{{ a(n) }}{{ a(n) }}{% endmacro %}{{ a(1) }}",
      "{{ 'x' | replace('', 'yyyyyyyyyyyyyyyy' * 1000) | replace('y', 'zzzzzzzzzzzzzzzz' * 1000) }}",
      "{{ '%1000000000d' | format(1) }}",
      "{{ 'a'.join(range(100000)) | replace('a', 'b' * 100000) }}",
      "{{ 'abc' | indent(1000000000) }}",
      "{{ range(100000) | list | tojson(indent=64) * 1000 }}",
      "{{ 10 ** 10 ** 10 }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = ns.x * 1 + ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[]) %}{% for i in range(40) %}{% set ns.x = [1] * 100000000 + ns.x %}{% endfor %}",
      "{% set ns = namespace(x=(1, 2)) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% macro a(x, n) %}{% if n %}{{ a(x + x, n - 1) }}{% endif %}{% endmacro %}{{ a([1], 40) }}",
      "{% block a %}{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
      "{% endblock %}",
      "{% set ns = namespace() %}{% set ns.me = ns %}",
      "{% set ns = namespace() %}{% set ns.me = [{'k': ns}] %}",
      "{% set ns = namespace() %}{% set (ns.a, ns.b) = (ns, ns) %}",
      "{% macro a(x) %}{{ a([x, x]) }}{% endmacro %}{{ a(1) }}",
      "{{ ([0] * 100000000) | list | length }}",
      "{{ range(100000) | map('string') | join('x' * 1000) }}",
  };
  std::vector<std::string> all(std::begin(bombs), std::end(bombs));
  // One list 2^40 times over, and every way to walk through it.
  const std::string doubled = "{% set x = [1] %}" + Repeated("{% set x = [x, x] %}", 40);
  for (const char* use : {"{{ x }}",
                          "{{ x ~ '' }}",
                          "{{ x == [x] }}",
                          "{{ x < [x] }}",
                          "{{ x | join }}",
                          "{{ x | upper }}",
                          "{{ {x: 1} }}",
                          "{{ {'a': 1}[x] }}",
                          "{{ x in [x] }}",
                          "{{ [x, x] | unique | list }}",
                          "{{ x is eq [x] }}",
                          "{{ '{}'.format(x) }}",
                          "{{ [x].count([x]) }}",
                          "{{ raise_exception(x) }}",
                          "{{ dict(a=x) }}",
                          "{{ x | string }}",
                          "{{ x | tojson }}",
                          "{{ 'a' | replace('a', x) }}",
                          "{% filter replace('a', x) %}a{% endfilter %}",
                          "{{ x | sort }}",
                          "{{ x | groupby('a') }}",
                          "{% for i in [1, 2] %}{{ loop.changed([x]) }}{% endfor %}"}) {
    all.push_back(doubled + use);
  }
  for (const char* twice : {"x + x", "x ~ x", "x | zip(x) | list", "x | chain(x)"}) {
    all.push_back("{% set x = ['a'] %}" + Repeated("{% set x = " + std::string(twice) + " %}", 60) +
                  "{{ x | length }}");
  }
  for (const std::string& bomb : all) {
    const std::clock_t start = std::clock();
    const auto compiled = ChatTemplate::Compile({.templates = {{"default", bomb}}});
    ASSERT_TRUE(compiled.ok()) << bomb << compiled.status().message();
    const auto rendered = (*compiled)->Render(Json::array());
    EXPECT_FALSE(rendered.ok()) << bomb;
    EXPECT_TRUE(rendered.status().code() == StatusCode::kResourceExhausted ||
                rendered.status().code() == StatusCode::kInvalidArgument)
        << bomb << StatusCodeName(rendered.status().code()) << rendered.status().message();
    // A second at most in a release build; sanitizers are several times slower, and bombs take years.
    EXPECT_LT(std::clock() - start, 30 * CLOCKS_PER_SEC) << bomb;
  }
}

TEST(ChatTemplate, DeeplyNestedValuesAndSourcesDoNotExhaustTheStack) {
  const std::string nest =
      "{% set ns = namespace(x=[]) %}"
      "{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}";
  std::vector<std::string> sources = {nest,
                                      "{{ a" + Repeated(".a", 100'000) + " }}",
                                      "{{ 1" + Repeated("+1", 100'000) + " }}",
                                      "{{ " + Repeated("(", 200'000) + " }}",
                                      "{{ " + Repeated("[", 200'000) + " }}",
                                      "{{ " + Repeated("not ", 60'000) + "a }}",
                                      "{{ a" + Repeated("|e", 100'000) + " }}",
                                      "{{ a" + Repeated("[0]", 80'000) + " }}",
                                      "{{ a" + Repeated("()", 80'000) + " }}",
                                      "{{ " + Repeated("-", 200'000) + "1 }}",
                                      Repeated("{% if a %}", 20'000),
                                      Repeated("{{ a }}", 30'000),
                                      "{{ a" + Repeated(" if a else a", 20'000) + " }}",
                                      "{{ a" + Repeated("~a", 100'000) + " }}",
                                      "{{ a" + Repeated(" and a", 40'000) + " }}",
                                      "{{ a" + Repeated("<a", 100'000) + " }}",
                                      "{% if a %}" + Repeated("{% elif a %}", 20'000) + "{% endif %}",
                                      "{{ " + Repeated("{'a':", 50'000) + " }}"};
  for (const std::string& source : sources) {
    const std::clock_t start = std::clock();
    const auto compiled = ChatTemplate::Compile({.templates = {{"default", source}}});
    if (compiled.ok()) (void)(*compiled)->Render(Json::array());
    EXPECT_LT(std::clock() - start, 30 * CLOCKS_PER_SEC) << source.substr(0, 20);
  }
}

// Leaves this process a megabyte of address space more than it has, exits with the code of a rendering's status.
[[noreturn]] void ExitWithRenderingWithoutSpace(const ChatTemplate& compiled) {
  if (!df::testing::LimitAddressSpace(size_t{1} << 20)) std::_Exit(99);
  std::_Exit(static_cast<int>(compiled.Render(Json::array()).status().code()));
}

TEST(ChatTemplate, AMachineWithoutRoomForTheStackIsNoFaultOfTheMessages) {
  const auto compiled = CompileTestTemplate("hi");
  EXPECT_EXIT(ExitWithRenderingWithoutSpace(*compiled),
              ::testing::ExitedWithCode(static_cast<int>(StatusCode::kUnavailable)), "");
}

TEST(ChatTemplate, CapsTheOutput) {
  const auto compiled = CompileTestTemplate("{{ messages[0].content }}{{ messages[0].content }}");
  const Json messages = Json::array({{{"role", "user"}, {"content", std::string(1000, 'x')}}});
  EXPECT_EQ(ValueOrDie(compiled->Render(messages, {.max_output_bytes = 2000})).size(), 2000u);
  const auto rendered = compiled->Render(messages, {.max_output_bytes = 1999});
  EXPECT_EQ(rendered.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(rendered.status().message().find("1999"), std::string::npos);
}

TEST(ChatTemplate, LongHonestChatsFitTheLimits) {
  const auto compiled = CompileTestTemplate(ReadTextData("think_tools.jinja"));
  Json messages = Json::array();
  for (int i = 0; i < 2000; ++i) {
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", "message " + std::to_string(i)}});
  }
  DF_EXPECT_OK(compiled->Render(messages));
  const Json one = Json::array({{{"role", "user"}, {"content", std::string(10'000'000, 'x')}}});
  DF_EXPECT_OK(compiled->Render(one));
}

TEST(ChatTemplate, WritesTheTimeItIsGiven) {
  EXPECT_EQ(RenderOne("{{ strftime_now('%d %B %Y') }}"), "26 July 2024");
  EXPECT_EQ(RenderOne("{{ strftime_now('') }}"), "");
}

TEST(ChatTemplate, AMessageWithoutContentHasNone) {
  EXPECT_EQ(RenderOne("{{ messages[0].content is defined }}", {{"role", "assistant"}, {"content", nullptr}}), "False");
}

}  // namespace
}  // namespace df
