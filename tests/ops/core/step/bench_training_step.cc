// SPDX-License-Identifier: Apache-2.0
// What do the tables of a whole model cost in a training step?
//
// Workload: the 26 fields of benchmarks/criteo_ids.py, of 2,048 ids each or of
// the number that is given; a
// table of 16 floats and one of 1 float for each field; Adagrad. A step reads
// all tables, reserves, and applies gradients. Between these, 32 MB of other
// memory are read and written, as by the net of a model. CPU time of one
// thread, by phase, in ns for each of the 106,496 keys that are looked up:
// medians over steps. "alone": every table by itself. "listed": lookups find
// the distinct keys of a list once and tell the step where they are, as in
// ops/lookup/step_keys.h. Both in turn. "cached": the same for all tables or
// those of 16 floats, if everything is in the caches: the tables of a field do
// the same step several times, and the last one counts.
//   make -f tests/ops/core/Makefile bench-step
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "ops/core/keys/deduplicated_list.h"
#include "ops/core/math/row_update.h"
#include "ops/core/step/row_hints.h"
#include "ops/core/step/training_step.h"
#include "ops/core/table/embedding_table.h"

namespace rec_estimator {
namespace {

constexpr int kBatches = 32;
constexpr uint64_t kMostRows = 1000000;
constexpr int kDims[] = {16, 1};

// p(k-th most frequent id) ~ (k + q)^-s; the others have id 0.
struct Field {
  double ids, s, q, filled;
};
constexpr Field kFields[] = {{1460, 1.953, 0.27, 1},
                             {583, 1.1, 1, 1},
                             {6421652078, 1.077, 1.2, .967},
                             {6446884, 1.158, 2, .967},
                             {305, 1.1, 1, 1},
                             {24, 1.1, 1, 1},
                             {12517, 1.097, 20.98, 1},
                             {633, 1.1, 1, 1},
                             {3, 1.1, 1, 1},
                             {94334, 1.344, 3.67, 1},
                             {5683, 1.176, 13.13, 1},
                             {1363342897, 1.087, 1.41, .967},
                             {3194, 1.185, 12.31, 1},
                             {27, 1.1, 1, 1},
                             {14992, 1.409, 24.75, 1},
                             {135619015, 1.114, 2.08, .967},
                             {10, 1.1, 1, 1},
                             {5652, 1.514, 10.76, 1},
                             {2173, 1.334, 0, .547},
                             {4, 1.1, 1, .55},
                             {477279708, 1.097, 1.65, .967},
                             {18, 1.1, 1, .24},
                             {15, 1.1, 1, 1},
                             {316422, 1.342, 5.6, .967},
                             {105, 1.1, 1, .55},
                             {145861, 1.304, 5.55, .547}};
constexpr size_t kNumFields = sizeof(kFields) / sizeof(kFields[0]);

uint64_t RowsOf(const Field& field) {
  return static_cast<uint64_t>(
      std::min(field.ids, static_cast<double>(kMostRows)));
}

// By inversion of the continuous distribution.
int64_t Draw(const Field& field, std::mt19937_64* random) {
  const auto uniform = [random] {
    return static_cast<double>((*random)() >> 11) * 0x1p-53;
  };
  const double power = 1 - field.s;
  const double low = std::pow(field.q + 0.5, power);
  const double high = std::pow(field.ids + field.q + 0.5, power);
  const double x = std::pow(low + uniform() * (high - low), 1 / power);
  double id = std::min(std::max(x - field.q - 0.5, 0.0), field.ids - 1);
  if (uniform() >= field.filled) id = 0;
  return static_cast<int64_t>(id) % static_cast<int64_t>(RowsOf(field));
}

// A permutation of the ids.
int64_t KeyOf(int64_t id, uint64_t rows) {
  constexpr uint64_t kPrime = 2654435761;
  return static_cast<int64_t>(static_cast<uint64_t>(id) * kPrime % rows);
}

double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * time.tv_nsec;
}

struct StepTime {
  double lookup = 0, reserve = 0, apply = 0;  // Seconds of CPU.
};
using Times = std::vector<StepTime>;

class Model {
 public:
  explicit Model(size_t batch) : batch_(batch), net_(8 << 20) {
    for (const int dim : kDims) {
      for (const Field& field : kFields) {
        tables_.push_back(std::make_unique<EmbeddingTable>(dim));
        tables_.back()->EnsureSlots({{"Adagrad", dim, 0.1f}});
        Fill(tables_.back().get(), RowsOf(field));
        values_.emplace_back(batch_ * dim);
        grads_.emplace_back(batch_ * dim, 0.01f);
      }
    }
    std::mt19937_64 random(7);
    for (int b = 0; b < kBatches; ++b) {
      for (const Field& field : kFields) {
        keys_.emplace_back();
        for (size_t i = 0; i < batch_; ++i) {
          keys_.back().push_back(KeyOf(Draw(field, &random), RowsOf(field)));
        }
      }
    }
  }

