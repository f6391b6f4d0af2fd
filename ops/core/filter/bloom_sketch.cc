// SPDX-License-Identifier: Apache-2.0
#include "ops/core/filter/bloom_sketch.h"

#include <algorithm>
#include <memory>
#include <string>

namespace rec_estimator {
namespace {

// The tensors of a checkpoint, in the order of Format.
constexpr char kLayout[] = "-cbf_layout";
constexpr char kGenerations[] = "-cbf_generations";
constexpr char kBlocks[] = "-cbf_blocks";
constexpr char kCounters[] = "-cbf_counters";
enum { kLayoutHead, kGenerationsHead };
enum { kBlocksColumn, kCountersColumn };
enum { kLayoutBlocks, kLayoutCells, kLayoutHashes, kLayoutBits };
constexpr int64_t kGenerationWidth = 3;

std::unique_ptr<Sketch> Make(const SketchSpec& spec, uint32_t threshold) {
  return std::make_unique<BloomSketch>(
      threshold, static_cast<int64_t>(spec.parameters.at("max_element_size")),
      spec.parameters.at("false_positive_probability"));
}

// options.py has the same limits. A filter for more keys would need more than
// 2^63 bits at the lowest rate.
const RegisterSketch kRegistered({"counting_bloom_filter",
                                  {{"max_element_size", true, 1, 0x1p40},
                                   {"false_positive_probability", false, 0, 1}},
                                  Make,
                                  kLayout});

// Calls work(zero), whose type is that of the counters.
template <typename Work>
void WithCounter(Sketch::Type type, const Work& work) {
  switch (type) {
    case Sketch::Type::kUint8:
      return work(uint8_t{0});
    case Sketch::Type::kUint16:
      return work(uint16_t{0});
    default:
      return work(uint32_t{0});
  }
}

Sketch::Type CounterType(const std::vector<int64_t>& layout) {
  if (layout[kLayoutBits] <= 8) return Sketch::Type::kUint8;
  if (layout[kLayoutBits] <= 16) return Sketch::Type::kUint16;
  return Sketch::Type::kUint32;
}

// [first, last]
struct Range {
  int64_t first, last;
};

// What FastRange makes, for `to` numbers, of the hashes of which it makes i for
// `from` numbers.
Range SharedWith(int64_t i, int64_t from, int64_t to) {
  __extension__ using Uint128 = unsigned __int128;
  const auto first_hash = [from](int64_t number) {  // Up to 2^64.
    const auto n = static_cast<Uint128>(from);
    return ((static_cast<Uint128>(number) << 64) + n - 1) / n;
  };
  const auto n = static_cast<uint64_t>(to);
  return {
      static_cast<int64_t>(FastRange(static_cast<uint64_t>(first_hash(i)), n)),
      static_cast<int64_t>(
          FastRange(static_cast<uint64_t>(first_hash(i + 1) - 1), n))};
}

}  // namespace

BloomSketch::BloomSketch(uint32_t threshold, int64_t max_elements,
                         double false_positive_rate)
    : geometry_(kStripes, threshold, max_elements, false_positive_rate) {
  for (BloomGenerations& stripe : stripes_) stripe.SetGeometry(&geometry_);
}

// ------------------------------------------------------------------- counting

template <typename Visit>
void BloomSketch::ForEachKey(const int64_t* keys, const uint32_t* at, size_t n,
                             const Visit& visit) const {
  BloomIndex indices[kAhead];
  int stripes[kAhead];
  const auto fetch = [&](size_t i) {
    const uint64_t hash = MixKey(keys[at[i]]);
    const int s = StripeOf(hash);
    stripes[i % kAhead] = s;
    indices[i % kAhead] = stripes_[s].young().IndexOf(hash);
    stripes_[s].Prefetch(indices[i % kAhead]);
  };
  for (size_t i = 0; i < std::min(n, kAhead); ++i) fetch(i);
  for (size_t i = 0; i < n; ++i) {
    visit(indices[i % kAhead], stripes[i % kAhead], i);
    if (i + kAhead < n) fetch(i + kAhead);
  }
}

void BloomSketch::Estimate(const int64_t* keys, const uint32_t* at, size_t n,
                           uint32_t* counts) const {
  ForEachKey(keys, at, n, [&](const BloomIndex& index, int s, size_t i) {
    counts[at[i]] = stripes_[s].Estimate(index);
  });
}

void BloomSketch::Raise(const int64_t* keys, const uint32_t* at, size_t n,
                        const uint32_t* counts, bool tracking) {
  ForEachKey(keys, at, n, [&](const BloomIndex& index, int s, size_t i) {
    stripes_[s].Raise(index, counts[at[i]], tracking);
  });
}

// ----------------------------------------------------------------------- room

bool BloomSketch::HasRoom(int s, int64_t keys) const {
  const BloomStripe& young = stripes_[s].young();
  return young.used() + keys <= young.capacity();
}

bool BloomSketch::MakeRoom(int s, int64_t keys) {
  BloomStripe& young = stripes_[s].young();
  const int64_t needed = young.used() + keys;
  if (needed <= young.capacity()) return true;
  // After a rotation, as much as the previous generation needed, so that the
  // new one need not grow again.
  const int64_t before = stripes_[s][1].used();
  return (before > needed && young.Reserve(before, StripeStagger(s))) ||
         young.Reserve(needed, StripeStagger(s));
}

void BloomSketch::Clear() {
  for (BloomGenerations& stripe : stripes_) stripe.Clear();
  ages_ = GenerationAges();
}

// --------------------------------------------------------------------- ageing

void BloomSketch::FollowAges(bool has_rotated) {
  for (BloomGenerations& stripe : stripes_) {
    if (has_rotated) stripe.Rotate();
    stripe.Keep(ages_.count());
  }
}

void BloomSketch::AgeBySteps(int64_t version, int64_t stamp) {
  FollowAges(ages_.AgeBySteps(version, stamp));
}

bool BloomSketch::IsAgeingDue() const {
  int64_t in_use = 0;
  for (const BloomGenerations& stripe : stripes_) {
    in_use += stripe.young().CellsInUse();
  }
  return in_use >= geometry_.half_full_cells();
}

void BloomSketch::AgeByKeys(int64_t stamp) {
  ages_.Rotate(stamp);
  FollowAges(/*has_rotated=*/true);
}

// ---------------------------------------------------------------------- saves

Sketch::Format BloomSketch::FormatFor(const std::vector<int64_t>& layout) {
  return {{{kLayout, Type::kInt64, 0},
           {kGenerations, Type::kInt64, kGenerationWidth}},
          {{kBlocks, Type::kInt64, 0},
           {kCounters, CounterType(layout), layout[kLayoutCells]}},
          layout};
}

Sketch::Format BloomSketch::format() const {
  return FormatFor({geometry_.stripe_blocks() * kStripes, geometry_.cells(),
                    geometry_.hashes(), geometry_.cell_bits()});
}

std::optional<Sketch::Format> BloomSketch::FormatOf(
    const std::vector<int64_t>& layout) const {
  constexpr int64_t kMostCells = int64_t{1} << 14,
                    kMostBlocks = int64_t{1} << 46;
  if (layout == format().layout) return format();
  if (layout.size() != format().layout.size()) return std::nullopt;
  const int64_t blocks = layout[kLayoutBlocks], cells = layout[kLayoutCells],
                bits = layout[kLayoutBits];
  const bool is_layout = blocks >= kStripes && blocks <= kMostBlocks &&
                         blocks % kStripes == 0 && cells >= 1 &&
                         cells <= kMostCells &&
                         (bits == 4 || bits == 8 || bits == 16 || bits == 32);
  if (!is_layout || layout[kLayoutHashes] < geometry_.hashes() ||
      geometry_.stripe_blocks() > kMostGrowth * (blocks / kStripes)) {
    return std::nullopt;
  }
  return FormatFor(layout);
}

int64_t BloomSketch::RowsOf(int age, bool only_changed) const {
  int64_t rows = 0;
  for (const BloomGenerations& stripe : stripes_) {
    stripe[age].ForEach([&](const Block* block) {
      rows += !only_changed || BloomStripe::Changed(*block);
    });
  }
  return rows;
}

Sketch::Heads BloomSketch::SaveHeads(bool only_changed) const {
  std::vector<int64_t> generations;
  for (int age = 0; age < ages_.count(); ++age) {
    generations.insert(
        generations.end(),
        {ages_.number() - age, ages_.start(age), RowsOf(age, only_changed)});
  }
  return {format().layout, generations};
}

int64_t BloomSketch::RowsToSave(bool only_changed) const {
  int64_t rows = 0;
  for (int age = 0; age < ages_.count(); ++age) {
    rows += RowsOf(age, only_changed);
  }
  return rows;
}

// Generation by generation, the numbers of blocks ascending.
void BloomSketch::SaveRows(bool only_changed, const VisitRow& visit) const {
  std::vector<uint32_t> cells(static_cast<size_t>(geometry_.cells()));
  std::vector<const Block*> blocks;
  WithCounter(CounterType(format().layout), [&](auto zero) {
    std::vector<decltype(zero)> counters(cells.size());
    for (int i = 0; i < ages_.count() * kStripes; ++i) {
      const int s = i % kStripes;
      const BloomStripe& bloom = stripes_[s][i / kStripes];
      blocks.clear();
      bloom.ForEach([&](const Block* block) {
        if (!only_changed || BloomStripe::Changed(*block)) {
          blocks.push_back(block);
        }
      });
      std::sort(blocks.begin(), blocks.end(),
                [](const Block* a, const Block* b) {
                  return a->number() < b->number();
                });
      for (const Block* block : blocks) {
        bloom.Unpack(*block, cells.data());
        std::copy(cells.begin(), cells.end(), counters.begin());
        const int64_t number = s * geometry_.stripe_blocks() +
                               static_cast<int64_t>(block->number());
        const void* const row[] = {&number, counters.data()};
        visit(row);
      }
    }
  });
}

// ------------------------------------------------------------------- restores

std::vector<BloomSketch::Generation> BloomSketch::GenerationsOf(
    const Heads& heads, int64_t total) {
  const std::vector<int64_t>& numbers = heads[kGenerationsHead];
  if (numbers.empty()) return {{0, 0, total}};
  std::vector<Generation> generations;
  for (auto it = numbers.begin(); it != numbers.end(); it += kGenerationWidth) {
    generations.push_back({it[0], it[1], it[2]});
  }
  return generations;
}

std::optional<Sketch::Damage> BloomSketch::CheckHeads(const Heads& heads,
                                                      int64_t total) const {
  const std::vector<Generation> generations = GenerationsOf(heads, total);
  const auto damage = [](const std::string& rule) {
    return Damage{kGenerations, rule};
  };
  if (generations.size() > kBloomGenerations) {
    return damage(
        "must be [g, 3], 1 <= g <= " + std::to_string(kBloomGenerations) +
        ", got [" + std::to_string(generations.size()) + ", 3]");
  }
  int64_t left = total;
  const Generation* younger = nullptr;
  for (const Generation& each : generations) {
    const bool follows =
        younger == nullptr ||
        (each.number == younger->number - 1 && each.start <= younger->start);
    // Far from an overflow by further rotations.
    constexpr int64_t kMost = int64_t{1} << 62;
    if (!follows || each.number < 0 || each.number > kMost || each.start < 0 ||
        each.start > kMost || each.rows < 0 || each.rows > left) {
      return damage(
          "must have consecutive numbers, descending starts and in "
          "sum " +
          std::to_string(total) + " blocks, got [" +
          std::to_string(each.number) + ", " + std::to_string(each.start) +
          ", " + std::to_string(each.rows) + "]");
    }
    left -= each.rows;
    younger = &each;
  }
  if (left == 0) return std::nullopt;
  return damage("must have " + std::to_string(total) + " blocks in sum, got " +
                std::to_string(total - left));
}

std::optional<Sketch::Damage> BloomSketch::CheckRows(
    const StoredRows& rows) const {
  const std::vector<int64_t>& layout = (*rows.heads)[kLayoutHead];
  const int64_t blocks = layout[kLayoutBlocks];
  const auto* numbers =
      static_cast<const int64_t*>(rows.columns[kBlocksColumn]);
  for (int64_t i = 0; i < rows.n; ++i) {
    if (numbers[i] >= 0 && numbers[i] < blocks) continue;
    return Damage{kBlocks, "must have numbers in [0, " +
                               std::to_string(blocks) + "), got " +
                               std::to_string(numbers[i])};
  }
  const uint64_t most = (uint64_t{1} << layout[kLayoutBits]) - 1;
  uint64_t largest = 0;
  WithCounter(CounterType(layout), [&](auto zero) {
    const auto* counters =
        static_cast<const decltype(zero)*>(rows.columns[kCountersColumn]);
    for (int64_t i = 0; i < rows.n * layout[kLayoutCells]; ++i) {
      largest = std::max<uint64_t>(largest, counters[i]);
    }
  });
  if (largest <= most) return std::nullopt;
  return Damage{kCounters, "must have counts <= " + std::to_string(most) +
                               ", got " + std::to_string(largest)};
}

template <typename Visit>
void BloomSketch::ForEachKept(const StoredRows& rows, const Visit& visit) {
  const std::vector<Generation> last = GenerationsOf(*rows.last, 0);
  int64_t begin = 0;  // The first row of the generation.
  for (const Generation& each : GenerationsOf(*rows.heads, rows.total)) {
    const int64_t first = std::max(begin, rows.first);
    begin += each.rows;
    const int64_t end = std::min(begin, rows.first + rows.n);
    // The age of the generation at the end of the chain.
    const int64_t age = last.front().number - each.number;
    if (age < 0 || age >= static_cast<int64_t>(last.size())) continue;
    for (int64_t i = first; i < end; ++i) {
      visit(static_cast<int>(age), i - rows.first);
    }
  }
}

bool BloomSketch::MergeRows(const StoredRows& rows, bool tracking) {
  const std::vector<int64_t>& layout = (*rows.heads)[kLayoutHead];
  const auto* blocks = static_cast<const int64_t*>(rows.columns[kBlocksColumn]);
  const int64_t in_stripe = layout[kLayoutBlocks] / kStripes;
  // The blocks here that share keys with the block of row i.
  const auto blocks_of = [&](int64_t i) {
    return SharedWith(blocks[i] % in_stripe, in_stripe,
                      geometry_.stripe_blocks());
  };
  // All stripes get their room before any cell changes.
  std::array<std::array<int64_t, kBloomGenerations>, kStripes> added{};
  ForEachKept(rows, [&](int age, int64_t i) {
    const int64_t s = blocks[i] / in_stripe;
    const Range range = blocks_of(i);
    for (int64_t b = range.first; b <= range.last; ++b) {
      added[s][age] +=
          stripes_[s][age].Find(static_cast<uint64_t>(b)) == nullptr;
    }
  });
  for (int s = 0; s < kStripes; ++s) {
    for (int age = 0; age < kBloomGenerations; ++age) {
      BloomStripe& bloom = stripes_[s][age];
      if (!bloom.Reserve(bloom.used() + added[s][age], StripeStagger(s))) {
        return false;
      }
    }
  }
  const int64_t width = layout[kLayoutCells];
  std::vector<Range> shared;  // The stored cells that share keys with a cell.
  for (int cell = 0; cell < geometry_.cells(); ++cell) {
    shared.push_back(SharedWith(cell, geometry_.cells(), width));
  }
  std::vector<uint32_t> cells(shared.size());
  WithCounter(CounterType(layout), [&](auto zero) {
    const auto* counters =
        static_cast<const decltype(zero)*>(rows.columns[kCountersColumn]);
    ForEachKept(rows, [&](int age, int64_t i) {
      const auto* stored = counters + i * width;
      for (size_t cell = 0; cell < cells.size(); ++cell) {
        const Range& range = shared[cell];
        cells[cell] =
            *std::max_element(stored + range.first, stored + range.last + 1);
      }
      BloomStripe& bloom = stripes_[blocks[i] / in_stripe][age];
      const Range range = blocks_of(i);
      for (int64_t b = range.first; b <= range.last; ++b) {
        bloom.Merge(cells.data(), tracking,
                    bloom.FindOrAdd(static_cast<uint64_t>(b)));
      }
    });
  });
  return true;
}

void BloomSketch::MergeHeads(const Heads& last, int64_t total) {
  const std::vector<Generation> generations = GenerationsOf(last, total);
  std::vector<int64_t> starts;
  for (const Generation& each : generations) starts.push_back(each.start);
  ages_.Merge(generations.front().number, starts);
}

}  // namespace rec_estimator
