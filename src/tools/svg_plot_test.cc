#include "tools/svg_plot.h"

#include <gtest/gtest.h>

#include <cctype>

namespace df::tools {
namespace {

// Whether tags nest, attributes are quoted and no bare & or < stands in a text: enough of XML for what is written here.
bool IsWellFormed(const std::string& xml) {
  std::vector<std::string> open;
  size_t i = 0;
  while (i < xml.size()) {
    if (xml[i] == '&') {
      const size_t end = xml.find(';', i);
      const std::string entity = end == std::string::npos ? "" : xml.substr(i + 1, end - i - 1);
      if (entity != "amp" && entity != "lt" && entity != "gt" && entity != "quot") return false;
      i = end + 1;
    } else if (xml[i] != '<') {
      ++i;
    } else {
      const bool closing = xml[i + 1] == '/';
      size_t name_end = i + (closing ? 2 : 1);
      while (name_end < xml.size() && std::isalnum(static_cast<unsigned char>(xml[name_end])) != 0) ++name_end;
      const std::string name = xml.substr(i + (closing ? 2 : 1), name_end - i - (closing ? 2 : 1));
      size_t end = name_end;
      bool quoted = false;
      while (end < xml.size() && (quoted || xml[end] != '>')) {
        if (quoted && xml[end] == '<') return false;
        if (xml[end++] == '"') quoted = !quoted;
      }
      if (name.empty() || end == xml.size()) return false;
      if (closing) {
        if (open.empty() || open.back() != name) return false;
        open.pop_back();
      } else if (xml[end - 1] != '/') {
        open.push_back(name);
      }
      i = end + 1;
    }
  }
  return open.empty();
}

TEST(SvgPlot, AnAxisThatFitsSpansThePointsAlone) {
  for (const std::vector<Point>& points : std::vector<std::vector<Point>>{
           {{10, 187.25}, {20, 187.5}}, {{10, -3}, {20, -1}}, {{10, 5}}, {{10, 0}}, {{10, -1e-9}, {20, 1e-9}}, {}}) {
    const Plot plot{.title = "t", .x_label = "x", .y_label = "y", .series = {{"s", points}}, .fits_y = true};
    const std::string svg = RenderSvg({&plot, 1});
    EXPECT_TRUE(IsWellFormed(svg)) << svg;
    EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
    EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
  }
  const Plot plot{
      .title = "t", .x_label = "x", .y_label = "y", .series = {{"s", {{10, 187.25}, {20, 187.5}}}}, .fits_y = true};
  const std::string svg = RenderSvg({&plot, 1});
  EXPECT_NE(svg.find(">187.25<"), std::string::npos) << svg;
  EXPECT_NE(svg.find(">187.5<"), std::string::npos) << svg;
  EXPECT_EQ(svg.find(">100<"), std::string::npos) << svg;
}

TEST(SvgPlot, AxesEndOnAWholeTick) {
  EXPECT_DOUBLE_EQ(AxisFor(14).end, 15);
  EXPECT_DOUBLE_EQ(AxisFor(14).step, 5);
  EXPECT_DOUBLE_EQ(AxisFor(1.87).end, 2);
  EXPECT_DOUBLE_EQ(AxisFor(1.87).step, 0.5);
  EXPECT_DOUBLE_EQ(AxisFor(60).end, 60);
  EXPECT_DOUBLE_EQ(AxisFor(60).step, 10);
  EXPECT_DOUBLE_EQ(AxisFor(0.0007).step, 0.0002);
  for (double largest = 0.001; largest < 1e7; largest *= 1.7) {
    const Axis axis = AxisFor(largest);
    EXPECT_GE(axis.end, largest * 0.999999);
    EXPECT_LE(axis.end, largest + axis.step);
    EXPECT_LE(axis.end / axis.step, 7) << largest;
  }
}

TEST(SvgPlot, IsWellFormedWhateverTheNames) {
  const Plot plot = {.title = "a < b & \"c\"",
                     .x_label = "x\n",
                     .y_label = "y > 0",
                     .series = {{.name = "one & two", .points = {{1, 2}, {8, 3.5}}}, {.name = "<none>", .points = {}}}};
  const std::string svg = RenderSvg(std::vector<Plot>{plot, plot});
  EXPECT_TRUE(IsWellFormed(svg)) << svg;
  EXPECT_TRUE(svg.starts_with("<svg xmlns="));
  EXPECT_NE(svg.find("one &amp; two"), std::string::npos);
  EXPECT_EQ(svg.find("&lt;none"), std::string::npos) << "a series without points has no legend";
  EXPECT_TRUE(IsWellFormed(RenderSvg({})));
}

TEST(SvgPlot, PointsLieInsideTheAxes) {
  const Plot plot = {.title = "", .x_label = "", .y_label = "", .series = {{.name = "s", .points = {{0, 0}, {10, 5}}}}};
  const std::string svg = RenderSvg(std::vector<Plot>{plot});
  EXPECT_NE(svg.find("<polyline points=\"64,344 496,84\""), std::string::npos) << svg;
}

}  // namespace
}  // namespace df::tools
