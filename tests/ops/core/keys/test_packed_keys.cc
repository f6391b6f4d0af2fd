// SPDX-License-Identifier: Apache-2.0
// KeyPacker and PackedKeys: against a plain map, from hostile words, and as the
// batch of a step. Also the rows that occurrences of a key share.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <unordered_map>
#include <vector>

#include "ops/core/keys/packed_keys.h"
#include "ops/core/math/gradient_sum.h"
#include "ops/core/math/indexed_rows.h"
#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/contents.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/testing.h"
#include "tests/ops/core/threads.h"

namespace rec_estimator {
namespace {

struct List {
  std::vector<int64_t> keys;
  uint32_t section;
  KeyUse use;
  std::vector<int32_t> index;
};

std::vector<int64_t> Pack(std::vector<List>* lists, uint32_t sections,
                          const ParallelFor& parallel = SerialFor) {
  std::vector<KeyList> raw;
  for (List& list : *lists) {
    list.index.assign(list.keys.size(), -1);
    raw.push_back({list.keys.data(), list.keys.size(), list.section, list.use,
                   list.index.data()});
  }
  KeyPacker packer;
  EXPECT_TRUE(packer.Pack(raw, sections, parallel));
  std::vector<int64_t> packed(packer.words(), 77);
  packer.Write(packed.data());
  return packed;
}

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(EachDistinctKeyIsThereOnceWithItsOccurrences) {
  std::vector<List> lists = {{{7, kMin, 7}, 1, KeyUse::kGradient, {}},
                             {{5, 9}, 1, KeyUse::kRead, {}},
                             {{kMax, 7, kMax}, 1, KeyUse::kCounted, {}},
                             {{}, 0, KeyUse::kGradient, {}},
                             {{-1, 7}, 1, KeyUse::kGradient, {}}};
  const std::vector<int64_t> packed = Pack(&lists, 2);
  PackedKeys keys;
  EXPECT_TRUE(keys.Open(packed.data(), packed.size(), 2));
  EXPECT_EQ(keys[0].size(), 0u);
  const PackedKeys::Section& one = keys[1];
  EXPECT_EQ(one.n_gradient, 3u);
  EXPECT_EQ(one.n_counted, 1u);
  EXPECT_EQ(one.n_read, 2u);
  const std::vector<int64_t> expected = {7, kMin, -1, kMax, 5, 9};
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), one.keys));
  const std::vector<uint32_t> counts = {4, 1, 1, 2};
  EXPECT_TRUE(std::equal(counts.begin(), counts.end(), one.counts));
  EXPECT_TRUE(lists[0].index == (std::vector<int32_t>{0, 1, 0}));
  EXPECT_TRUE(lists[1].index == (std::vector<int32_t>{4, 5}));
  EXPECT_TRUE(lists[2].index == (std::vector<int32_t>{3, 0, 3}));
  EXPECT_TRUE(lists[4].index == (std::vector<int32_t>{2, 0}));
}

TEST(RandomListsEqualAPlainMapOnAnyThreads) {
  std::mt19937_64 random(1);
  Threads threads(3);
  for (int round = 0; round < 30; ++round) {
    const uint32_t sections = 1 + random() % 5;
    std::vector<List> lists(random() % 9);
    for (List& list : lists) {
      list.section = random() % sections;
      list.use = static_cast<KeyUse>(random() % 3);
      list.keys.resize(random() % 3000);
      for (int64_t& key : list.keys) key = random() % 700;
    }
    const std::vector<int64_t> packed =
        Pack(&lists, sections, threads.parallel());
    PackedKeys keys;
    EXPECT_TRUE(keys.Open(packed.data(), packed.size(), sections));
    std::vector<std::unordered_map<int64_t, uint32_t>> counts(sections);
    for (const List& list : lists) {
      const PackedKeys::Section& section = keys[list.section];
      for (size_t i = 0; i < list.keys.size(); ++i) {
        EXPECT_EQ(section.keys[list.index[i]], list.keys[i]);
        if (list.use == KeyUse::kRead) continue;
        ++counts[list.section][list.keys[i]];
        const uint64_t end = list.use == KeyUse::kGradient
                                 ? section.n_gradient
                                 : section.n_gradient + section.n_counted;
        EXPECT_TRUE(static_cast<uint64_t>(list.index[i]) < end);
      }
    }
    for (uint32_t s = 0; s < sections; ++s) {
      const uint64_t n = keys[s].n_gradient + keys[s].n_counted;
      EXPECT_EQ(n, counts[s].size());
      for (uint64_t i = 0; i < n; ++i) {
        EXPECT_EQ(keys[s].counts[i], counts[s][keys[s].keys[i]]);
      }
    }
  }
}

