// SPDX-License-Identifier: Apache-2.0
// Is the embedding table of this tree as fast as that of another tree?
//
// Both are linked into one program and get the same batches in turn, on one
// thread. So other processes disturb both alike, and the median of the ratios
// of CPU time is stable to about 2 % even on a busy machine. One effect is not:
// the table that is made second is up to 12 % slower in lookups of 64 keys,
// because of where its memory is. So everything runs twice, in both orders.
// Prints a JSON object per figure.
//   make -f tests/ops/core/Makefile paired BASE=/another/checkout
//   build/cc/plain/bench_paired 5                    5M rows instead of 1M
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/ops/core/table/paired_table.h"

namespace paired {
namespace {

constexpr size_t kBatch = 26 * 4096;
constexpr size_t kDim = 16;  // Most tables have it.
constexpr size_t kBatches = 60;
using Batches = std::vector<std::vector<int64_t>>;

// Spreads keys over all of int64, as hashed strings are.
int64_t KeyOf(uint64_t rank) {
  return static_cast<int64_t>(rank * 0x9E3779B97F4A7C15u);
}

// CPU time of this thread in seconds.
double Now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * time.tv_nsec;
}

// A table of each tree.
class Pair {
 public:
  Pair(double millions, bool new_first, const Spec& spec)
      : millions_(millions), new_first_(new_first) {
    for (const int tree : {new_first ? 1 : 0, new_first ? 0 : 1}) {
      tables_[tree] = tree == 0 ? MakeBase(spec) : MakeNew(spec);
    }
  }
  ~Pair() {
    if (tables_[0]->memory_bytes() != tables_[1]->memory_bytes()) {
      std::printf(
          "{\"error\": \"the trees use different amounts of memory\"}\n");
    }
  }

  void ForBoth(const std::function<void(Table*)>& work) {
    for (const auto& table : tables_) work(table.get());
  }

  // Calls work(table, round) for both tables in turn.
  void Compare(const std::string& figure, int rounds, size_t keys,
               const std::function<void(Table*, int)>& work) {
    constexpr int kWarmUp = 2;
    std::vector<double> ratios, times[2];
    for (int r = 0; r < rounds; ++r) {
      double time[2];
      for (int k = 0; k < 2; ++k) {
        const int tree = (r + k + new_first_) % 2;
        const double start = Now();
        work(tables_[tree].get(), r);
        time[tree] = Now() - start;
      }
      if (r < kWarmUp) continue;
      ratios.push_back(time[1] / time[0]);
      for (int tree = 0; tree < 2; ++tree) {
        times[tree].push_back(1e9 * time[tree] / static_cast<double>(keys));
      }
    }
    const auto quantile = [](std::vector<double>* values, double q) {
      std::sort(values->begin(), values->end());
      return (*values)[static_cast<size_t>(q * (values->size() - 1))];
    };
    std::printf(
        "{\"rows_M\": %g, \"first\": \"%s\", \"figure\": \"%s\", \"ratio\": "
        "%.4f, \"quartiles\": "
        "[%.4f, %.4f], \"n\": %zu, \"base_ns_per_key\": %.2f, "
        "\"new_ns_per_key\": %.2f}\n",
        millions_, new_first_ ? "new" : "base", figure.c_str(),
        quantile(&ratios, 0.5), quantile(&ratios, 0.25),
        quantile(&ratios, 0.75), ratios.size(), quantile(&times[0], 0.1),
        quantile(&times[1], 0.1));
    std::fflush(stdout);
  }

