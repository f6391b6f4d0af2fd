// SPDX-License-Identifier: Apache-2.0
// What do rows on disk cost, and how close do they come to the limit of the
// disk?
//
// Tables of dim 16 with an Adagrad slot; batches of 26 x 4096 keys, Zipf with
// exponent 1.05; one thread. Figures are medians over rounds, in which what is
// compared takes turns.
//   1. A share of the rows in memory. Resident set against what was allowed.
//      Then steps: CPU time of the process beyond that of the same step in a
//      table without a tier, by miss, and misses by second of Reserve, against
//      random reads of 4 KiB pages of a file, many at a time, by the better of
//      io_uring and threads.
//   2. Reading all rows in the order of a save against reading a file in
//      sequence, 1 MiB at a time.
//   3. A table with a tier whose rows all are in memory against one without a
//      tier: CPU time of the thread.
//   make -f tests/ops/core/Makefile bench-tier FOLDER=/on/the/disk
//   bench_disk_tier FOLDER [million rows, default 4] [share, default .1]
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/core/step/training_step.h"
#include "ops/core/storage/batch_reader.h"
#include "ops/core/storage/disk_memory.h"
#include "ops/core/storage/page.h"
#include "ops/core/table/embedding_table.h"
#include "ops/core/table/entry_reader.h"
#include "ops/core/table/snapshot.h"
#include "ops/core/tier/disk_tier.h"
#include "tests/ops/core/rules.h"