  void Step(int number, bool listed, Times* times) {
    std::vector<size_t> all(tables_.size());
    std::iota(all.begin(), all.end(), size_t{0});
    times->push_back(StepOf(all, number, listed, [this] { RunNet(); }));
  }

  // A step of the tables of the first `n_dims` of kDims, all in the caches.
  void CachedStep(int number, bool listed, size_t n_dims, Times* times) {
    constexpr int kRepeats = 4;
    StepTime sum;
    for (size_t f = 0; f < kNumFields; ++f) {
      std::vector<size_t> of_field;
      for (size_t d = 0; d < n_dims; ++d) {
        of_field.push_back(d * kNumFields + f);
      }
      StepTime last;
      for (int i = 0; i < kRepeats; ++i) {
        last = StepOf(of_field, number, listed, [] {});
      }
      sum.lookup += last.lookup;
      sum.reserve += last.reserve;
      sum.apply += last.apply;
    }
    times->push_back(sum);
  }

 private:
  // A step of these tables, which calls `net` between its phases.
  template <typename Net>
  StepTime StepOf(const std::vector<size_t>& numbers, int number, bool listed,
                  const Net& net) {
    const std::vector<int64_t>* keys = &keys_[number % kBatches * kNumFields];
    std::vector<std::shared_ptr<const RowHints>> found(tables_.size());
    std::vector<TableParts> tables;
    std::vector<StepBatch> batches;
    std::vector<TrainingStep::Gradients> gradients;
    StepTime time;
    double start = ThreadSeconds();
    Lookup(numbers, keys, listed, &found);
    time.lookup = ThreadSeconds() - start;
    net();
    start = ThreadSeconds();
    for (const size_t t : numbers) {
      const auto& of_field = keys[t % kNumFields];
      tables.push_back(tables_[t]->parts());
      batches.push_back({of_field.data(), nullptr, batch_, nullptr, 0, 0,
                         nullptr, found[t].get()});
      gradients.push_back({grads_[t].data(), rule_.get(), number});
    }
    TrainingStep step(tables, batches);
    if (!step.Reserve(SerialFor).ok()) std::abort();
    time.reserve = ThreadSeconds() - start;
    net();
    start = ThreadSeconds();
    if (!step.Apply(gradients.data(), SerialFor).ok()) std::abort();
    time.apply = ThreadSeconds() - start;
    return time;
  }

  void Fill(EmbeddingTable* table, uint64_t rows) {
    constexpr uint64_t kBlock = 100000;
    const std::vector<float> grads(kBlock * static_cast<size_t>(table->dim()),
                                   0.1f);
    // In ascending order of keys, which is not that of their frequencies.
    for (uint64_t first = 0; first < rows; first += kBlock) {
      std::vector<int64_t> keys;
      for (uint64_t k = first; k < std::min(rows, first + kBlock); ++k) {
        keys.push_back(static_cast<int64_t>(k));
      }
      if (!table->Apply({keys.data(), grads.data(), keys.size(), nullptr, 0, 0},
                        *rule_, SerialFor)) {
        std::abort();
      }
    }
  }

