// SPDX-License-Identifier: Apache-2.0
// How fast is the embedding table by itself, and how much memory does a key
// cost?
//
// Workload: 26 x 4096 = 106,496 keys per batch, Zipf with exponent 1.1 over the
// table's keys, dim 16, one slot, an Adagrad-like rule. Wall time of two
// threads and, in brackets, CPU time of one thread. Every figure is a median
// over 21 different batches after a warm-up. The second part is the cost of
// filters: tables with and without a filter get the same batches in turn, and a
// figure is the median of the ratios to the table without.
//   make -C tests/ops/core bench          1M and 5M rows, about 30 s
//   build/cc/plain/tests/ops/core/table/bench_embedding_table 50
//                                         1M and 50M rows, 9 GB, some minutes
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "ops/core/table/embedding_table.h"
#include "tests/ops/core/filters.h"
#include "tests/ops/core/rules.h"
#include "tests/ops/core/threads.h"

namespace rec_estimator {
namespace {

constexpr size_t kBatch = 26 * 4096;
constexpr int kDim = 16;
constexpr int kBatches = 21;

// Spreads keys over all of int64, as hashed strings are.
int64_t KeyOf(uint64_t rank) {
  return static_cast<int64_t>(rank * 0x9E3779B97F4A7C15u);
}

// Draws ranks 1..n with probability ~ 1 / rank^s by inversion of the continuous
// distribution, which is exact in the tail and close enough in the head.
class Zipf {
 public:
  Zipf(double n, double s) : s_(s), range_(std::pow(n + 1, 1 - s) - 1) {}
  uint64_t operator()(std::mt19937_64* random) const {
    const double u = static_cast<double>((*random)() >> 11) * 0x1p-53;
    return static_cast<uint64_t>(std::pow(1 + u * range_, 1 / (1 - s_)));
  }

