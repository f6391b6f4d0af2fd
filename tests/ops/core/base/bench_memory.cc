// SPDX-License-Identifier: Apache-2.0
// What does this machine take for a cache line at a random place, and for lines
// in sequence? Tables cannot be faster (docs/core_measurements.md).
//
// Threads read lines of the same memory, at random places and prefetched 32
// lines ahead, as lookups do. Before each measurement, a thread reads and
// writes other memory, as the net of a model. Prints a JSON object per figure:
// medians over rounds, of the slowest thread.
//   make -f tests/ops/core/Makefile bench-memory     needs 8.5 GB of memory
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMiB = size_t{1} << 20;
constexpr int kRounds = 9;

double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * time.tv_nsec;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Memory {
 public:
  Memory(size_t bytes, bool huge)
      : bytes_(bytes + kHugePage),
        mapped_(static_cast<char*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    if (mapped_ == MAP_FAILED) std::abort();
    begin_ = mapped_ +
             (kHugePage - reinterpret_cast<uintptr_t>(mapped_) % kHugePage);
    madvise(begin_, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    std::fill(begin_, begin_ + bytes, char{1});
  }
  ~Memory() { munmap(mapped_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  char* begin() const { return begin_; }

 private:
  const size_t bytes_;
  char* const mapped_;
  char* begin_;
};

void TakeCaches(std::vector<float>* net) {
  for (float& each : *net) each += 1.0f;
}

constexpr size_t kInSequence = 8 * kMiB;  // The vectors of a batch.
constexpr size_t kPlaces = size_t{1} << 16;
constexpr size_t kAhead = 32;

// CPU time of the slowest of some threads, of a unit of work. Thread t calls
// work(memory, t, places) for `units` units; places (kPlaces): random lines in
// the first `used` bytes of each huge page.
template <typename Work>
double NanosecondsEach(int threads, size_t bytes, size_t used, bool huge,
                       size_t units, const Work& work) {
  const Memory memory(bytes, huge);
  std::vector<double> medians(static_cast<size_t>(threads));
  std::vector<std::thread> all;
  for (size_t t = 0; t < medians.size(); ++t) {
    all.emplace_back([&, t, bytes, used, units] {
      std::vector<float> net(size_t{16} << 20);
      std::vector<size_t> places(kPlaces);
      std::mt19937_64 random(t);
      std::vector<double> times;
      for (int r = 0; r < kRounds; ++r) {
        for (size_t& each : places) {
          each = random() % (bytes / kHugePage) * kHugePage +
                 random() % (used / kLine) * kLine;
        }
        TakeCaches(&net);
        const double start = ThreadSeconds();
        work(memory.begin(), t, places);
        times.push_back((ThreadSeconds() - start) / units * 1e9);
      }
      medians[t] = Median(times);
    });
  }
  for (std::thread& each : all) each.join();
  return *std::max_element(medians.begin(), medians.end());
}

volatile uint64_t sink;

double RandomLine(int threads, size_t bytes, size_t used, bool huge) {
  return NanosecondsEach(
      threads, bytes, used, huge, kPlaces,
      [](const char* memory, size_t, const std::vector<size_t>& places) {
        uint64_t sum = 0;
        for (size_t i = 0; i < kPlaces; ++i) {
          if (i + kAhead < kPlaces) {
            __builtin_prefetch(memory + places[i + kAhead]);
          }
          sum += static_cast<unsigned char>(memory[places[i]]);
        }
        sink = sum;
      });
}

// Each thread has memory of its own.
double LineInSequence(int threads, bool written) {
  return NanosecondsEach(
      threads, static_cast<size_t>(threads) * kInSequence, kHugePage, true,
      kInSequence / kLine,
      [written](char* memory, size_t t, const std::vector<size_t>&) {
        auto* words = reinterpret_cast<uint64_t*>(memory + t * kInSequence);
        const size_t n = kInSequence / sizeof(uint64_t);
        if (written) {
          std::fill(words, words + n, uint64_t{2});
          return;
        }
        uint64_t sum = 0;
        for (size_t i = 0; i < n; ++i) sum += words[i];
        sink = sum;
      });
}

}  // namespace

int main() {
  const auto print = [](const char* what, size_t bytes, bool huge, int threads,
                        double ns) {
    std::printf(
        "{\"what\": \"%s\", \"MiB\": %zu, \"pages\": \"%s\", \"threads\": %d, "
        "\"ns_of_cpu_a_line\": %.1f}\n",
        what, bytes / kMiB, huge ? "huge" : "4 KiB", threads, ns);
    std::fflush(stdout);
  };
  for (const int threads : {1, 2}) {
    for (const size_t mib : {16, 64, 256, 1024, 8192}) {
      for (const bool huge : {true, false}) {
        print("random", mib * kMiB, huge, threads,
              RandomLine(threads, mib * kMiB, kHugePage, huge));
      }
    }
    // As many huge pages as the line before, but a quarter of their lines.
    print("random, a quarter of each huge page", 8192 * kMiB, true, threads,
          RandomLine(threads, 8192 * kMiB, kHugePage / 4, true));
    for (const bool written : {false, true}) {
      print(written ? "written in sequence" : "read in sequence", kInSequence,
            true, threads, LineInSequence(threads, written));
    }
  }
}
