// SPDX-License-Identifier: Apache-2.0
#include "ops/core/base/crc32c.h"

#include <array>
#include <cstring>
#if defined(__SSE4_2__)
#include <nmmintrin.h>
#endif

namespace rec_estimator {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // Reflected.
// Bytes of a lane. Three of them are a page of 4 KiB without its header. The
// shifts of a block cost a twentieth of its time.
constexpr size_t kLane = 1360;

// Entry b: the register b after one zero byte.
using Table = std::array<uint32_t, 256>;

constexpr Table MakeByteTable() {
  Table table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ ((crc & 1) != 0 ? kPolynomial : 0);
    }
    table[byte] = crc;
  }
  return table;
}
constexpr Table kByte = MakeByteTable();

#if defined(__SSE4_2__)

// A linear map of registers: column b is the image of bit b.
using Columns = std::array<uint32_t, 32>;

constexpr uint32_t Apply(const Columns& columns, uint32_t crc) {
  uint32_t result = 0;
  for (int bit = 0; bit < 32; ++bit) {
    if ((crc >> bit & 1) != 0) result ^= columns[bit];
  }
  return result;
}

// The map that applies `first`, then `then`.
constexpr Columns Chain(const Columns& first, const Columns& then) {
  Columns columns{};
  for (int bit = 0; bit < 32; ++bit) columns[bit] = Apply(then, first[bit]);
  return columns;
}

// The map of kLane zero bytes, from those of one byte, two, four and so on.
constexpr Columns MakeShift() {
  Columns shift{}, zeros{};
  for (int bit = 0; bit < 32; ++bit) {
    const uint32_t crc = uint32_t{1} << bit;
    shift[bit] = crc;
    zeros[bit] = crc >> 8 ^ kByte[crc & 255];
  }
  for (size_t bytes = kLane; bytes > 0; bytes /= 2) {
    if (bytes % 2 == 1) shift = Chain(shift, zeros);
    zeros = Chain(zeros, zeros);
  }
  return shift;
}

constexpr std::array<Table, 4> MakeShiftTables() {
  const Columns shift = MakeShift();
  std::array<Table, 4> tables{};
  for (int at = 0; at < 4; ++at) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      tables[at][byte] = Apply(shift, byte << 8 * at);
    }
  }
  return tables;
}
constexpr std::array<Table, 4> kShift = MakeShiftTables();

uint64_t Shift(uint64_t crc) {
  return kShift[0][crc & 255] ^ kShift[1][crc >> 8 & 255] ^
         kShift[2][crc >> 16 & 255] ^ kShift[3][crc >> 24 & 255];
}

uint64_t WordAt(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

#endif

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc, const void* bytes, size_t n) {
  const char* p = static_cast<const char*>(bytes);
  const char* const end = p + n;
  uint32_t last = ~crc;
#if defined(__SSE4_2__)
  uint64_t a = last;
  while (static_cast<size_t>(end - p) >= 3 * kLane) {
    uint64_t b = 0, c = 0;
    for (const char* stop = p + kLane; p < stop; p += sizeof(uint64_t)) {
      a = _mm_crc32_u64(a, WordAt(p));
      b = _mm_crc32_u64(b, WordAt(p + kLane));
      c = _mm_crc32_u64(c, WordAt(p + 2 * kLane));
    }
    a = Shift(Shift(a) ^ b) ^ c;
    p += 2 * kLane;
  }
  for (; end - p >= 8; p += 8) a = _mm_crc32_u64(a, WordAt(p));
  last = static_cast<uint32_t>(a);
#endif
  for (; p < end; ++p) {
    last = last >> 8 ^ kByte[(last ^ static_cast<unsigned char>(*p)) & 255];
  }
  return ~last;
}

}  // namespace rec_estimator
