// SPDX-License-Identifier: Apache-2.0
// Key matching: which entries of a bucket hold a given key, or keys of given
// classes. Lookups and saves spend their time here, so a match is written for
// two instruction sets, and only this file knows which of them the CPU has.
//
//   WithFastestMatch([&](auto match) __attribute__((always_inline)) {
//     Loop<decltype(match)>(...);  // Always inlined, too.
//   });
//
// compiles the loop for both and runs the faster one that the CPU has.
#ifndef REC_ESTIMATOR_OPS_CORE_INDEX_KEY_MATCH_H_
#define REC_ESTIMATOR_OPS_CORE_INDEX_KEY_MATCH_H_

#include <cstddef>
#include <cstdint>
#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/index/bucket.h"

namespace rec_estimator {

// The key classes [begin, end).
struct KeyClassRange {
  KeyClassRange(int64_t begin, int64_t end)
      : begin(begin),
        n(end - begin),
        begin_as_float(static_cast<double>(begin)),
        n_as_float(static_cast<double>(n)) {}

  // The classes of the keys of a bucket's first line, minus `begin`. The number
  // of entry e is word[kFirst + e].
  struct alignas(kCacheLine) Numbers {
    static constexpr int kFirst = 3;
    int64_t word[kCacheLine / sizeof(int64_t)];
    int64_t of(int e) const { return word[kFirst + e]; }
  };
  static_assert(offsetof(Bucket, key) == Numbers::kFirst * sizeof(int64_t),
                "the keys are the last words of the first line");

  const int64_t begin;
  const int64_t n;
  const double begin_as_float;
  const double n_as_float;
};

// Runs on every CPU that TensorFlow runs on.
struct PortableMatch {
  // Bit e: entry e is used and holds `key`.
  static uint32_t Key(const Bucket* bucket, int64_t key) {
#if defined(__SSE4_1__)
    // As 128-bit words, a bucket's first line is: head and rows, the last row
    // and key 0, keys 1 and 2, keys 3 and 4.
    const __m128i wanted = _mm_set1_epi64x(key);
    const __m128i* line = reinterpret_cast<const __m128i*>(bucket);
    const auto equal = [&](int i) {
      return static_cast<uint32_t>(_mm_movemask_pd(
          _mm_castsi128_pd(_mm_cmpeq_epi64(_mm_load_si128(line + i), wanted))));
    };
    return ((equal(1) >> 1) | (equal(2) << 1) | (equal(3) << 3)) & bucket->used;
#else
    uint32_t match = 0;
    for (int e = 0; e < Bucket::kEntries; ++e) {
      match |= static_cast<uint32_t>(bucket->key[e] == key) << e;
    }
    return match & bucket->used;
#endif
  }

  // Bit e: the key of entry e, which may be unused, is in the range. Only the
  // numbers of such entries are valid.
  static uint32_t Classes(const Bucket* bucket, const KeyClassRange& range,
                          KeyClassRange::Numbers* numbers) {
    uint32_t match = 0;
    for (int e = 0; e < Bucket::kEntries; ++e) {
      const int64_t number = KeyClassOf(bucket->key[e]) - range.begin;
      numbers->word[KeyClassRange::Numbers::kFirst + e] = number;
      match |= static_cast<uint32_t>(static_cast<uint64_t>(number) <
                                     static_cast<uint64_t>(range.n))
               << e;
    }
    return match;
  }
};

#if defined(__SSE4_1__)
// The same results, from one comparison of the whole first line. Only code that
// is compiled for AVX-512 inlines these.
struct Avx512Match {
  __attribute__((target("avx512f"))) static inline uint32_t Key(
      const Bucket* bucket, int64_t key) {
    const __mmask8 equal = _mm512_cmpeq_epi64_mask(_mm512_load_si512(bucket),
                                                   _mm512_set1_epi64(key));
    return (static_cast<uint32_t>(equal) >> 3) & bucket->used;
  }

  // key = 2^32 high + low - 2^63 with 0 <= high, low < 2^32. So its class is
  // that of 296 high + low + 192, which is below 2^53: float64 holds it, and
  // the products and differences below, exactly.
  __attribute__((target("avx512f"))) static inline uint32_t Classes(
      const Bucket* bucket, const KeyClassRange& range,
      KeyClassRange::Numbers* numbers) {
    using Words = uint64_t __attribute__((vector_size(kCacheLine)));
    using Floats = double __attribute__((vector_size(kCacheLine)));
    static_assert(kKeyClasses == 1000, "2^32 is 296 and -2^63 is 192");
    const auto key = (Words)_mm512_load_si512(bucket) ^ (uint64_t{1} << 63);
    const Words high = key >> 32;
    const Words sum =
        (high << 8) + (high << 5) + (high << 3) + (key & 0xFFFFFFFF) + 192;
    // The bits of 2^52 + i, for i < 2^52, are those of 2^52 or i.
    const Floats big = Floats{} + 0x1p52;
    const auto bits_of_big = (Words)big;
    const Floats x = (Floats)(sum | bits_of_big) - big;
    // The nearest integer to x / 1000, or one of two that are as near.
    const Floats quotient = (x * 1e-3 + big) - big;
    const Floats rest = x - quotient * 1000;
    const Floats number =
        (rest < 0 ? rest + 1000 : rest) - range.begin_as_float;
    const __mmask8 in_range =
        _mm512_cmp_pd_mask(number, Floats{}, _CMP_GE_OQ) &
        _mm512_cmp_pd_mask(number, Floats{} + range.n_as_float, _CMP_LT_OQ);
    _mm512_store_si512(numbers->word,
                       (__m512i)((Words)(number + big) ^ bits_of_big));
    return static_cast<uint32_t>(in_range) >> KeyClassRange::Numbers::kFirst;
  }
};

template <typename Loop>
__attribute__((target("avx512f"))) void WithAvx512Match(const Loop& loop) {
  loop(Avx512Match());
}
#endif

// Calls loop(match), which must be inlined here.
template <typename Loop>
void WithFastestMatch(const Loop& loop) {
#if defined(__SSE4_1__)
  if (__builtin_cpu_supports("avx512f")) return WithAvx512Match(loop);
#endif
  loop(PortableMatch());
}

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_INDEX_KEY_MATCH_H_
