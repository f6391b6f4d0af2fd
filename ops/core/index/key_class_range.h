// SPDX-License-Identifier: Apache-2.0
// The entries of an index whose keys are of some key classes. A save looks for
// them many times, each time for other classes.
#ifndef REC_ESTIMATOR_OPS_CORE_INDEX_KEY_CLASS_RANGE_H_
#define REC_ESTIMATOR_OPS_CORE_INDEX_KEY_CLASS_RANGE_H_

#include <cstddef>
#include <cstdint>
#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

#include "ops/core/base/cpu_memory.h"
#include "ops/core/base/key_hash.h"
#include "ops/core/index/hash_index.h"

namespace rec_estimator {

// The key classes [begin, end).
class KeyClassRange {
 public:
  KeyClassRange(int64_t begin, int64_t end)
      : begin_(begin),
        n_(end - begin),
        begin_as_float_(static_cast<double>(begin_)),
        n_as_float_(static_cast<double>(n_)) {}

  // The classes of the keys of a bucket's first line, minus `begin`. That of
  // entry e is word[kFirst + e].
  struct alignas(kCacheLine) Numbers {
    static constexpr int kFirst = 3;
    int64_t word[kCacheLine / sizeof(int64_t)];
    int64_t of(int e) const { return word[kFirst + e]; }
  };
  using Matcher = uint32_t(const KeyClassRange& range, const Bucket& bucket,
                           Numbers* numbers);

  // Bit e: the key of entry e, which may be unused, is in the range. Only the
  // numbers of such entries are valid. Runs on every CPU that TensorFlow runs
  // on.
  static uint32_t Match(const KeyClassRange& range, const Bucket& bucket,
                        Numbers* numbers) {
    uint32_t match = 0;
    for (int e = 0; e < HashIndex::kEntries; ++e) {
      const int64_t number = KeyClassOf(bucket.key[e]) - range.begin_;
      numbers->word[Numbers::kFirst + e] = number;
      match |= static_cast<uint32_t>(static_cast<uint64_t>(number) <
                                     static_cast<uint64_t>(range.n_))
               << e;
    }
    return match;
  }

#if defined(__SSE4_1__)
  using Words = uint64_t __attribute__((vector_size(kCacheLine)));
  using Floats = double __attribute__((vector_size(kCacheLine)));

  // The same for the whole line at once. The caller is compiled for the same
  // target and has checked HashIndex::HasWideMatch().
  //
  // key = 2^32 high + low - 2^63 with 0 <= high, low < 2^32. So it has the
  // bucket of 296 high + low + 192, which is below 2^53: float64 holds it, and
  // the products and differences below, exactly.
  __attribute__((target("avx512f"))) static inline uint32_t MatchWide(
      const KeyClassRange& range, const Bucket& bucket, Numbers* numbers) {
    static_assert(kKeyClasses == 1000, "2^32 is 296 and -2^63 is 192");
    const auto key = (Words)_mm512_load_si512(&bucket) ^ (uint64_t{1} << 63);
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
        (rest < 0 ? rest + 1000 : rest) - range.begin_as_float_;
    const __mmask8 in_range =
        _mm512_cmp_pd_mask(number, Floats{}, _CMP_GE_OQ) &
        _mm512_cmp_pd_mask(number, Floats{} + range.n_as_float_, _CMP_LT_OQ);
    _mm512_store_si512(numbers->word,
                       (__m512i)((Words)(number + big) ^ bits_of_big));
    return static_cast<uint32_t>(in_range) >> Numbers::kFirst;
  }
#endif

 private:
  const int64_t begin_;
  const int64_t n_;
  const double begin_as_float_;
  const double n_as_float_;
};

// Calls visit(bucket, entry, number) for the entries of a bucket whose keys are
// in the range; of entries that did not change since the last save, only if
// !only_changed.
template <KeyClassRange::Matcher* kMatch, typename Visit>
inline __attribute__((always_inline)) void VisitMatches(
    const Bucket& bucket, const KeyClassRange& range, bool only_changed,
    KeyClassRange::Numbers* numbers, const Visit& visit) {
  // Without a jump for each key: most are of other buckets.
  uint32_t match = kMatch(range, bucket, numbers);
  if (match == 0) return;
  match &= bucket.used;
  if (only_changed) {
    match &= bucket.changes | bucket.changes >> HashIndex::kEntries;
  }
  for (; match != 0; match &= match - 1) {
    const int e = __builtin_ctz(match);
    visit(bucket, e, numbers->of(e));
  }
}

template <KeyClassRange::Matcher* kMatch, typename Visit>
inline __attribute__((always_inline)) void ForEachMatch(const HashIndex& index,
                                                        KeyClassRange range,
                                                        bool only_changed,
                                                        const Visit& visit) {
  // Beyond the ends of pages of 4 KiB, where the CPU does not prefetch.
  constexpr size_t kBucketsAhead = 32;
  KeyClassRange::Numbers numbers;
  for (const Bucket& bucket : index) {
    PrefetchLine(&bucket + kBucketsAhead);
    VisitMatches<kMatch>(bucket, range, only_changed, &numbers, visit);
  }
}

#if defined(__SSE4_1__)
template <typename Visit>
__attribute__((target("avx512f"))) void ForEachMatchWide(
    const HashIndex& index, const KeyClassRange& range, bool only_changed,
    const Visit& visit) {
  ForEachMatch<KeyClassRange::MatchWide>(index, range, only_changed, visit);
}
#endif

// The same for all entries of an index.
template <typename Visit>
void ForEachInRange(const HashIndex& index, const KeyClassRange& range,
                    bool only_changed, const Visit& visit) {
#if defined(__SSE4_1__)
  if (HashIndex::HasWideMatch()) {
    return ForEachMatchWide(index, range, only_changed, visit);
  }
#endif
  ForEachMatch<KeyClassRange::Match>(index, range, only_changed, visit);
}

static_assert(offsetof(Bucket, key) ==
                  KeyClassRange::Numbers::kFirst * sizeof(int64_t),
              "the keys are the last words of the first line");

}  // namespace rec_estimator

#endif  // REC_ESTIMATOR_OPS_CORE_INDEX_KEY_CLASS_RANGE_H_