TEST(HostileWordsAreRefused) {
  std::vector<List> lists = {{{1, 2, 2}, 0, KeyUse::kGradient, {}},
                             {{3}, 1, KeyUse::kRead, {}}};
  const std::vector<int64_t> packed = Pack(&lists, 2);
  PackedKeys keys;
  for (size_t n = 0; n < packed.size(); ++n) {
    EXPECT_TRUE(!keys.Open(packed.data(), n, 2));
  }
  EXPECT_TRUE(!keys.Open(packed.data(), packed.size(), 1));
  EXPECT_TRUE(!keys.Open(packed.data(), packed.size(), 3));
  EXPECT_TRUE(!keys.Open(packed.data(), packed.size(),
                         std::numeric_limits<size_t>::max()));
  for (size_t i = 0; i < 6; ++i) {
    for (const int64_t bad : {kMin, int64_t{-1}, int64_t{1} << 62, kMax}) {
      std::vector<int64_t> words = packed;
      words[i] = bad;
      EXPECT_TRUE(!keys.Open(words.data(), words.size(), 2));
    }
  }
  EXPECT_TRUE(keys.Open(packed.data(), packed.size(), 2));
}

void ExpectSame(const Contents& a, const Contents& b) {
  EXPECT_EQ(a.admitted.size(), b.admitted.size());
  EXPECT_EQ(a.filtered.size(), b.filtered.size());
  for (size_t i = 0; i < std::min(a.admitted.size(), b.admitted.size()); ++i) {
    EXPECT_EQ(a.admitted[i].key, b.admitted[i].key);
    EXPECT_EQ(a.admitted[i].freq, b.admitted[i].freq);
    EXPECT_EQ(a.admitted[i].version, b.admitted[i].version);
    EXPECT_EQ(a.admitted[i].row[0], b.admitted[i].row[0]);
    EXPECT_EQ(a.admitted[i].row[1], b.admitted[i].row[1]);
  }
  for (size_t i = 0; i < std::min(a.filtered.size(), b.filtered.size()); ++i) {
    EXPECT_EQ(a.filtered[i].key, b.filtered[i].key);
    EXPECT_EQ(a.filtered[i].freq, b.filtered[i].freq);
  }
}

TEST(AStepOfCountsEqualsOneOfOccurrences) {
  const std::vector<int64_t> keys = {4, 8, 4, 4, 9};
  const std::vector<float> grads = {1, 2, 3, 4, 5};
  const std::vector<int64_t> counted = {8, 6, 6};
  const int64_t distinct[] = {4, 8, 9}, counted_once[] = {6};
  const float sums[] = {8, 2, 5};
  const uint32_t counts[] = {3, 2, 1, 2};
  for (const uint32_t threshold : {0u, 2u, 3u}) {
    EmbeddingTable occurrences(1, 0.0f, {threshold, 2}),
        packed(1, 0.0f, {threshold, 2});
    const AdagradLike rule(0.5f);
    for (EmbeddingTable* table : {&occurrences, &packed}) {
      const float bank[] = {1, 2};
      table->SetBank(bank, 2);
      EXPECT_TRUE(table->EnsureSlots({{"Adagrad", 1, 0.1f}}));
    }
    for (int64_t version = 0; version < 3; ++version) {
      EXPECT_TRUE(occurrences.Apply(
          {keys.data(), grads.data(), 5, counted.data(), 3, version}, rule,
          SerialFor));
      EXPECT_TRUE(
          packed.Apply({distinct, sums, 3, counted_once, 1, version, counts},
                       rule, SerialFor));
    }
    ExpectSame(Contents(occurrences), Contents(packed));
  }
}

