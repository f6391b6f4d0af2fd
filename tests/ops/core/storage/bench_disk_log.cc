// SPDX-License-Identifier: Apache-2.0
// How close does DiskLog come to the limit of its disk?
//
// In turn, and over the same pages of the same file: random reads of 4 KiB by
// 32 threads that call pread, by 64 of them, by io_uring with 256 reads in
// flight, and of rows (16 floats and one slot) by DiskLog with each reader. The
// disk's limit is the fastest of the first three. Then 1 MiB writes by pwrite
// and by DiskLog. A figure is a median over rounds; wall time for speeds, CPU
// time of the process for costs. O_DIRECT throughout.
//   make -f tests/ops/core/Makefile bench-disk FOLDER=/on/the/disk
//   bench_disk_log FOLDER [million rows, default 4] [rounds, default 9]
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ops/core/storage/batch_reader.h"
#include "ops/core/storage/disk_log.h"
#include "ops/core/storage/disk_memory.h"
#include "ops/core/storage/page.h"

namespace rec_estimator {
namespace {

constexpr size_t kFloats = 32;
constexpr size_t kReads = 16384;
constexpr size_t kFewInFlight = 32;
constexpr size_t kWrites = 128;  // Each has 1 MiB.
constexpr size_t kMiB = size_t{1} << 20;
constexpr int64_t kRowsPerMiB = 256 * 30;

double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2,
                   values.end());
  return values[values.size() / 2];
}

// Seconds of wall time and of CPU time, one of each for a round.
struct Times {
  std::vector<double> wall;
  std::vector<double> cpu;

  void Measure(const std::function<void()>& work) {
    const double cpu_before = CpuSeconds();
    const auto before = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - before;
    wall.push_back(took.count());
    cpu.push_back(CpuSeconds() - cpu_before);
  }
};

std::unique_ptr<DiskLog> MustOpen(const std::string& folder,
                                  std::unique_ptr<BatchReader> reader) {
  DiskError error;
  auto log = DiskLog::Open({{folder}}, kFloats,
                           std::make_unique<DiskIo>(std::move(reader)), &error);
  if (log == nullptr) {
    std::fprintf(stderr, "%s\n", error.text.c_str());
    std::exit(1);
  }
  return log;
}

void Check(bool is_good, const DiskError& error) {
  if (is_good) return;
  std::fprintf(stderr, "%s\n", error.text.c_str());
  std::exit(1);
}

// Appends `rows` rows and returns their places.
std::vector<uint32_t> Fill(DiskLog* log, int64_t rows) {
  std::vector<uint32_t> places(static_cast<size_t>(rows));
  const std::vector<float> row(kFloats, 1.0f);
  DiskError error;
  for (int64_t key = 0; key < rows; ++key) {
    DiskLog::NewRow added = {key, row.data()};
    while (log->Append(&added, 1) == 0) {
      Check(log->WriteFullBuffers(&error), error);
    }
    places[key] = added.place;
  }
  return places;
}

// A file of `bytes` random-looking bytes, without a name.
int MakeRawFile(const std::string& folder, uint64_t bytes) {
  std::string name = folder + "/rec_estimator_bench_XXXXXX";
  const int file = mkstemp(name.data());
  if (file < 0) return file;
  unlink(name.c_str());
  fcntl(file, F_SETFL, O_DIRECT);
  const DiskMemory memory(kMiB);
  std::fill_n(reinterpret_cast<float*>(memory.get()), kMiB / sizeof(float),
              1.0f);
  for (uint64_t at = 0; at < bytes; at += kMiB) {
    if (pwrite(file, memory.get(), kMiB, static_cast<off_t>(at)) < 0) return -1;
  }
  return file;
}

