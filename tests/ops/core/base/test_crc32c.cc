// SPDX-License-Identifier: Apache-2.0
// ExtendCrc32c, compared with values of the standard and with its definition.
#include <cstdint>
#include <string>
#include <vector>

#include "ops/core/base/crc32c.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

// The definition of the polynomial, one bit at a time.
uint32_t Slowly(uint32_t crc, const std::vector<unsigned char>& bytes,
                size_t begin, size_t end) {
  crc = ~crc;
  for (size_t i = begin; i < end; ++i) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82F63B78 : 0);
    }
  }
  return ~crc;
}

TEST(KnownStringsHaveTheValuesOfTheStandard) {
  // RFC 3720, B.4.
  EXPECT_EQ(ExtendCrc32c(0, std::string(32, '\0').data(), 32), 0x8A9136AAu);
  EXPECT_EQ(ExtendCrc32c(0, std::string(32, '\xFF').data(), 32), 0x62A8AB43u);
  EXPECT_EQ(ExtendCrc32c(0, "123456789", 9), 0xE3069283u);
  EXPECT_EQ(ExtendCrc32c(7, nullptr, 0), 7u);
}

TEST(EveryLengthAndAlignmentMatchesTheBitwiseDefinition) {
  std::vector<unsigned char> bytes(25000);
  uint32_t random = 1;
  for (unsigned char& byte : bytes) {
    random = random * 1664525 + 1013904223;
    byte = static_cast<unsigned char>(random >> 24);
  }
  const auto check = [&](uint32_t crc, size_t begin, size_t n) {
    EXPECT_EQ(ExtendCrc32c(crc, bytes.data() + begin, n),
              Slowly(crc, bytes, begin, begin + n));
  };
  for (size_t n = 0; n < 70; ++n) check(0, n % 9, n);
  // Around one, two and three blocks of three lanes.
  for (const size_t blocks : {1, 2, 3, 6}) {
    for (size_t n = 4080 * blocks - 17; n < 4080 * blocks + 17; ++n) {
      check(random + static_cast<uint32_t>(n), n % 8, n);
    }
  }
}

TEST(ExtendingByPartsEqualsOneCall) {
  std::vector<unsigned char> bytes(10000);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<unsigned char>(i * i >> 3);
  }
  const uint32_t whole = ExtendCrc32c(0, bytes.data(), bytes.size());
  for (size_t cut = 0; cut <= bytes.size(); cut += 331) {
    const uint32_t first = ExtendCrc32c(0, bytes.data(), cut);
    EXPECT_EQ(ExtendCrc32c(first, bytes.data() + cut, bytes.size() - cut),
              whole);
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
