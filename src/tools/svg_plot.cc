#include "tools/svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/check.h"

namespace df::tools {
namespace {

constexpr double kWidth = 520, kHeight = 400;                       // of one plot
constexpr double kLeft = 64, kRight = 24, kTop = 84, kBottom = 56;  // around the axes
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
// Told apart by colour-blind readers too (Okabe and Ito, 2008).
constexpr std::array<const char*, 6> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#000000"};

std::string Number(double value) {
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

std::string Escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else {
      escaped += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return escaped;
}

std::string Text(double x, double y, const std::string& attributes, const std::string& text) {
  return "<text x=\"" + Number(x) + "\" y=\"" + Number(y) + "\" " + attributes + ">" + Escaped(text) + "</text>\n";
}

std::string Line(Point from, Point to, const char* colour) {
  return "<line x1=\"" + Number(from.x) + "\" y1=\"" + Number(from.y) + "\" x2=\"" + Number(to.x) + "\" y2=\"" +
         Number(to.y) + "\" stroke=\"" + colour + "\"/>\n";
}

// One plot with its upper left corner at 0, 0.
class Drawing {
 public:
  explicit Drawing(const Plot& plot) : plot_(plot) {
    DF_CHECK(plot.series.size() <= kColours.size());
    double x = 0, y = 0, least = INFINITY, largest = -INFINITY;
    for (const Series& series : plot.series) {
      for (const Point& point : series.points) {
        x = std::max(x, point.x);
        y = std::max(y, point.y);
        least = std::min(least, point.y);
        largest = std::max(largest, point.y);
      }
    }
    x_ = AxisFor(x > 0 ? x : 1);
    y_ = AxisFor(y > 0 ? y : 1);
    if (plot.fits_y && least <= largest) FitY(least, largest);
  }

  std::string Render() const {
    std::string svg = Text(kLeft, 26, "font-size=\"16\" font-weight=\"bold\"", plot_.title);
    svg += Axes();
    size_t place = 0;
    for (size_t i = 0; i < plot_.series.size(); ++i) {
      if (!plot_.series[i].points.empty()) svg += SeriesOf(plot_.series[i], kColours[i], place++);
    }
    return svg;
  }

 private:
  Point At(const Point& point) const {
    return {kLeft + point.x / x_.end * kPlotWidth,
            kTop + (1 - (point.y - y_begin_) / (y_.end - y_begin_)) * kPlotHeight};
  }

  void FitY(double least, double largest) {
    // One value alone stands in the middle of an axis around it.
    const double margin = largest > least ? 0 : std::max(0.01 * std::abs(least), 1e-6);
    y_.step = AxisFor(largest - least + 2 * margin).step;
    y_begin_ = std::floor((least - margin) / y_.step + 1e-9) * y_.step;
    y_.end = std::ceil((largest + margin) / y_.step - 1e-9) * y_.step;
  }

  std::string Axes() const {
    std::string svg;
    const auto n_ticks = static_cast<int>(std::lround((y_.end - y_begin_) / y_.step));
    for (int i = 0; i <= n_ticks; ++i) {
      const double y = y_begin_ + i * y_.step;
      svg += Line(At({0, y}), At({x_.end, y}), i == 0 ? "#444444" : "#dddddd");
      svg += Text(kLeft - 8, At({0, y}).y + 4, "font-size=\"12\" text-anchor=\"end\" fill=\"#444444\"", Number(y));
    }
    for (double x = 0; x <= x_.end * 1.0001; x += x_.step) {
      svg += Text(At({x, y_begin_}).x, kTop + kPlotHeight + 18,
                  "font-size=\"12\" text-anchor=\"middle\" fill=\"#444444\"", Number(x));
    }
    svg += Text(kLeft + kPlotWidth / 2, kHeight - 14, "font-size=\"13\" text-anchor=\"middle\"", plot_.x_label);
    const std::string middle = Number(kTop + kPlotHeight / 2);
    svg += Text(16, kTop + kPlotHeight / 2,
                "font-size=\"13\" text-anchor=\"middle\" transform=\"rotate(-90 16 " + middle + ")\"", plot_.y_label);
    return svg;
  }

  // The line with its points, and its name at `place` of the legend.
  std::string SeriesOf(const Series& series, const char* colour, size_t place) const {
    std::string points, dots;
    for (const Point& point : series.points) {
      const Point at = At(point);
      points += (points.empty() ? "" : " ") + Number(at.x) + "," + Number(at.y);
      dots += "<circle cx=\"" + Number(at.x) + "\" cy=\"" + Number(at.y) + "\" r=\"3.5\" fill=\"" + colour + "\"/>\n";
    }
    const size_t column = place % 3, line = place / 3;
    const double x = kLeft + 150 * static_cast<double>(column), y = 46 + 18 * static_cast<double>(line);
    return "<polyline points=\"" + points + "\" fill=\"none\" stroke=\"" + colour + "\" stroke-width=\"2\"/>\n" + dots +
           "<circle cx=\"" + Number(x + 5) + "\" cy=\"" + Number(y - 4) + "\" r=\"4\" fill=\"" + colour + "\"/>\n" +
           Text(x + 15, y, "font-size=\"12\"", series.name);
  }

  const Plot& plot_;
  Axis x_, y_;
  double y_begin_ = 0;
};

}  // namespace

Axis AxisFor(double largest) {
  constexpr double kMaxTicks = 6;
  const double raw = largest / kMaxTicks;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * 0.999999) {
      step = factor * power;
      break;
    }
  }
  return {.end = std::ceil(largest / step - 1e-9) * step, .step = step};
}

std::string RenderSvg(std::span<const Plot> plots) {
  const double width = kWidth * static_cast<double>(std::max<size_t>(plots.size(), 1));
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + Number(width) + "\" height=\"" +
                    Number(kHeight) + "\" viewBox=\"0 0 " + Number(width) + " " + Number(kHeight) +
                    "\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  for (size_t i = 0; i < plots.size(); ++i) {
    svg += "<g transform=\"translate(" + Number(kWidth * static_cast<double>(i)) + " 0)\">\n" +
           Drawing(plots[i]).Render() + "</g>\n";
  }
  return svg + "</svg>\n";
}

}  // namespace df::tools
