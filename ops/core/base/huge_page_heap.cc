// SPDX-License-Identifier: Apache-2.0
#include "ops/core/base/huge_page_heap.h"

#include <bitset>
#include <cstring>
#include <new>
#include <utility>

#include "ops/core/base/cpu_memory.h"

namespace rec_estimator {
namespace {

constexpr size_t kUnits = HugePageHeap::kRegionBytes / HugePageHeap::kUnit;

size_t UnitsOf(size_t bytes) {
  return (bytes + HugePageHeap::kUnit - 1) / HugePageHeap::kUnit;
}

}  // namespace

struct HugePageHeap::Region {
  char* begin() const { return static_cast<char*>(memory.get()); }
  bool Contains(const char* block) const {
    return block >= begin() && block < begin() + kRegionBytes;
  }
  // The first of `units` free units in a row; kUnits if there are none.
  size_t FindFree(size_t units) const {
    size_t in_a_row = 0;
    for (size_t u = 0; u < kUnits; ++u) {
      in_a_row = used[u] ? 0 : in_a_row + 1;
      if (in_a_row == units) return u + 1 - units;
    }
    return kUnits;
  }
  void Set(size_t first, size_t units, bool value) {
    for (size_t u = first; u < first + units; ++u) used[u] = value;
    used_units += value ? units : -units;
  }

  ZeroedMemory memory;
  std::bitset<kUnits> used;
  size_t used_units = 0;
  std::unique_ptr<Region> next;
};

HugePageHeap::HugePageHeap() = default;

HugePageHeap::~HugePageHeap() {
  // One by one: the destructor of a long list would recurse.
  while (first_ != nullptr) first_ = std::move(first_->next);
}

HugePageHeap& HugePageHeap::OfProcess() {
  // Never destroyed: tables may be freed when the process ends.
  static HugePageHeap& heap = *new HugePageHeap;
  return heap;
}

char* HugePageHeap::TakeFromRegions(size_t units) {
  for (Region* region = first_.get(); region != nullptr;
       region = region->next.get()) {
    if (kUnits - region->used_units < units) continue;
    const size_t first = region->FindFree(units);
    if (first == kUnits) continue;
    region->Set(first, units, true);
    return region->begin() + first * kUnit;
  }
  return nullptr;
}

char* HugePageHeap::TakeFromNewRegion(size_t units) {
  std::unique_ptr<Region> region(new (std::nothrow) Region);
  if (region == nullptr) return nullptr;
  region->memory = AllocateZeroed(kRegionBytes, Pages::kHuge);
  if (region->memory == nullptr) return nullptr;
  region->Set(0, units, true);
  // Last, so that older regions are filled first.
  std::unique_ptr<Region>* link = &first_;
  while (*link != nullptr) link = &(*link)->next;
  *link = std::move(region);
  return (*link)->begin();
}

void* HugePageHeap::Allocate(size_t bytes) {
  const size_t units = UnitsOf(bytes);
  char* block;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    block = TakeFromRegions(units);
    if (block == nullptr) block = TakeFromNewRegion(units);
  }
  if (block != nullptr) std::memset(block, 0, units * kUnit);
  return block;
}

void HugePageHeap::Free(void* block, size_t bytes) {
  char* begin = static_cast<char*>(block);
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Region>* link = &first_;
  while (!(*link)->Contains(begin)) link = &(*link)->next;
  Region& region = **link;
  region.Set(static_cast<size_t>(begin - region.begin()) / kUnit,
             UnitsOf(bytes), false);
  if (region.used_units == 0) *link = std::move(region.next);
}

size_t HugePageHeap::regions() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t n = 0;
  for (const Region* region = first_.get(); region != nullptr;
       region = region->next.get()) {
    ++n;
  }
  return n;
}

}  // namespace rec_estimator
