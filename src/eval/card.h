// What an evaluation measured, written into the model card of the delta that it measured: a table between two marks, so
// that the next evaluation replaces it and nothing else of the card.
#ifndef DELTAFOLD_EVAL_CARD_H_
#define DELTAFOLD_EVAL_CARD_H_

#include <string>
#include <string_view>

#include "base/status.h"
#include "eval/report.h"

namespace df::eval {

// How it was measured, for who reads the card.
struct CardFacts {
  std::string text;     // name of the text; "" = none
  std::string program;  // "deltafold 1.2"
};

// The table in Markdown, its marks included. `full` is the row of the full fine-tune, null without one.
std::string MeasuredSection(const ReportRow& row, const ReportRow* full, const CardFacts& facts);

// `card` with `section` in place of what stands between the first opening mark and the closing one behind it; at the
// end where there is no such pair.
std::string WithSection(std::string_view card, std::string_view section);

// The rows of `report` that were measured on a delta, each into the README.md of its directory, which appears whole or
// stays as it was. No digest of a delta covers its card. The only errors are those of reading and writing it, naming
// the file.
Status WriteCards(const Report& report, const CardFacts& facts);
// Whether the cards of `directory` could be written: asked before minutes of measuring.
Status CheckCardOf(const std::string& directory);

}  // namespace df::eval

#endif  // DELTAFOLD_EVAL_CARD_H_
