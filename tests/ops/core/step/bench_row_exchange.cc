// SPDX-License-Identifier: Apache-2.0
// How long does an exchange of 100,000 rows of 16 floats take, and how long of
// that do lookups wait?
//
// A table of 2 M rows. Ten of eleven written keys have a row; as many others
// lose theirs as are new. Medians of CPU time of the one thread over exchanges
// in a row, in ms, and the growth of memory over them. Between exchanges, 64 MB
// of other memory are written, so that neither index nor rows are in the
// caches.
//   make -f tests/ops/core/Makefile bench-exchange
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <vector>

#include "ops/core/step/row_exchange.h"
#include "ops/core/table/embedding_table.h"

namespace rec_estimator {
namespace {

constexpr int kDim = 16;
constexpr int64_t kRows = 2000000;
constexpr int64_t kWritten = 100000;
constexpr int64_t kErased = 9000;

double Now() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 +
         static_cast<double>(now.tv_nsec) / 1e6;
}

double MedianOf(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2,
                   times.end());
  return times[times.size() / 2];
}

void Run(int exchanges) {
  EmbeddingTable table(kDim);
  std::vector<int64_t> keys(kRows + kRows / 10);
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = static_cast<int64_t>(i) * 7919;
  }
  std::vector<float> values(kRows * kDim, 1.0f);
  RestoredRows all;
  all.keys = keys.data();
  all.n = kRows;
  all.values = values.data();
  all.freqs = all.versions = nullptr;
  table.Insert(all);

  std::mt19937_64 random(1);
  std::vector<char> other(size_t{64} << 20);
  std::vector<double> adds, prepares, commits, ends;
  int64_t first_bytes = 0;
  for (int e = 0; e < exchanges; ++e) {
    // Distinct, in random order.
    for (int64_t i = 0; i < kWritten + kErased; ++i) {
      std::swap(keys[i], keys[i + random() % (keys.size() - i)]);
    }
    std::fill(other.begin(), other.end(), static_cast<char>(e));
    RestoredRows rows = all;
    rows.n = kWritten;
    double at = Now();
    const auto lap = [&at](std::vector<double>* times) {
      const double now = Now();
      times->push_back(now - at);
      at = now;
    };
    {
      RowExchange exchange(table.parts());
      exchange.AddErased(keys.data() + kWritten, kErased);
      if (!exchange.Add(rows)) std::abort();
      lap(&adds);
      if (!exchange.Prepare()) std::abort();
      lap(&prepares);
      exchange.Commit();
      lap(&commits);
    }
    lap(&ends);
    if (e == exchanges / 10) first_bytes = table.memory_bytes();
  }
  std::printf(
      "add %.2f ms, prepare %.2f ms, commit %.2f ms (longest %.2f), "
      "end %.2f ms; memory %+.1f %% over %d exchanges\n",
      MedianOf(adds), MedianOf(prepares), MedianOf(commits),
      *std::max_element(commits.begin(), commits.end()), MedianOf(ends),
      100.0 * static_cast<double>(table.memory_bytes() - first_bytes) /
          static_cast<double>(first_bytes),
      exchanges - exchanges / 10);
}

}  // namespace
}  // namespace rec_estimator

int main() {
  rec_estimator::Run(50);
  return 0;
}
