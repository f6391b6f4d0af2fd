// SPDX-License-Identifier: Apache-2.0
// PageFormat: which pages rows of a width get.
#include <cstddef>
#include <cstdint>

#include "ops/core/storage/page.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr size_t kSegment = size_t{1} << 20;

TEST(RowsOfSixteenFloatsAndASlotTakePagesOfThirty) {
  const PageFormat format(32, kSegment, UINT32_MAX);
  EXPECT_EQ(format.bytes, size_t{4096});
  EXPECT_EQ(format.rows_per_page, 30u);
  EXPECT_EQ(format.rows, 256u * 30);
}

TEST(PagesOfEveryWidthHoldTheirRowsAndLoseLittle) {
  for (size_t floats = 1; floats < 40000; ++floats) {
    const PageFormat format(floats, 16 * PageFormat::BytesFor(floats),
                            UINT32_MAX);
    const size_t used = format.rows_per_page * format.row_bytes;
    EXPECT_TRUE(format.rows_per_page > 0);
    EXPECT_TRUE(PageFormat::kHeader + used <= format.bytes);
    EXPECT_EQ(format.bytes % kDiskBlock, size_t{0});
    // Mostly an eighth at most.
    EXPECT_TRUE(4 * (format.bytes - used) <= format.bytes);
  }
}

TEST(ASegmentOfWiderRowsHasNoMorePlaces) {
  EXPECT_EQ(PageFormat(10, kSegment, 100).rows, 100u);
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