 private:
  const double millions_;
  const bool new_first_;
  std::unique_ptr<Table> tables_[2];  // The base's and this tree's.
};

// Lookups, applies, and both as a step, of batches of all sizes; small ones are
// slices, one after the other.
void CompareSizes(Pair* pair, const Batches& batches, const std::string& name) {
  const std::vector<float> grads(kBatch * kDim, 0.01f);
  std::vector<float> out(kBatch * kDim);
  for (const size_t n : {size_t{16}, size_t{64}, size_t{256}, size_t{1024},
                         size_t{2048}, size_t{4096}, size_t{16384}, kBatch}) {
    const int rounds =
        static_cast<int>(std::clamp<size_t>(1000000 / n, kBatches, 2000));
    const auto slice = [&](int r) {
      const size_t at = static_cast<size_t>(r) / kBatches * n % kBatch;
      return batches[r % kBatches].data() + std::min(at, kBatch - n);
    };
    const std::string suffix = " of " + std::to_string(n) + ", " + name;
    pair->Compare("lookup" + suffix, rounds, n, [&](Table* table, int r) {
      table->Lookup(slice(r), n, out.data());
    });
    pair->Compare("apply" + suffix, rounds, n, [&](Table* table, int r) {
      table->Apply(slice(r), grads.data(), n, r);
    });
    pair->Compare("step" + suffix, rounds, n, [&](Table* table, int r) {
      table->Step(slice(r), grads.data(), n, r, out.data());
    });
  }
}

// A table of 1 float, as the weights of a linear model.
void Weights(double millions, bool new_first, const Batches& zipf) {
  Spec spec{"weights"};
  spec.dim = 1;
  Pair pair(millions, new_first, spec);
  const std::vector<float> grads(kBatch, 0.01f);
  const size_t parts = static_cast<size_t>(millions * 1e6 / kBatch);
  std::vector<int64_t> keys(kBatch);
  for (size_t part = 0; part < parts; ++part) {
    for (size_t i = 0; i < kBatch; ++i) keys[i] = KeyOf(1 + part * kBatch + i);
    pair.ForBoth([&](Table* table) {
      table->Apply(keys.data(), grads.data(), kBatch, 1);
    });
  }
  CompareSizes(&pair, zipf, "Zipf, dim 1");
}

void Plain(double millions, bool new_first, const Batches& zipf,
           const Batches& uniform) {
  const std::vector<float> grads(kBatch * kDim, 0.01f);
  std::vector<const float*> rows(kBatch);
  std::vector<int64_t> counts(kBatch), keys(kBatch);
  Pair pair(millions, new_first, {"plain"});
  int filled = -1;
  pair.Compare("apply, new keys", static_cast<int>(millions * 1e6 / kBatch),
               kBatch, [&](Table* table, int r) {
                 for (size_t i = 0; i < kBatch && r != filled; ++i) {
                   keys[i] = KeyOf(1 + r * kBatch + i);
                 }
                 filled = r;
                 if (!table->Apply(keys.data(), grads.data(), kBatch, 1)) {
                   std::abort();
                 }
               });
  for (const auto& [name, batches] :
       {std::make_pair("Zipf", &zipf), std::make_pair("uniform", &uniform)}) {
    CompareSizes(&pair, *batches, name);
  }
  pair.Compare("reader, Zipf", kBatches, kBatch, [&](Table* table, int r) {
    table->Read(zipf[r].data(), kBatch, rows.data());
  });
  pair.Compare("frequencies", kBatches, kBatch, [&](Table* table, int r) {
    table->Frequencies(uniform[r].data(), kBatch, counts.data());
  });
  pair.Compare("insert of present keys", kBatches, kBatch,
               [&](Table* table, int r) {
                 table->Insert(uniform[r].data(), grads.data(), kBatch);
               });
}

void WithRules(double millions, bool new_first, const Batches& zipf) {
  const int64_t n = static_cast<int64_t>(millions * 1e6);
  const std::vector<float> grads(kBatch * kDim, 0.01f);
  const std::unique_ptr<bool[]> admits(new bool[kBatch]);
  for (const Spec& spec :
       {Spec{"counter 3", 3}, Spec{"Bloom 3, .01", 3, n, .01},
        Spec{"Bloom 3, .001", 3, n, .001}, Spec{"Bloom 200, .01", 200, n, .01},
        Spec{"Bloom 3, 100 n", 3, n * 100, .01},
        Spec{"padding, 2 frozen", 0, 0, 0, 0, true},
        Spec{"limit, far", 0, 0, 0, n * 10},
        Spec{"limit, near", 0, 0, 0, n / 2}}) {
    Pair pair(millions, new_first, spec);
    const std::string name = spec.name;
    for (const char* state : {", new keys", ", repeated"}) {
      pair.Compare(name + state, kBatches, kBatch, [&](Table* table, int r) {
        table->Apply(zipf[r].data(), grads.data(), kBatch, r);
      });
    }
    if (spec.threshold > 0) {
      pair.Compare(name + ", Admits", kBatches, kBatch,
                   [&](Table* table, int r) {
                     table->Admits(zipf[r].data(), kBatch, admits.get());
                   });
    }
  }
}

void Run(double millions) {
  const uint64_t rows = static_cast<uint64_t>(millions * 1e6);
  std::mt19937_64 random(7);
  // Zipf(1.1) by inversion of the continuous distribution.
  const double range = std::pow(static_cast<double>(rows + 1), -0.1) - 1;
  Batches zipf(kBatches), uniform(kBatches);
  for (size_t b = 0; b < kBatches; ++b) {
    for (size_t i = 0; i < kBatch; ++i) {
      const double u = static_cast<double>(random() >> 11) * 0x1p-53;
      zipf[b].push_back(
          KeyOf(static_cast<uint64_t>(std::pow(1 + u * range, -10))));
      uniform[b].push_back(KeyOf(1 + random() % rows));
    }
  }
  for (const bool new_first : {false, true}) {
    Plain(millions, new_first, zipf, uniform);
    Weights(millions, new_first, zipf);
    WithRules(millions, new_first, zipf);
  }
}

}  // namespace
}  // namespace paired

int main(int argc, char** argv) {
  paired::Run(argc > 1 ? std::atof(argv[1]) : 1);
}