TEST(CountsSaturate) {
  EmbeddingTable table(1, 0.0f, {1, std::numeric_limits<uint32_t>::max()});
  const int64_t keys[] = {1, 1, 1};
  const float grads[] = {1, 1, 1};
  const uint32_t most = std::numeric_limits<uint32_t>::max();
  const uint32_t counts[] = {most, most, most};
  const float bank[] = {1};
  table.SetBank(bank, 1);
  EXPECT_TRUE(table.Apply({keys, grads, 3, nullptr, 0, 0, counts}, AddSum(),
                          SerialFor));
  int64_t count = 0;
  table.Frequencies(keys, 1, &count);
  EXPECT_EQ(count, static_cast<int64_t>(most));
}

TEST(SumsOfIndexedRowsHaveTheBitsOfOccurrences) {
  std::mt19937_64 random(2);
  std::uniform_real_distribution<float> value(-1, 1);
  for (const int dim : {1, 7, 8, 16, 19}) {
    std::vector<int32_t> index(500);
    std::vector<float> values(500 * dim), sums(20 * dim, 0.0f);
    std::vector<float> same_sums = sums;
    for (int32_t& i : index) i = random() % 20;
    for (float& v : values) v = random() % 9 == 0 ? -0.0f : value(random);
    EXPECT_TRUE(AreRows(index.data(), 500, 20));
    EXPECT_TRUE(
        AddCheckedRows(values.data(), index.data(), 500, dim, sums.data(), 20));
    const std::vector<uint16_t> positions(index.begin(), index.end());
    AddIndexedRows(values.data(), positions.data(), 500, dim, same_sums.data());
    EXPECT_EQ(
        std::memcmp(sums.data(), same_sums.data(), sums.size() * sizeof(float)),
        0);
    for (int row = 0; row < 20; ++row) {
      std::vector<uint32_t> occurrences;
      for (uint32_t i = 0; i < 500; ++i) {
        if (index[i] == row) occurrences.push_back(i);
      }
      std::vector<float> expected(dim);
      SumOccurrences(values.data(), occurrences.data(), occurrences.size(), dim,
                     expected.data());
      EXPECT_EQ(
          std::memcmp(expected.data(), &sums[row * dim], dim * sizeof(float)),
          0);
    }
    std::vector<float> copies(500 * dim);
    EXPECT_TRUE(CopyCheckedRows(FloatRows{sums.data(), dim}, 20, index.data(),
                                500, copies.data()));
    for (int i = 0; i < 500; ++i) {
      EXPECT_EQ(std::memcmp(&copies[i * dim], &sums[index[i] * dim],
                            dim * sizeof(float)),
                0);
    }
    for (const NarrowType type : {NarrowType::kBFloat16, NarrowType::kHalf}) {
      std::vector<uint16_t> narrow(sums.size());
      NarrowFloats(type, sums.data(), static_cast<int>(sums.size()),
                   narrow.data());
      EXPECT_TRUE(CopyCheckedRows(NarrowRows{type, narrow.data(), dim}, 20,
                                  index.data(), 500, copies.data()));
      std::vector<float> wide(dim);
      for (int i = 0; i < 500; ++i) {
        WidenFloats(type, &narrow[index[i] * dim], dim, wide.data());
        EXPECT_EQ(
            std::memcmp(&copies[i * dim], wide.data(), dim * sizeof(float)), 0);
      }
    }
  }
}

TEST(IndicesThatAreNotRowsAreFound) {
  const int32_t index[] = {0, 2, -1};
  EXPECT_TRUE(AreRows(index, 2, 3));
  EXPECT_TRUE(!AreRows(index, 2, 2));
  EXPECT_TRUE(!AreRows(index, 3, 3));
  EXPECT_TRUE(AreRows(index, 0, 0));
  const float rows[] = {1, 2, 3};
  float out[] = {0, 0, 0};
  EXPECT_TRUE(CopyCheckedRows(FloatRows{rows, 1}, 3, index, 2, out));
  EXPECT_TRUE(!CopyCheckedRows(FloatRows{rows, 1}, 2, index, 2, out));
  EXPECT_TRUE(!CopyCheckedRows(FloatRows{rows, 1}, 3, index, 3, out));
  EXPECT_TRUE(AddCheckedRows(rows, index, 2, 1, out, 3));
  EXPECT_TRUE(!AddCheckedRows(rows, index, 2, 1, out, 2));
  EXPECT_TRUE(!AddCheckedRows(rows, index, 3, 1, out, 3));
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