 private:
  double s_;
  double range_;
};

// CPU time of this thread in seconds, which other processes disturb least.
double ThreadSeconds(const std::function<void()>& work) {
  const auto now = [] {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * time.tv_nsec;
  };
  const double start = now();
  work();
  return now() - start;
}

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> time =
      std::chrono::steady_clock::now() - start;
  return time.count();
}

// Median over kBatches calls of work(batch), in M keys/s.
template <typename Clock>
double Rate(size_t keys, const Clock& clock,
            const std::function<void(int batch)>& work) {
  std::vector<double> times;
  for (int b = 0; b < kBatches + 3; ++b) {
    const double time = clock([&] { work(b); });
    if (b >= 3) times.push_back(time);
  }
  std::sort(times.begin(), times.end());
  return static_cast<double>(keys) / times[times.size() / 2] * 1e-6;
}

void SetUp(EmbeddingTable* table) {
  std::vector<float> bank(4096 * static_cast<size_t>(table->dim()));
  for (size_t i = 0; i < bank.size(); ++i) bank[i] = 0.001f * (i % 1000);
  table->SetBank(bank.data(), 4096);
  table->EnsureSlots({{"Adagrad", kDim, 0.1f}});
}

// Batches of keys of which rank r occurs with probability ~ 1 / r^1.1.
std::vector<std::vector<int64_t>> ZipfBatches(uint64_t ranks, int n,
                                              std::mt19937_64* random) {
  const Zipf zipf(static_cast<double>(ranks), 1.1);
  std::vector<std::vector<int64_t>> batches(static_cast<size_t>(n));
  for (auto& batch : batches) {
    for (size_t i = 0; i < kBatch; ++i) batch.push_back(KeyOf(zipf(random)));
  }
  return batches;
}

double DistinctShare(std::vector<int64_t> keys) {
  std::sort(keys.begin(), keys.end());
  const auto end = std::unique(keys.begin(), keys.end());
  return static_cast<double>(end - keys.begin()) /
         static_cast<double>(keys.size());
}

// How a table has grown, batch by batch.
struct Growth {
  std::vector<double> rates;  // M keys/s, ascending.
  std::vector<double> bytes;  // Of a key, beyond its floats.
};

// Trains keys of ranks 1 to `rows`.
Growth Grow(uint64_t rows, const RowUpdate& rule, EmbeddingTable* table) {
  const std::vector<float> grads(kBatch * kDim, 0.01f);
  std::vector<int64_t> keys(kBatch);
  Growth growth;
  for (uint64_t first = 1; first <= rows; first += kBatch) {
    for (size_t i = 0; i < kBatch; ++i) keys[i] = KeyOf(first + i);
    const double time = ThreadSeconds([&] {
      if (!table->Apply({keys.data(), grads.data(), kBatch, nullptr, 0, 1},
                        rule, SerialFor)) {
        std::abort();
      }
    });
    growth.rates.push_back(kBatch / time * 1e-6);
    const double n = static_cast<double>(table->size());
    growth.bytes.push_back(static_cast<double>(table->memory_bytes()) / n -
                           table->row_floats() * sizeof(float));
  }
  std::sort(growth.rates.begin(), growth.rates.end());
  return growth;
}

void Table(double millions, const ParallelFor& parallel) {
  const uint64_t rows = static_cast<uint64_t>(millions * 1e6);
  EmbeddingTable table(kDim);
  SetUp(&table);
  const AdagradLike rule(0.05f);
  std::vector<float> grads(kBatch * kDim, 0.01f);
  std::vector<float> out(kBatch * kDim);

  const Growth growth = Grow(rows, rule, &table);
  const auto widest =
      std::max_element(growth.bytes.begin(), growth.bytes.end());
  const double mean =
      std::accumulate(growth.bytes.begin(), growth.bytes.end(), 0.0) /
      static_cast<double>(growth.bytes.size());

  std::mt19937_64 random(7);
  std::vector<std::vector<int64_t>> batches =
      ZipfBatches(rows, kBatches + 3, &random);
  const double distinct = DistinctShare(batches[0]);
  const auto lookup = [&](const auto& clock, const ParallelFor& threads) {
    return Rate(kBatch, clock, [&](int b) {
      table.Lookup(batches[b].data(), kBatch, UnknownKey::kInitial, out.data(),
                   threads);
    });
  };
  const auto apply = [&](const auto& clock, const ParallelFor& threads) {
    return Rate(kBatch, clock, [&](int b) {
      table.Apply({batches[b].data(), grads.data(), kBatch, nullptr, 0, b},
                  rule, threads);
    });
  };
  const double lookup_all = lookup(Seconds, parallel);
  const double lookup_one = lookup(ThreadSeconds, SerialFor);
  const double apply_all = apply(Seconds, parallel);
  const double apply_one = apply(ThreadSeconds, SerialFor);
  const double small = Rate(64, ThreadSeconds, [&](int b) {
    table.Lookup(batches[b].data(), 64, UnknownKey::kInitial, out.data(),
                 SerialFor);
  });
  for (auto& batch : batches) {
    for (int64_t& key : batch) key = KeyOf(1 + random() % rows);
  }
  const double uniform_lookup = lookup(Seconds, parallel);
  const double uniform_lookup_one = lookup(ThreadSeconds, SerialFor);
  const double uniform_apply = apply(Seconds, parallel);
  const double uniform_apply_one = apply(ThreadSeconds, SerialFor);
  std::printf(
      "%5.1f M rows, %2.0f %% of a batch distinct; M keys/s, in brackets: of "
      "one thread's CPU time\n"
      "  Zipf keys      lookup %6.1f (%5.1f)   apply %6.1f (%5.1f)   lookup of "
      "64 (%5.1f)\n"
      "  uniform keys   lookup %6.1f (%5.1f)   apply %6.1f (%5.1f)\n"
      "  new keys       apply        (%5.1f), slowest batch (%.1f)\n"
      "  bytes per key beyond its floats: mean %.1f, most %.1f, now %.1f\n",
      millions, 100 * distinct, lookup_all, lookup_one, apply_all, apply_one,
      small, uniform_lookup, uniform_lookup_one, uniform_apply,
      uniform_apply_one, growth.rates[growth.rates.size() / 2], growth.rates[0],
      mean, *widest, growth.bytes.back());
  std::fflush(stdout);
}

struct Rule {
  const char* name;
  FilterSpec filter;
  RowRules rows;
};

RowRules Limited(int64_t max_rows, std::vector<int64_t> frozen_keys = {}) {
  RowRules rules;
  rules.max_rows = max_rows;
  rules.has_padding = true;
  rules.frozen_keys = std::move(frozen_keys);
  return rules;
}

// The rules of tables that get `n` keys, the first of which is none.
std::vector<Rule> RulesOf(int64_t n) {
  std::vector<Rule> rules;
  const auto add = [&](const char* name, const FilterSpec& filter,
                       const RowRules& rows) {
    rules.push_back({name, filter, rows});
  };
  add("none", {}, {});
  add("counter 3", {3, 1}, {});
  add("Bloom 3, .01", BloomFilter(3, 1, n, 0.01), {});
  add("Bloom 3, .001", BloomFilter(3, 1, n, 0.001), {});
  add("Bloom 200, .01", BloomFilter(200, 1, n, 0.01), {});
  add("Bloom 3, 100 n", BloomFilter(3, 1, n * 100, 0.01), {});
  add("padding, 2 frozen", {}, Limited(0, {5, 77}));
  add("limit, far", {}, Limited(n * 10));
  // So near that every batch is counted.
  add("limit, near", {}, Limited(n / 2));
  return rules;
}

// CPU time of Zipf batches with filters and other rules, relative to the time
// without. First for a stream that still brings new keys, then for repeated
// batches, in which most occurrences are of keys that own rows.
void Rules(double millions) {
  const uint64_t rows = static_cast<uint64_t>(millions * 1e6);
  const std::vector<Rule> rules = RulesOf(static_cast<int64_t>(rows));
  const size_t n_rules = rules.size();
  constexpr int kFirst = 40;  // Batches before the first measured one.
  const AdagradLike rule(0.05f);
  const std::vector<float> grads(kBatch * kDim, 0.01f);
  std::vector<std::unique_ptr<EmbeddingTable>> tables;
  for (const Rule& each : rules) {
    tables.push_back(
        std::make_unique<EmbeddingTable>(kDim, 0.0f, each.filter, each.rows));
    SetUp(tables.back().get());
  }
  std::mt19937_64 random(7);
  const std::vector<std::vector<int64_t>> batches =
      ZipfBatches(rows, kFirst + kBatches, &random);
  std::vector<std::vector<double>> fresh(n_rules), again(n_rules);
  const auto round = [&](int b, std::vector<std::vector<double>>* ratios) {
    std::vector<double> times(n_rules);
    for (size_t i = 0; i < n_rules; ++i) {
      const size_t t = (i + static_cast<size_t>(b)) % n_rules;
      times[t] = ThreadSeconds([&] {
        tables[t]->Apply(
            {batches[b].data(), grads.data(), kBatch, nullptr, 0, b}, rule,
            SerialFor);
      });
    }
    for (size_t t = 0; ratios != nullptr && t < n_rules; ++t) {
      (*ratios)[t].push_back(times[t] / times[0]);
    }
  };
  for (int b = 0; b < kFirst + kBatches; ++b) {
    round(b, b < kFirst ? nullptr : &fresh);
  }
  for (int b = 0; b < kFirst + kBatches; ++b) {
    round(b, b < kFirst ? nullptr : &again);
  }
  const auto median = [](std::vector<double> ratios) {
    std::sort(ratios.begin(), ratios.end());
    return ratios[ratios.size() / 2];
  };
  std::printf("%5.1f M keys, Zipf; time with a rule / without\n", millions);
  for (size_t t = 0; t < n_rules; ++t) {
    std::printf("  %-17s new keys %.2f   again %.2f   rows %8lld   %.0f MB\n",
                rules[t].name, median(fresh[t]), median(again[t]),
                static_cast<long long>(tables[t]->size()),
                static_cast<double>(tables[t]->memory_bytes()) * 1e-6);
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace rec_estimator

int main(int argc, char** argv) {
  rec_estimator::Threads threads(2);
  std::vector<double> sizes = {1, 5};
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atof(argv[i]));
  if (argc > 1) sizes.erase(sizes.begin() + 1);
  for (double millions : sizes) {
    rec_estimator::Table(millions, threads.parallel());
    rec_estimator::Rules(millions);
  }
}
