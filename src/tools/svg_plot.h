// Line plots as SVG text: small, readable on paper and screen, no scripts, no fonts of their own.
#ifndef DELTAFOLD_TOOLS_SVG_PLOT_H_
#define DELTAFOLD_TOOLS_SVG_PLOT_H_

#include <span>
#include <string>
#include <vector>

namespace df::tools {

struct Point {
  double x = 0;
  double y = 0;
};

struct Series {
  std::string name;
  std::vector<Point> points;  // ascending x, finite
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<Series> series;  // at most 6
  bool fits_y = false;         // the y axis spans the points instead of starting at 0
};

// The plots side by side. Axes start at 0, unless a plot says otherwise; every text is escaped; series without points
// are left out.
std::string RenderSvg(std::span<const Plot> plots);

// The upper end of an axis that holds `largest` > 0, and the distance of its ticks: 1, 2 or 5 times a power of ten, at
// most 6 of them.
struct Axis {
  double end = 0;
  double step = 0;
};
Axis AxisFor(double largest);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_SVG_PLOT_H_
