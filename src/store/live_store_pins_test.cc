// What pins keep out, and how that is said.
#include <string>

#include "store/live_store_fixture.h"
#include "testing/refusal.h"

namespace df {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

TEST_F(LiveStoreTest, SaysWhatPinsKeepOutWithTheFigures) {
  const uint64_t pinned = BytesOf("delta2"), own = BytesOf("delta"), budget = pinned + own - 1;
  const auto store = Make({.budget_bytes = budget});
  const auto math = ValueOrDie(store->Register("math", Path("delta"), {}));
  ValueOrDie(store->Register("code", Path("delta2"), {}));
  DF_EXPECT_OK(StatusFor(*store, "math").failure);
  DF_EXPECT_OK(store->Pin("code", ""));
  ASSERT_TRUE(Eventually([&] { return StatusFor(*store, "code").state == ResidencyState::kResident; }));
  const VariantStatus row = StatusFor(*store, "math");
  EXPECT_EQ(row.state, ResidencyState::kRegistered);
  for (const Status& status : {row.failure, store->Prefetch("math", "")}) {
    ExpectRefusal(status, StatusCode::kResourceExhausted,
                  {std::to_string(own), std::to_string(pinned), std::to_string(budget), "pinned", "--variant-bytes"});
  }
  const LeaseAttempt refused = Ask(*math);  // what a client reads: no figures, but the reason
  EXPECT_EQ(refused.failure.code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.failure.message().find("pinned leaves no room"), std::string::npos) << refused.failure.message();
  DF_EXPECT_OK(StatusFor(*store, "code").failure);
  DF_EXPECT_OK(store->Unpin("code", ""));
  DF_EXPECT_OK(StatusFor(*store, "math").failure);
  DF_EXPECT_OK(store->Prefetch("math", ""));
  EXPECT_TRUE(WaitFor(*math).granted());
}

}  // namespace
}  // namespace df