  void Lookup(const std::vector<size_t>& numbers,
              const std::vector<int64_t>* keys, bool listed,
              std::vector<std::shared_ptr<const RowHints>>* found) {
    std::vector<std::shared_ptr<const DeduplicatedList>> lists(kNumFields);
    for (const size_t t : numbers) {
      const size_t f = t % kNumFields;
      float* const out = values_[t].data();
      if (!listed) {
        tables_[t]->Lookup(keys[f].data(), batch_, UnknownKey::kInitial, out,
                           SerialFor);
        continue;
      }
      if (lists[f] == nullptr) {
        lists[f] = std::make_shared<DeduplicatedList>(keys[f].data(), batch_,
                                                      SerialFor);
      }
      (*found)[t] = tables_[t]->LookupListed(lists[f], UnknownKey::kInitial,
                                             out, SerialFor);
    }
  }

  // Takes the caches.
  void RunNet() {
    for (float& each : net_) each += 1.0f;
  }

  const size_t batch_;
  const std::unique_ptr<RowUpdate> rule_ = MakeRowUpdate("Adagrad", {0.05f});
  std::vector<std::unique_ptr<EmbeddingTable>> tables_;  // By dim, by field.
  std::vector<std::vector<float>> values_, grads_;
  std::vector<std::vector<int64_t>> keys_;  // By batch, by field.
  std::vector<float> net_;
};

// The median over steps of `part` of them, in ns for each key of n_dims tables.
template <typename Part>
double PerKey(const Times& times, size_t batch, size_t n_dims,
              const Part& part) {
  std::vector<double> parts;
  for (const StepTime& time : times) parts.push_back(part(time));
  std::sort(parts.begin(), parts.end());
  return parts[parts.size() / 2] /
         static_cast<double>(n_dims * kNumFields * batch) * 1e9;
}

void Print(const char* name, const Times& times, size_t batch, size_t n_dims) {
  const auto per_key = [&](const auto& part) {
    return PerKey(times, batch, n_dims, part);
  };
  std::printf("%-24s lookup %5.1f   reserve %5.1f   apply %5.1f   all %5.1f\n",
              name, per_key([](const StepTime& time) { return time.lookup; }),
              per_key([](const StepTime& time) { return time.reserve; }),
              per_key([](const StepTime& time) { return time.apply; }),
              per_key([](const StepTime& time) {
                return time.lookup + time.reserve + time.apply;
              }));
}

}  // namespace
}  // namespace rec_estimator

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 200;
  const size_t batch =
      argc > 2 ? static_cast<size_t>(std::max(1, std::atoi(argv[2]))) : 2048;
  rec_estimator::Model model(batch);
  rec_estimator::Times warm_up, alone, listed;
  for (int s = 0; s < 40; ++s) model.Step(s, s % 2 == 0, &warm_up);
  for (int s = 0; s < steps; ++s) {
    const bool first = s % 4 < 2;
    model.Step(2 * s, !first, first ? &alone : &listed);
    model.Step(2 * s + 1, first, first ? &listed : &alone);
  }
  rec_estimator::Times cached[2][2];  // By listed, by number of dims - 1.
  for (int s = 0; s < steps; ++s) {
    for (int way = 0; way < 4; ++way) {
      model.CachedStep(s, way / 2, 1 + way % 2, &cached[way / 2][way % 2]);
    }
  }
  rec_estimator::Print("alone", alone, batch, 2);
  rec_estimator::Print("listed", listed, batch, 2);
  rec_estimator::Print("alone, cached", cached[0][1], batch, 2);
  rec_estimator::Print("listed, cached", cached[1][1], batch, 2);
  rec_estimator::Print("alone, cached, dim 16", cached[0][0], batch, 1);
  rec_estimator::Print("listed, cached, dim 16", cached[1][0], batch, 1);
}
