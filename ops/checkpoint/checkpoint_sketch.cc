// SPDX-License-Identifier: Apache-2.0
#include "ops/checkpoint/checkpoint_sketch.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/checkpoint/checkpoint_format.h"
#include "ops/kernel/errors.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/logging.h"

namespace rec_estimator {
namespace {

using ::absl::Status;
using ::absl::StrCat;
using ::tensorflow::DT_INT64;

// Bytes of rows that are read at once.
constexpr int64_t kReadBytes = int64_t{4} << 20;

// A head is read whole, so a damaged file must not make it large.
constexpr int64_t kMostNumbers = int64_t{1} << 20;

int RankOf(const Sketch::Tensor& tensor) { return tensor.width == 0 ? 1 : 2; }

// "[4]" or "[4, 3]".
std::string ShapeText(int64_t rows, int64_t width, int rank) {
  return rank == 1 ? StrCat("[", rows, "]")
                   : StrCat("[", rows, ", ", width, "]");
}

}  // namespace

Status SketchRestore::Damaged(const CheckpointFile& file,
                              const StoredShard& shard,
                              const std::optional<Sketch::Damage>& damage) {
  if (!damage.has_value()) return Status();
  return DataLoss("tensor ", shard.name, damage->suffix, " of ", file.prefix(),
                  " ", damage->rule, "; the file is damaged");
}

Status SketchRestore::ReadHead(CheckpointFile* file, const StoredShard& shard,
                               const Sketch::Tensor& head,
                               std::vector<int64_t>* numbers) const {
  const std::string name = shard.name + head.suffix;
  if (!file->Has(name)) return Status();
  const int rank = RankOf(head);
  StoredTensor tensor;
  TF_RETURN_IF_ERROR(file->Find(name, {DT_INT64}, rank, &tensor));
  const int64_t rows = tensor.rows;
  const int64_t most = kMostNumbers / std::max<int64_t>(head.width, 1);
  if (rows < 1 || rows > most || (rank == 2 && tensor.width != head.width)) {
    return Damaged(
        *file, shard,
        Sketch::Damage{
            head.suffix,
            StrCat("must be ",
                   rank == 1 ? "[g]" : StrCat("[g, ", head.width, "]"),
                   ", 1 <= g <= ", most, ", got ",
                   ShapeText(rows, tensor.width, rank))});
  }
  numbers->resize(rows * std::max<int64_t>(head.width, 1));
  return RowStream(std::move(tensor)).Read(rows, numbers->data());
}

std::string SketchRestore::Loss(const CheckpointFile& file,
                                const StoredShard& shard,
                                const std::string& why) const {
  return StrCat("The counts of keys without a row of table ", resource_.name(),
                " are dropped, and start from 0: ", why, ", which ", shard.name,
                " of ", file.prefix(), " has");
}

Status SketchRestore::ReadHeads(CheckpointFile* file, const StoredShard& shard,
                                std::optional<Stored>* stored,
                                std::string* loss) const {
  stored->reset();
  if (!HasSketch(*file, shard)) {
    const bool counts = resource_.table().filter().threshold > 1;
    for (const std::string& suffix : SketchLayouts()) {
      if (counts && format_.heads.empty() && file->Has(shard.name + suffix)) {
        *loss = Loss(*file, shard,
                     "its filter cannot take over the counts of a CBFFilter");
      }
    }
    return Status();
  }
  Stored found;
  found.heads.resize(format_.heads.size());
  const std::vector<int64_t>& layout = format_.layout;
  TF_RETURN_IF_ERROR(ReadHead(file, shard, format_.heads[0], &found.heads[0]));
  if (found.heads[0].size() != layout.size()) {
    return Damaged(*file, shard,
                   Sketch::Damage{format_.heads[0].suffix,
                                  StrCat("must be [", layout.size(), "], got [",
                                         found.heads[0].size(), "]")});
  }
  std::optional<Sketch::Format> format = sketch_->FormatOf(found.heads[0]);
  if (!format.has_value()) {
    *loss = Loss(*file, shard,
                 StrCat("its filter, of layout [", absl::StrJoin(layout, ", "),
                        "], has more hashes or is too much larger than one of "
                        "layout [",
                        absl::StrJoin(found.heads[0], ", "), "]"));
    return Status();
  }
  found.format = *std::move(format);
  for (size_t h = 1; h < format_.heads.size(); ++h) {
    TF_RETURN_IF_ERROR(
        ReadHead(file, shard, format_.heads[h], &found.heads[h]));
  }
  if (!found.format.columns.empty()) {
    const Sketch::Tensor& first = found.format.columns[0];
    StoredTensor tensor;
    TF_RETURN_IF_ERROR(file->Find(shard.name + first.suffix, {TypeOf(first)},
                                  RankOf(first), &tensor));
    found.rows = tensor.rows;
  }
  TF_RETURN_IF_ERROR(
      Damaged(*file, shard, sketch_->CheckHeads(found.heads, found.rows)));
  *stored = std::move(found);
  return Status();
}

Status SketchRestore::Check(CheckpointFile* file, const StoredShard& shard,
                            std::string* loss) const {
  std::optional<Stored> stored;
  TF_RETURN_IF_ERROR(ReadHeads(file, shard, &stored, loss));
  if (!stored.has_value()) return Status();
  std::vector<RowStream> columns;
  return OpenColumns(file, shard, *stored, &columns);
}

Status SketchRestore::FindLast(const std::vector<Link>& chain,
                               const std::string& name) {
  if (format_.heads.empty()) return Status();
  for (const Link& link : chain) {
    CheckpointFile file(link.prefix);
    TF_RETURN_IF_ERROR(OpenLink(link, &file));
    StoredTable stored;
    TF_RETURN_IF_ERROR(FindStoredTable(&file, name, &stored));
    for (const StoredShard& shard : stored.shards) {
      std::optional<Stored> heads;
      std::string loss;
      TF_RETURN_IF_ERROR(ReadHeads(&file, shard, &heads, &loss));
      if (heads.has_value()) last_[shard.name] = *std::move(heads);
    }
  }
  return Status();
}

Status SketchRestore::Read(CheckpointFile* file, const StoredShard& shard) {
  std::optional<Stored> stored;
  std::string loss;
  TF_RETURN_IF_ERROR(ReadHeads(file, shard, &stored, &loss));
  if (!stored.has_value()) {
    if (table_ != nullptr && !loss.empty()) LOG(WARNING) << loss;
    return Status();
  }
  std::vector<RowStream> columns;
  TF_RETURN_IF_ERROR(OpenColumns(file, shard, *stored, &columns));
  TF_RETURN_IF_ERROR(ReadRows(*file, shard, *stored, &columns));
  const Stored& last = last_[shard.name];
  if (table_ != nullptr) table_->MergeSketchHeads(last.heads, last.rows);
  return Status();
}

Status SketchRestore::OpenColumns(CheckpointFile* file,
                                  const StoredShard& shard,
                                  const Stored& stored,
                                  std::vector<RowStream>* columns) const {
  for (const Sketch::Tensor& column : stored.format.columns) {
    StoredTensor tensor;
    TF_RETURN_IF_ERROR(file->Find(shard.name + column.suffix, {TypeOf(column)},
                                  RankOf(column), &tensor));
    const int64_t rows =
        columns->empty() ? tensor.rows : columns->front().tensor().rows;
    const bool has_width =
        column.width == 0 || rows == 0 || tensor.width == column.width;
    if (tensor.rows != rows || !has_width) {
      return Damaged(
          *file, shard,
          Sketch::Damage{
              column.suffix,
              StrCat("must be ", ShapeText(rows, column.width, RankOf(column)),
                     ", got ",
                     ShapeText(tensor.rows, tensor.width, RankOf(column)))});
    }
    columns->emplace_back(std::move(tensor));
  }
  return Status();
}

Status SketchRestore::ReadRows(const CheckpointFile& file,
                               const StoredShard& shard, const Stored& stored,
                               std::vector<RowStream>* columns) const {
  size_t bytes = 1;
  for (const Sketch::Tensor& column : stored.format.columns) {
    bytes += RowBytes(column);
  }
  const int64_t most =
      std::max<int64_t>(1, kReadBytes / static_cast<int64_t>(bytes));
  std::vector<std::vector<char>> parts(columns->size());
  std::vector<const void*> pointers(columns->size());
  for (int64_t at = 0; at < stored.rows; at += most) {
    const int64_t n = std::min(most, stored.rows - at);
    for (size_t c = 0; c < parts.size(); ++c) {
      parts[c].resize(n * RowBytes(stored.format.columns[c]));
      TF_RETURN_IF_ERROR((*columns)[c].Read(n, parts[c].data()));
      pointers[c] = parts[c].data();
    }
    const Sketch::StoredRows rows = {
        &stored.heads,  &last_.at(shard.name).heads, stored.rows, at, n,
        pointers.data()};
    TF_RETURN_IF_ERROR(Damaged(file, shard, sketch_->CheckRows(rows)));
    if (table_ != nullptr && !table_->MergeSketch(rows)) {
      return NoMemoryForRows(resource_, n);
    }
  }
  return Status();
}

}  // namespace rec_estimator
