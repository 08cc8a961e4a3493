#include "server/error_map.h"

#include <gtest/gtest.h>

namespace df::server {
namespace {

TEST(ErrorMap, TakesPathsOutOfMessages) {
  for (const auto& [message, clean] :
       {std::pair{"/srv/v/sql/delta_config.json: byte 3 is no JSON", "delta_config.json: byte 3 is no JSON"},
        std::pair{"cannot open \"/etc/shadow\": denied", "cannot open \"shadow\": denied"},
        std::pair{"variants/sql/delta.safetensors (tensor a) is short", "delta.safetensors (tensor a) is short"},
        std::pair{"../x, ./y and ~/z", "x, y and z"},
        std::pair{"variant org/name: made for base ab/12 bytes/s", "variant org/name: made for base ab/12 bytes/s"},
        std::pair{"", ""}, std::pair{"/", ""}}) {
    EXPECT_EQ(WithoutPaths(message), clean);
  }
  EXPECT_EQ(WithoutPaths("/srv/my variants/a b/x.json: bad; see /srv/my variants/a b", "/srv/my variants/a b"),
            "x.json: bad; see its directory");
  EXPECT_EQ(WithoutPaths("the delta in /srv/a was made for another base: it needs fingerprint f", "/srv/a"),
            "the delta in its directory was made for another base: it needs fingerprint f");
}

TEST(ErrorMap, AnswersForAVariantThatCannotBeLoadedWithTheCauseAndNoPath) {
  for (const Status& status :
       {Corrupt("/srv/x/a.json: bad"), NotFound("/srv/x/a.json: bad"), Unavailable("/srv/x/a.json: bad"),
        FailedPrecondition("/srv/x/a.json: bad"), ResourceExhausted("/srv/x/a.json: bad"),
        Unsupported("/srv/x/a.json: bad"), Status(StatusCode::kIo, "/srv/x/a.json: bad")}) {
    const ApiError error = GenerationFailure(status, "sql");
    EXPECT_EQ(error.status, 503);
    EXPECT_EQ(error.code, "model_unavailable");
    EXPECT_EQ(error.message, "The model `sql` cannot answer now: a.json: bad");
  }
  const Status gone = Unavailable("the variant \"sql\" cannot be served now: generation_gone: its files were changed");
  EXPECT_EQ(GenerationFailure(gone, "sql").status, 503);
  EXPECT_EQ(GenerationFailure(gone, "sql").code, "generation_gone");
  EXPECT_EQ(GenerationFailure(gone, "sql").message, "The model `sql` cannot answer now: its files were changed");
  const Status kept_out = Unavailable("the variant \"sql\" cannot be served now: what is pinned leaves no room for it");
  EXPECT_EQ(GenerationFailure(kept_out, "sql").message,
            "The model `sql` cannot answer now: what is pinned leaves no room for it");
  EXPECT_EQ(GenerationFailure(Internal("x"), "sql").status, 500);
  EXPECT_EQ(GenerationFailure(DeadlineExceeded("x"), "sql").status, 504);
}

}  // namespace
}  // namespace df::server