namespace rec_estimator {
namespace {

constexpr size_t kBatch = 26 * 4096;
constexpr int kDim = 16;
constexpr int kRounds = 15;
constexpr size_t kMiB = size_t{1} << 20;
// Rows that a save copies at once, as wide as these.
constexpr size_t kStep = 13800;
// Memory for the entries that a save lists.
constexpr size_t kListedBytes = size_t{22} << 20;

// Spreads keys over all of int64, as hashed strings are.
int64_t KeyOf(uint64_t rank) {
  return static_cast<int64_t>(rank * 0x9E3779B97F4A7C15u);
}

std::vector<int64_t> ZipfKeys(double n, std::mt19937_64* random) {
  constexpr double kExponent = 1.05;
  const double range = std::pow(n + 1, 1 - kExponent) - 1;
  std::vector<int64_t> keys(kBatch);
  for (int64_t& key : keys) {
    const double u = static_cast<double>((*random)() >> 11) * 0x1p-53;
    key = KeyOf(
        static_cast<uint64_t>(std::pow(1 + u * range, 1 / (1 - kExponent))));
  }
  return keys;
}

double Seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

double Took(clockid_t clock, const std::function<void()>& work) {
  const double before = Seconds(clock);
  work();
  return Seconds(clock) - before;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2,
                   values.end());
  return values[values.size() / 2];
}

void Must(bool is_good, const std::string& error) {
  if (is_good) return;
  std::fprintf(stderr, "%s\n", error.c_str());
  std::exit(1);
}

// What this process has in memory, in MiB.
double ResidentMiB() {
  FILE* const file = std::fopen("/proc/self/statm", "r");
  long pages = 0;
  if (file == nullptr || std::fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
  if (file != nullptr) std::fclose(file);
  return static_cast<double>(pages) *
         static_cast<double>(sysconf(_SC_PAGESIZE)) / kMiB;
}

std::unique_ptr<EmbeddingTable> MakeTable(const std::string& folder,
                                          int64_t memory_rows) {
  auto table = std::make_unique<EmbeddingTable>(kDim);
  table->EnsureSlots({{"Adagrad", kDim, 0.1f}});
  DiskError error;
  if (memory_rows > 0) {
    Must(table->OpenTier({{{folder}}, memory_rows, Victims::kLeastCounted},
                         std::make_unique<DiskIo>(), &error),
         error.text);
  }
  return table;
}

class Bench {
 public:
  Bench(std::string folder, double millions, double share)
      : folder_(std::move(folder)),
        rows_(static_cast<int64_t>(millions * 1e6)),
        share_(share) {}

  void Run() {
    auto table = MakeTable(
        folder_, static_cast<int64_t>(share_ * static_cast<double>(rows_)));
    Resident(table.get());
    Misses(table.get());
    Save(*table);
    table.reset();
    Hits();
  }

 private:
  // Gives keys 1 to n a row.
  void Fill(EmbeddingTable* table, int64_t n) {
    std::vector<int64_t> keys(kBatch);
    for (int64_t first = 1; first <= n; first += kBatch) {
      for (size_t i = 0; i < kBatch; ++i) {
        keys[i] = KeyOf(static_cast<uint64_t>(first) + i);
      }
      Apply(table, keys);
    }
  }
  void Apply(EmbeddingTable* table, const std::vector<int64_t>& keys) {
    Must(table->Apply({keys.data(), grads_.data(), keys.size(), nullptr, 0, 1},
                      rule_, SerialFor),
         "no memory, or the disk failed");
  }

  void Hits() {
    const int64_t n = std::min<int64_t>(rows_, 1000000);
    auto with = MakeTable(folder_, 4 * n), without = MakeTable(folder_, 0);
    Fill(with.get(), n);
    Fill(without.get(), n);
    std::vector<double> apply, lookup;
    std::vector<float> out(kBatch * kDim);
    for (int round = 0; round < 3 * kRounds; ++round) {
      const std::vector<int64_t> keys =
          ZipfKeys(static_cast<double>(n), &random_);
      double applied[2], looked_up[2];
      for (int turn = 0; turn < 2; ++turn) {
        const int which = (turn + round) % 2;
        EmbeddingTable* const table = (which == 0 ? with : without).get();
        looked_up[which] = Took(CLOCK_THREAD_CPUTIME_ID, [&] {
          table->Lookup(keys.data(), kBatch, UnknownKey::kInitial, out.data(),
                        SerialFor);
        });
        applied[which] =
            Took(CLOCK_THREAD_CPUTIME_ID, [&] { Apply(table, keys); });
      }
      if (round < 3) continue;
      apply.push_back(applied[0] / applied[1]);
      lookup.push_back(looked_up[0] / looked_up[1]);
    }
    std::printf(
        "all rows in memory, CPU with a tier / without: apply %.3f, "
        "lookup %.3f\n",
        Median(apply), Median(lookup));
    std::fflush(stdout);
  }

  void Resident(EmbeddingTable* table) {
    const double before = ResidentMiB();
    Fill(table, rows_);
    for (int step = 0; step < 5; ++step) {
      Apply(table, ZipfKeys(static_cast<double>(rows_), &random_));
    }
    const TierCounts counts = table->tier_counts();
    const double row_bytes = 2 * kDim * sizeof(float);
    const double rows = share_ * static_cast<double>(rows_) * row_bytes;
    const double index = static_cast<double>(table->memory_bytes()) -
                         static_cast<double>(counts.buffer_bytes) -
                         static_cast<double>(counts.memory_rows) * row_bytes;
    std::printf(
        "%.1f M rows, %.0f %% in memory: %lld rows on disk, files %.0f MiB for "
        "%.0f MiB of rows\n"
        "  resident %.0f MiB; rows allowed %.0f MiB, index %.1f and all memory "
        "but rows %.1f bytes a key, buffers %.1f MiB\n",
        static_cast<double>(rows_) * 1e-6, 100 * share_,
        static_cast<long long>(counts.disk_rows),
        static_cast<double>(counts.file_bytes) / kMiB,
        static_cast<double>(counts.disk_rows) * row_bytes / kMiB,
        ResidentMiB() - before, rows / kMiB,
        index / static_cast<double>(table->size()),
        (index + static_cast<double>(counts.buffer_bytes)) /
            static_cast<double>(table->size()),
        static_cast<double>(counts.buffer_bytes) / kMiB);
    std::fflush(stdout);
  }

  // A file as large as the table's.
  void MakeRawFile(uint64_t bytes) {
    std::string name = folder_ + "/rec_estimator_bench_XXXXXX";
    raw_ = mkstemp(name.data());
    Must(raw_ >= 0, "no file in " + folder_);
    unlink(name.c_str());
    fcntl(raw_, F_SETFL, O_DIRECT);
    raw_bytes_ = bytes / kMiB * kMiB;
    const DiskMemory memory(kMiB);
    std::memset(memory.get(), 1, kMiB);
    for (uint64_t at = 0; at < raw_bytes_; at += kMiB) {
      Must(pwrite(raw_, memory.get(), kMiB, static_cast<off_t>(at)) > 0,
           "cannot write");
    }
  }

  // Reads so many random pages a second.
  double RawReads(size_t n, BatchReader* reader) {
    const DiskMemory memory(n * kDiskBlock);
    std::vector<ReadRequest> requests;
    for (size_t i = 0; i < n; ++i) {
      requests.push_back({raw_, kDiskBlock,
                          random_() % (raw_bytes_ / kDiskBlock) * kDiskBlock,
                          memory.get() + i * kDiskBlock, 0});
    }
    return static_cast<double>(n) /
           Took(CLOCK_MONOTONIC, [&] { reader->Read(requests.data(), n); });
  }

  void Misses(EmbeddingTable* table) {
    MakeRawFile(static_cast<uint64_t>(table->tier_counts().file_bytes));
    const auto twin = MakeTable(folder_, 0);
    Fill(twin.get(), rows_);
    const std::unique_ptr<BatchReader> uring = MakeUringReader();
    const std::unique_ptr<BatchReader> threads = MakeThreadsReader();
    std::vector<double> cpu, speed, limit, of_limit, missed;
    const TierCounts before = table->tier_counts();
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<int64_t> keys =
          ZipfKeys(static_cast<double>(rows_), &random_);
      double took[2], reserve = 0;
      const int64_t misses_before = table->tier_counts().misses;
      for (int turn = 0; turn < 2; ++turn) {
        const int which = (turn + round) % 2;
        took[which] = Took(CLOCK_PROCESS_CPUTIME_ID, [&] {
          TrainingStep step({(which == 0 ? table : twin.get())->parts()},
                            {{keys.data(), nullptr, kBatch, nullptr, 0, 1}});
          const double reserved = Took(CLOCK_MONOTONIC, [&] {
            Must(step.Reserve(SerialFor).ok(), "refused");
          });
          if (which == 0) reserve = reserved;
          const TrainingStep::Gradients gradients = {grads_.data(), &rule_, 1};
          Must(step.Apply(&gradients, SerialFor).ok(), "refused");
        });
      }
      const auto misses =
          static_cast<double>(table->tier_counts().misses - misses_before);
      double raw = RawReads(static_cast<size_t>(misses), threads.get());
      if (uring != nullptr) {
        raw = std::max(raw, RawReads(static_cast<size_t>(misses), uring.get()));
      }
      missed.push_back(misses);
      cpu.push_back((took[0] - took[1]) / misses * 1e6);
      speed.push_back(misses / reserve);
      limit.push_back(raw);
      of_limit.push_back(misses / reserve / raw);
    }
    const TierCounts after = table->tier_counts();
    std::printf(
        "  %.0f misses a step: %.0f a second of Reserve, %.2f of the disk's "
        "%.0f; %.2f us CPU a miss\n"
        "  by miss: %.0f bytes read and %.0f written\n",
        Median(missed), Median(speed), Median(of_limit), Median(limit),
        Median(cpu),
        static_cast<double>(after.bytes_read - before.bytes_read) /
            static_cast<double>(after.misses - before.misses),
        static_cast<double>(after.bytes_written - before.bytes_written) /
            static_cast<double>(after.misses - before.misses));
    std::fflush(stdout);
  }

  void Save(const EmbeddingTable& table) {
    std::vector<double> ratios, saves, reads, cpu, waited;
    const double resident = ResidentMiB();
    double most = resident;
    for (int round = 0; round < 3; ++round) {
      float sum = 0;  // So that rows are read.
      const int64_t waited_before = table.tier_counts().read_ns;
      size_t listed = 0;
      const double cpu_before = Seconds(CLOCK_PROCESS_CPUTIME_ID);
      const double took = Took(CLOCK_MONOTONIC, [&] {
        const Snapshot snapshot(table);
        EntryReader reader(snapshot, true, kStep, kListedBytes);
        for (;;) {
          const EntryReader::Batch batch = reader.Next();
          if (batch.n == 0) break;
          for (size_t i = 0; i < batch.n; ++i) {
            for (int f = 0; f < 2 * kDim; ++f) sum += batch.rows[i][f];
          }
          listed += batch.n;
          most = std::max(most, ResidentMiB());
        }
      });
      cpu.push_back((Seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_before) /
                    static_cast<double>(listed) * 1e6);
      waited.push_back(
          static_cast<double>(table.tier_counts().read_ns - waited_before) *
          1e-9 / took);
      Must(sum != 1 && listed == static_cast<size_t>(table.size()), "wrong");
      const double row_mib =
          static_cast<double>(listed) * 2 * kDim * sizeof(float) / kMiB;
      const DiskMemory memory(kMiB);
      const double sequence = Took(CLOCK_MONOTONIC, [&] {
        for (uint64_t at = 0; at < raw_bytes_; at += kMiB) {
          Must(pread(raw_, memory.get(), kMiB, static_cast<off_t>(at)) > 0,
               "cannot read");
        }
      });
      saves.push_back(row_mib / took);
      reads.push_back(static_cast<double>(raw_bytes_) / kMiB / sequence);
      ratios.push_back(saves.back() / reads.back());
    }
    std::printf(
        "  all rows in the order of a save: %.0f MiB of rows a second, %.2f of "
        "the disk's %.0f in sequence; reads wait %.2f of the time, %.2f us CPU "
        "a row, %.0f MiB more memory\n",
        Median(saves), Median(ratios), Median(reads), Median(waited),
        Median(cpu), most - resident);
  }

  const std::string folder_;
  const int64_t rows_;
  const double share_;
  std::mt19937_64 random_{7};
  const AdagradLike rule_{0.05f};
  const std::vector<float> grads_ = std::vector<float>(kBatch * kDim, 0.01f);
  int raw_ = -1;
  uint64_t raw_bytes_ = 0;
};

}  // namespace
}  // namespace rec_estimator

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "bench_disk_tier FOLDER [million rows] [share]\n");
    return 2;
  }
  rec_estimator::Bench(argv[1], argc > 2 ? std::atof(argv[2]) : 4,
                       argc > 3 ? std::atof(argv[3]) : 0.1)
      .Run();
}
