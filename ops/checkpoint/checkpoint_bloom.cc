// SPDX-License-Identifier: Apache-2.0
#include "ops/checkpoint/checkpoint_bloom.h"

#include <algorithm>
#include <utility>

#include "ops/checkpoint/checkpoint_format.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/logging.h"

namespace rec_estimator {
namespace {

using ::tensorflow::DT_INT64;
using ::tensorflow::Status;
using ::tensorflow::errors::DataLoss;

// Bytes of blocks that are read at once.
constexpr int64_t kBloomBytes = int64_t{4} << 20;

// Reads the generations of the Bloom filter of a shard. Files of earlier
// releases have one, which began at step 0. Leaves `generations` empty if the
// file has no Bloom filter.
Status ReadGenerations(CheckpointFile* file, const StoredShard& shard,
                       BloomRestore::Generations* generations) {
  generations->clear();
  const std::string blocks_name = shard.name + kBloomBlocks;
  if (!file->Has(shard.name + kBloomLayout)) return Status();
  StoredTensor tensor;
  TF_RETURN_IF_ERROR(file->Find(blocks_name, {DT_INT64}, 1, &tensor));
  const int64_t blocks = tensor.rows;
  const std::string name = shard.name + kBloomGenerationsOf;
  if (!file->Has(name)) {
    *generations = {{0, 0, blocks}};
    return Status();
  }
  TF_RETURN_IF_ERROR(file->Find(name, {DT_INT64}, 2, &tensor));
  const int64_t n = tensor.rows;
  if (n < 1 || n > EmbeddingTable::kMaxGenerations ||
      tensor.width != kBloomGenerationSize) {
    return DataLoss(
        "tensor ", name, " of ", file->prefix(),
        " must be [g, 3], 1 <= g <= ", EmbeddingTable::kMaxGenerations,
        ", got [", n, ", ", tensor.width, "]; the file is damaged");
  }
  std::vector<int64_t> numbers(n * kBloomGenerationSize);
  TF_RETURN_IF_ERROR(RowStream(std::move(tensor)).Read(n, numbers.data()));
  int64_t left = blocks;
  for (auto it = numbers.begin(); it != numbers.end(); it += 3) {
    const EmbeddingTable::BloomGeneration each = {it[0], it[1], it[2]};
    const bool follows = generations->empty() ||
                         (each.number == generations->back().number - 1 &&
                          each.start <= generations->back().start);
    // Far from an overflow by further rotations.
    constexpr int64_t kMost = int64_t{1} << 62;
    if (!follows || each.number < 0 || each.number > kMost || each.start < 0 ||
        each.start > kMost || each.blocks < 0 || each.blocks > left) {
      return DataLoss("tensor ", name, " of ", file->prefix(),
                      " must have consecutive numbers, descending starts and "
                      "in sum ",
                      blocks, " blocks, got [", each.number, ", ", each.start,
                      ", ", each.blocks, "]; the file is damaged");
    }
    left -= each.blocks;
    generations->push_back(each);
  }
  if (left == 0) return Status();
  return DataLoss("tensor ", name, " of ", file->prefix(), " must have ",
                  blocks, " blocks in sum, got ", blocks - left,
                  "; the file is damaged");
}

}  // namespace

Status BloomRestore::FindGenerations(const std::vector<Link>& chain,
                                     const std::string& name) {
  if (layout_.blocks == 0) return Status();
  for (const Link& link : chain) {
    CheckpointFile file(link.prefix);
    TF_RETURN_IF_ERROR(OpenLink(link, &file));
    StoredTable stored;
    TF_RETURN_IF_ERROR(FindStoredTable(&file, name, &stored));
    for (const StoredShard& shard : stored.shards) {
      Generations generations;
      TF_RETURN_IF_ERROR(ReadGenerations(&file, shard, &generations));
      if (!generations.empty()) last_generations_[shard.name] = generations;
    }
  }
  return Status();
}

Status BloomRestore::Read(CheckpointFile* file, const StoredShard& shard) {
  const std::string name = shard.name + kBloomLayout;
  // A table without a Bloom filter drops the counts.
  if (layout_.blocks == 0 || !file->Has(name)) return Status();
  StoredTensor tensor;
  TF_RETURN_IF_ERROR(file->Find(name, {DT_INT64}, 1, &tensor));
  int64_t here[kBloomLayoutSize], there[kBloomLayoutSize];
  if (tensor.rows != kBloomLayoutSize) {
    return DataLoss("tensor ", name, " of ", file->prefix(), " must be [",
                    kBloomLayoutSize, "], got [", tensor.rows,
                    "]; the file is damaged");
  }
  TF_RETURN_IF_ERROR(
      RowStream(std::move(tensor)).ReadIntegers(kBloomLayoutSize, there));
  CopyLayout(layout_, here);
  if (!std::equal(here, here + kBloomLayoutSize, there)) {
    if (table_ != nullptr) {
      LOG(WARNING) << "The counts of the filtered keys of table "
                   << resource_.name() << " are dropped: its Bloom filter has "
                   << here[0] << " blocks of " << here[1] << " cells of "
                   << here[3] << " bits and " << here[2] << " hashes, that in "
                   << file->prefix() << " has " << there[0] << ", " << there[1]
                   << ", " << there[3] << " and " << there[2];
    }
    return Status();
  }
  return WithCounterType(BloomCounterType(layout_), [&](auto* counter) {
    return ReadBlocks(file, shard, counter);
  });
}

template <typename Counter>
Status BloomRestore::ReadBlocks(CheckpointFile* file, const StoredShard& shard,
                                Counter*) {
  const int64_t width = layout_.cells_per_block;
  const std::string blocks_name = shard.name + kBloomBlocks;
  const std::string counters_name = shard.name + kBloomCounters;
  StoredTensor tensor;
  TF_RETURN_IF_ERROR(file->Find(blocks_name, {DT_INT64}, 1, &tensor));
  const int64_t blocks = tensor.rows;
  RowStream numbers(std::move(tensor));
  TF_RETURN_IF_ERROR(
      file->Find(counters_name, {BloomCounterType(layout_)}, 2, &tensor));
  if (tensor.rows != blocks || (blocks > 0 && tensor.width != width)) {
    return DataLoss("tensor ", counters_name, " of ", file->prefix(),
                    " must be [", blocks, ", ", width, "], got [", tensor.rows,
                    ", ", tensor.width, "]; the file is damaged");
  }
  RowStream counters(std::move(tensor));
  Generations generations;
  TF_RETURN_IF_ERROR(ReadGenerations(file, shard, &generations));
  const Generations& last = last_generations_[shard.name];
  for (const EmbeddingTable::BloomGeneration& each : generations) {
    // Its age at the end of the chain.
    const int64_t age = last.front().number - each.number;
    const bool is_kept = age >= 0 && age < static_cast<int64_t>(last.size());
    TF_RETURN_IF_ERROR(ReadGeneration<Counter>(
        *file, shard, each.blocks, is_kept ? static_cast<int>(age) : -1,
        &numbers, &counters));
  }
  if (table_ != nullptr) table_->MergeGenerations(last);
  return Status();
}

template <typename Counter>
Status BloomRestore::ReadGeneration(const CheckpointFile& file,
                                    const StoredShard& shard, int64_t blocks,
                                    int age, RowStream* numbers,
                                    RowStream* counters) {
  const int64_t width = layout_.cells_per_block;
  const uint64_t largest = (uint64_t{1} << layout_.cell_bits) - 1;
  const int64_t most = std::max<int64_t>(1, kBloomBytes / (width * 4));
  std::vector<int64_t> number;
  std::vector<Counter> stored;
  std::vector<uint32_t> cells;
  for (int64_t at = 0; at < blocks; at += most) {
    const int64_t n = std::min(most, blocks - at);
    number.resize(n);
    stored.resize(n * width);
    TF_RETURN_IF_ERROR(numbers->ReadIntegers(n, number.data()));
    TF_RETURN_IF_ERROR(counters->Read(n, stored.data()));
    for (const int64_t block : number) {
      if (block < 0 || block >= layout_.blocks) {
        return DataLoss("tensor ", shard.name, kBloomBlocks, " of ",
                        file.prefix(), " must have numbers in [0, ",
                        layout_.blocks, "), got ", block,
                        "; the file is damaged");
      }
    }
    for (const Counter cell : stored) {
      if (cell > largest) {
        return DataLoss("tensor ", shard.name, kBloomCounters, " of ",
                        file.prefix(), " must have counts <= ", largest,
                        ", got ", cell, "; the file is damaged");
      }
    }
    if (table_ == nullptr || age < 0) continue;
    cells.assign(stored.begin(), stored.end());
    if (!table_->MergeBloom(age, number.data(), n, cells.data())) {
      return NoMemoryForRows(resource_, n);
    }
  }
  return Status();
}

}  // namespace rec_estimator
