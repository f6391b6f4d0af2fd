// SPDX-License-Identifier: Apache-2.0
// RowFormat: how values and slots of all types lie in a row, and their random
// bits.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ops/core/rows/row_format.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

constexpr ValueSpec kNarrowSlots = {ValueType::kFloat32, 7, true};

// What a slot reads after a step has written `from`.
std::vector<float> Trained(const RowFormat& format,
                           const std::vector<float>& from, size_t number,
                           uint64_t noise) {
  const int width = static_cast<int>(from.size());
  std::vector<float> stored(format.slot_words(width), 1.0f), read(width);
  format.WithTrained([&](const auto& trained) __attribute__((always_inline)) {
    trained.WriteSlot(from.data(), width, number, noise, stored.data());
  });
  format.ReadSlot(stored.data(), width, read.data());
  return read;
}

void WriteTrained(const RowFormat& format, const std::vector<float>& value,
                  uint64_t noise, float* row) {
  format.WithTrained([&](const auto& trained) __attribute__((always_inline)) {
    trained.WriteValue(value.data(), noise, row);
  });
}

TEST(NarrowSlotsFillHalfOfTheWordsAndTheRestOfTheLastWordIsZero) {
  const RowFormat format(5, kNarrowSlots);
  EXPECT_EQ(format.slot_words(16), 8);
  EXPECT_EQ(format.slot_words(5), 3);
  const std::vector<float> slot = {1, -2, 0.5, 4, 1.25};
  std::vector<float> stored(3, -7.0f), read(5);
  format.WriteSlot(slot.data(), 5, stored.data());
  format.ReadSlot(stored.data(), 5, read.data());
  EXPECT_TRUE(read == slot);
  const auto* bits = reinterpret_cast<const NarrowFloat*>(stored.data());
  EXPECT_EQ(bits[5], 0);
}

TEST(ASlotOfOneNumberIsAFloatAndSoAreAllSlotsWithoutNarrowOnes) {
  const std::vector<float> exact(1, 1.0f / 3);
  EXPECT_TRUE(Trained(RowFormat(8, kNarrowSlots), exact, 0, 1) == exact);
  const RowFormat narrow_values(8, {ValueType::kBFloat16, 7});
  EXPECT_EQ(narrow_values.slot_words(8), 8);
  const std::vector<float> all(8, 1.0f / 3);
  EXPECT_TRUE(Trained(narrow_values, all, 0, 1) == all);
}

TEST(ValuesOfFloatsAreStoredAsTheyAre) {
  const RowFormat format(3, kNarrowSlots);
  EXPECT_TRUE(!format.is_narrow());
  const std::vector<float> value(3, 1.0f / 3);
  std::vector<float> row(3);
  WriteTrained(format, value, 9, row.data());
  EXPECT_TRUE(row == value);
}

TEST(TrainedRowsReadAsOthersAndTheRestOfTheLastWordIsZero) {
  for (const ValueType type :
       {ValueType::kFloat32, ValueType::kBFloat16, ValueType::kHalf}) {
    for (int dim = 1; dim <= 20; ++dim) {
      const RowFormat format(dim, {type, 7, true});
      std::vector<float> value(dim, -0.375f), row(format.value_words(), 1.0f);
      WriteTrained(format, value, 9, row.data());
      std::vector<float> read(dim), trained_read(dim);
      format.ReadValue(row.data(), read.data());
      format.WithTrained([&](
          const auto& trained) __attribute__((always_inline)) {
        EXPECT_EQ(trained.value_words(), format.value_words());
        trained.ReadValue(row.data(), trained_read.data());
      });
      EXPECT_TRUE(read == value);
      EXPECT_TRUE(trained_read == value);
      if (type == ValueType::kFloat32 || dim % 2 == 0) continue;
      EXPECT_EQ(reinterpret_cast<const NarrowFloat*>(row.data())[dim], 0);
    }
  }
}

TEST(EachSlotHasRandomBitsOfItsOwnAndTheMeanOfRoundedNumbersIsRight) {
  constexpr int kWidth = 64;
  const RowFormat format(kWidth, {ValueType::kBFloat16, 7, true});
  // In the middle between two neighbours.
  const std::vector<float> slot(kWidth, 1.0f + 1.0f / 256);
  std::vector<float> row(kWidth / 2), value(kWidth);
  WriteTrained(format, slot, 3, row.data());
  format.ReadValue(row.data(), value.data());
  const std::vector<float> first = Trained(format, slot, 0, 3);
  EXPECT_TRUE(first == Trained(format, slot, 0, 3));
  EXPECT_TRUE(first != value);
  EXPECT_TRUE(first != Trained(format, slot, 1, 3));
  EXPECT_TRUE(first != Trained(format, slot, 0, 4));
  double mean = 0;
  for (uint64_t noise = 0; noise < 100; ++noise) {
    for (const float x : Trained(format, slot, noise % 3, noise)) {
      mean += x / 100.0 / kWidth;
    }
  }
  EXPECT_TRUE(std::abs(mean - slot[0]) < 1e-3);
}

// The place of the first of three numbers that rows of the type cannot hold.
int FirstLost(ValueType type, float a, float b, float c) {
  const float value[] = {a, b, c};
  return ValueRounding(RowFormat(3, {type})).FirstLost(value);
}

TEST(NumbersThatRowsCannotHoldAreFoundAmongFiniteOnes) {
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(FirstLost(ValueType::kFloat32, kMost, -kMost, 0), -1);
  // 65504 and half of the distance to the next number.
  const float half = 65520, below_half = std::nextafter(half, 0.0f);
  EXPECT_EQ(FirstLost(ValueType::kHalf, 65504, below_half, -below_half), -1);
  EXPECT_EQ(FirstLost(ValueType::kHalf, 1, -half, kMost), 1);
  const float bfloat = std::ldexp(511.0f, 119),
              below = std::nextafter(bfloat, 0.0f);
  EXPECT_EQ(FirstLost(ValueType::kBFloat16, below, -below, 0), -1);
  EXPECT_EQ(FirstLost(ValueType::kBFloat16, 0, 1, bfloat), 2);
  EXPECT_EQ(FirstLost(ValueType::kBFloat16, -kMost, 1, 1), 0);
  EXPECT_EQ(FirstLost(ValueType::kInt8, kMost / 2, 1, 2), -1);
  EXPECT_EQ(FirstLost(ValueType::kInt8, kMost, -kMost, 2), 0);
  for (const ValueType type : {ValueType::kHalf, ValueType::kInt8}) {
    EXPECT_EQ(FirstLost(type, kInfinity, 1, 1), -1);
    EXPECT_EQ(FirstLost(type, 1, std::nanf(""), 1), -1);
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
