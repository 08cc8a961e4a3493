#include "cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "cli/table.h"

namespace df::cli {
namespace {

constexpr size_t kBarColumns = 24;
constexpr int64_t kRedrawUs = 100'000;
constexpr std::string_view kClearLine = "\r\x1b[K";

bool StderrIsTerminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

size_t TerminalColumns() {
  struct winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

// "compress  [=====>    ]  52 %".
std::string Bar(std::string_view label, uint64_t done, uint64_t total) {
  const double share = total == 0 ? 0.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const auto filled = static_cast<size_t>(share * static_cast<double>(kBarColumns));
  return std::string(label) + "  [" + std::string(filled, '=') + std::string(kBarColumns - filled, ' ') + "] " +
         FormatFixed(share * 100, 0) + " %";
}

}  // namespace

std::string ProgressLine(std::string_view label, const ProgressState& state, double elapsed_s, size_t width) {
  std::string line = Bar(label, state.done_bytes, state.total_bytes) + "  " + std::to_string(state.done_items) + "/" +
                     std::to_string(state.total_items) + " tensors  " + FormatBytes(state.done_bytes) + " of " +
                     FormatBytes(state.total_bytes);
  if (elapsed_s > 0 && state.done_bytes > 0) {
    const double rate = static_cast<double>(state.done_bytes) / elapsed_s;
    const double left = static_cast<double>(state.total_bytes - std::min(state.done_bytes, state.total_bytes)) / rate;
    line += "  " + FormatBytes(static_cast<uint64_t>(rate)) + "/s  ETA " + FormatDuration(left);
  }
  return line.substr(0, width);
}

Progress::Progress(std::string label)
    : label_(std::move(label)), start_us_(clock_.NowUs()), is_terminal_(StderrIsTerminal()) {}

Progress::~Progress() {
  if (drawn_us_ != 0) std::cerr << kClearLine << std::flush;
}

bool Progress::IsDue(int64_t now_us) {
  if (!is_terminal_ || (drawn_us_ != 0 && now_us - drawn_us_ < kRedrawUs)) return false;
  drawn_us_ = now_us;
  return true;
}

void Progress::Update(const ProgressState& state) {
  const int64_t now_us = clock_.NowUs();
  if (!IsDue(now_us)) return;
  const double elapsed_s = static_cast<double>(now_us - start_us_) * 1e-6;
  std::cerr << kClearLine << ProgressLine(label_, state, elapsed_s, TerminalColumns() - 1) << std::flush;
}

void Progress::Update(std::string_view what, uint64_t done, uint64_t total) {
  if (!IsDue(clock_.NowUs())) return;
  const std::string line = Bar(label_, done, total) + "  " + Printable(what);
  std::cerr << kClearLine << line.substr(0, TerminalColumns() - 1) << std::flush;
}

}  // namespace df::cli
