// SPDX-License-Identifier: Apache-2.0
#include "ops/core/table/hand_over_policy.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr int kVain = HandOverPolicy::kVain;

TEST(LookupsBeginToHandOverAfterTheFirstStep) {
  HandOverPolicy policy;
  EXPECT_TRUE(!policy.IsOn());
  policy.NoteStep(false);
  EXPECT_TRUE(policy.IsOn());
}

TEST(LookupsGoOnAsLongAsStepsUseThem) {
  HandOverPolicy policy;
  policy.NoteStep(false);
  for (int step = 0; step < 3 * kVain; ++step) {
    EXPECT_TRUE(policy.IsOn());
    policy.NoteLookup();
    policy.NoteStep(true);
  }
  EXPECT_TRUE(policy.IsOn());
}

TEST(LookupsEndForGoodAfterManyStepsInARowThatCouldNotUseThem) {
  HandOverPolicy policy;
  policy.NoteStep(false);
  for (int step = 1; step < kVain; ++step) {
    EXPECT_TRUE(policy.IsOn());
    policy.NoteLookup();
    policy.NoteStep(false);
  }
  EXPECT_TRUE(!policy.IsOn());
  policy.NoteLookup();
  policy.NoteStep(true);
  EXPECT_TRUE(!policy.IsOn());
}

TEST(AStepThatUsesThemStartsTheCountAnew) {
  HandOverPolicy policy;
  policy.NoteStep(false);
  for (int step = 1; step < 4 * kVain; ++step) {
    policy.NoteLookup();
    policy.NoteStep(step % (kVain - 1) == 0);
    EXPECT_TRUE(policy.IsOn());
  }
}

TEST(StepsWithoutLookupsMissNothing) {
  HandOverPolicy policy;
  for (int step = 0; step < 3 * kVain; ++step) policy.NoteStep(false);
  EXPECT_TRUE(policy.IsOn());
}

TEST(LookupsPauseUntilAStepFollows) {
  HandOverPolicy policy;
  policy.NoteStep(false);
  for (int lookup = 0; lookup < kVain; ++lookup) {
    EXPECT_TRUE(policy.IsOn());
    policy.NoteLookup();
  }
  EXPECT_TRUE(!policy.IsOn());
  policy.NoteStep(true);
  EXPECT_TRUE(policy.IsOn());
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
