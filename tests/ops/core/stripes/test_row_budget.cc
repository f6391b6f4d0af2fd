// SPDX-License-Identifier: Apache-2.0
// RowBudget: which claims run beside each other, and which wait to be alone.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "ops/core/rows/row_store.h"
#include "ops/core/stripes/row_budget.h"
#include "ops/core/stripes/stripe_set.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

// The stripes of a table of `rows` rows. The rows themselves do not matter.
struct Rows {
  explicit Rows(int64_t rows) : store(1, 0.0f), stripes(&store, {}, {}) {
    stripes[0].AddToRows(rows - rows / 2);
    stripes[kStripes - 1].AddToRows(rows / 2);
  }

  RowStore store;
  StripeSet stripes;
};

TEST(ExcessIsWhatIsBeyondTheLimit) {
  const Rows rows(7);
  const RowBudget budget(rows.stripes, 10);
  EXPECT_EQ(budget.Excess(0), 0);
  EXPECT_EQ(budget.Excess(3), 0);
  EXPECT_EQ(budget.Excess(4), 1);
  EXPECT_EQ(budget.Excess(100), 97);
}

TEST(WithoutALimitEveryClaimIsCertain) {
  const Rows rows(7);
  RowBudget budget(rows.stripes, 0);
  const RowBudget::Claim one(&budget, int64_t{1} << 40);
  const RowBudget::Claim other(&budget, int64_t{1} << 40);
  EXPECT_TRUE(one.is_certain());
  EXPECT_TRUE(other.is_certain());
}

TEST(ClaimsThatFitTogetherRunBesideEachOther) {
  Rows rows(7);
  RowBudget budget(rows.stripes, 10);
  {
    const RowBudget::Claim one(&budget, 1);
    const RowBudget::Claim other(&budget, 2);
    EXPECT_TRUE(one.is_certain());
    EXPECT_TRUE(other.is_certain());
    rows.stripes[0].AddToRows(1);  // `one` uses its room, `other` does not.
  }
  EXPECT_TRUE(RowBudget::Claim(&budget, 2).is_certain());
  EXPECT_TRUE(!RowBudget::Claim(&budget, 3).is_certain());
  // A claim that was alone leaves nothing behind.
  EXPECT_TRUE(RowBudget::Claim(&budget, 2).is_certain());
}

TEST(ClaimThatMayNotFitWaitsUntilItIsAlone) {
  Rows rows(7);
  RowBudget budget(rows.stripes, 10);
  std::optional<RowBudget::Claim> first(std::in_place, &budget, 2);
  std::atomic<bool> has_ended{false};
  std::thread second([&] {
    const RowBudget::Claim claim(&budget, 2);
    EXPECT_TRUE(has_ended);
    EXPECT_TRUE(!claim.is_certain());
    EXPECT_EQ(budget.Excess(2), 1);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  rows.stripes[1].AddToRows(2);
  has_ended = true;
  first.reset();
  second.join();
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