void ReadFewAtATime(ReadRequest* requests, size_t n) {
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kFewInFlight; ++t) {
    threads.emplace_back([=] {
      for (size_t i = t; i < n; i += kFewInFlight) ReadOne(&requests[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What a run measured, with each reader or once.
struct Measured {
  explicit Measured(const std::vector<std::unique_ptr<BatchReader>>& all)
      : raw(all.size()), log(all.size()) {
    for (const auto& reader : all) readers.push_back(reader->name());
  }

  std::vector<const char*> readers;
  std::vector<Times> raw, log;
  Times few_in_flight, raw_write, log_write;
};

void Print(const Measured& all, double appended_mib) {
  const auto speed_of = [](const Times& times) {
    return kReads / Median(times.wall);
  };
  double limit = speed_of(all.few_in_flight);
  for (const Times& times : all.raw) {
    limit = std::max(limit, speed_of(times));
  }
  const auto print = [&](const char* what, const char* reader,
                         const Times& times) {
    std::printf("%-10s %-14s %7.0f reads/s  %5.2f us CPU  %4.2f of the limit\n",
                what, reader, speed_of(times), 1e6 * Median(times.cpu) / kReads,
                speed_of(times) / limit);
  };
  print("disk", "32 in flight", all.few_in_flight);
  for (size_t r = 0; r < all.readers.size(); ++r) {
    print("disk", all.readers[r], all.raw[r]);
    print("DiskLog", all.readers[r], all.log[r]);
  }
  std::printf("disk       1 MiB pwrite  %7.0f MiB/s\n",
              kWrites / Median(all.raw_write.wall));
  std::printf("DiskLog    appended rows %7.0f MiB/s\n",
              appended_mib / Median(all.log_write.wall));
}

int Run(const std::string& folder, int64_t rows, int rounds) {
  const bool has_uring = MakeUringReader() != nullptr;
  std::vector<std::unique_ptr<DiskLog>> logs;
  logs.push_back(MustOpen(folder, MakeThreadsReader()));
  if (has_uring) logs.push_back(MustOpen(folder, MakeUringReader()));
  std::vector<std::vector<uint32_t>> places;
  for (const auto& log : logs) places.push_back(Fill(log.get(), rows));
  const uint64_t bytes = logs[0]->counters().file_bytes / kMiB * kMiB;
  const int raw = MakeRawFile(folder, bytes);
  if (raw < 0) return 1;
  std::vector<std::unique_ptr<BatchReader>> readers;
  readers.push_back(MakeThreadsReader());
  if (has_uring) readers.push_back(MakeUringReader());

  const DiskMemory memory(kReads * kDiskBlock);
  std::vector<float> read(kReads * kFloats);
  Measured all(readers);
  const auto appended = std::min<int64_t>(kWrites * kRowsPerMiB, rows);
  std::mt19937_64 random(1);
  for (int round = 0; round < rounds; ++round) {
    std::vector<ReadRequest> requests;
    std::vector<int64_t> keys;
    for (size_t i = 0; i < kReads; ++i) {
      requests.push_back({raw, kDiskBlock,
                          random() % (bytes / kDiskBlock) * kDiskBlock,
                          memory.get() + i * kDiskBlock, 0});
      keys.push_back(static_cast<int64_t>(random() % rows));
    }
    all.few_in_flight.Measure([&] { ReadFewAtATime(requests.data(), kReads); });
    for (size_t r = 0; r < readers.size(); ++r) {
      all.raw[r].Measure([&] { readers[r]->Read(requests.data(), kReads); });
      std::vector<DiskLog::Item> items;
      for (size_t i = 0; i < kReads; ++i) {
        items.push_back({places[r][keys[i]], keys[i], &read[i * kFloats]});
      }
      DiskError error;
      bool is_good = false;
      all.log[r].Measure([&] {
        is_good = logs[r]->Read(items.data(), kReads, kFloats, &error);
      });
      Check(is_good, error);
    }
    all.raw_write.Measure([&] {
      for (size_t w = 0; w < kWrites; ++w) {
        const auto at = static_cast<off_t>(w * kMiB);
        if (pwrite(raw, memory.get(), kMiB, at) < 0) std::exit(1);
      }
    });
    // New rows in the place of the first ones.
    all.log_write.Measure([&] {
      const std::vector<uint32_t> moved = Fill(logs[0].get(), appended);
      logs[0]->Free(places[0].data(), moved.size());
      std::copy(moved.begin(), moved.end(), places[0].begin());
    });
  }
  Print(all, static_cast<double>(appended) / kRowsPerMiB);
  close(raw);
  return 0;
}

}  // namespace
}  // namespace rec_estimator

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "bench_disk_log FOLDER [million rows] [rounds]\n");
    return 2;
  }
  return rec_estimator::Run(argv[1],
                            (argc > 2 ? std::atoll(argv[2]) : 4) * 1000000,
                            argc > 3 ? std::atoi(argv[3]) : 9);
}
