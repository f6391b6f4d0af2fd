// SPDX-License-Identifier: Apache-2.0
// Implements checkpoint_check.h.
#include "ops/checkpoint/checkpoint_check.h"

#include <cstddef>
#include <unordered_set>
#include <utility>

#include "ops/checkpoint/checkpoint_format.h"
#include "ops/checkpoint/checkpoint_sketch.h"
#include "ops/core/base/key_hash.h"
#include "ops/kernel/errors.h"
#include "ops/table/slot_attributes.h"

namespace rec_estimator {

using ::absl::Status;
using ::tensorflow::DT_INT32;
using ::tensorflow::DT_INT64;
using ::tensorflow::OpKernelConstruction;

Status ReadRequest(OpKernelConstruction* context, RestoreRequest* request) {
  KeyRules& rules = request->rules;
  TF_RETURN_IF_ERROR(context->GetAttr("tensor_name", &request->name));
  TF_RETURN_IF_ERROR(context->GetAttr("part", &rules.part));
  TF_RETURN_IF_ERROR(context->GetAttr("num_parts", &rules.num_parts));
  TF_RETURN_IF_ERROR(context->GetAttr("key_dtype", &rules.key_dtype));
  TF_RETURN_IF_ERROR(ReadSlots(context, &request->slots));
  TF_RETURN_IF_ERROR(context->GetAttr("version", &request->version));
  if (rules.part < rules.num_parts) return Status();
  return InvalidArgument("part must be < num_parts = ", rules.num_parts,
                         ", got ", rules.part);
}

Status ReadBank(const std::vector<Link>& chain, const std::string& name,
                int64_t dim, std::vector<float>* bank) {
  const std::string tensor_name = name + kBank;
  for (auto link = chain.rbegin(); link != chain.rend(); ++link) {
    CheckpointFile file(link->prefix);
    TF_RETURN_IF_ERROR(OpenLink(*link, &file));
    if (!file.Has(tensor_name)) continue;
    StoredTensor tensor;
    TF_RETURN_IF_ERROR(
        file.FindMatrix(tensor_name, dim, "dim of the table", &tensor));
    if (tensor.rows == 0) {
      return DataLoss("tensor ", tensor_name, " of ", link->prefix,
                      " has no row; the file is damaged");
    }
    const int64_t rows = tensor.rows;
    bank->resize(rows * dim);
    return RowStream(std::move(tensor)).ReadFloats(rows, bank->data());
  }
  return Status();
}

Status RestoreCheck::Run(const std::vector<Link>& chain, bool all_keys) {
  std::vector<float> bank;
  TF_RETURN_IF_ERROR(
      ReadBank(chain, request_.name, resource_.table().dim(), &bank));
  const auto elements = static_cast<int64_t>(bank.size());
  TF_RETURN_IF_ERROR(CheckInitialVectors(resource_, bank.data(),
                                         elements / resource_.table().dim()));
  const bool reads_keys = all_keys || request_.rules.key_dtype == DT_INT32;
  TF_RETURN_IF_ERROR(ForEachShard(
      chain,
      [&](CheckpointFile* file, const StoredShard& shard, bool is_delta) {
        return CheckShard(file, shard, is_delta, reads_keys);
      }));
  return CheckRoom(chain);
}

Status RestoreCheck::CheckRoom(const std::vector<Link>& chain) {
  const int64_t limit = resource_.table().rules().max_rows;
  if (limit == 0) return Status();
  int64_t rows = 0;
  TF_RETURN_IF_ERROR(MostRows(chain, &rows));
  if (rows > limit) TF_RETURN_IF_ERROR(CountRows(chain, &rows));
  if (rows <= limit) return Status();
  return TooManyRows(resource_, rows - limit, " in the checkpoint");
}

Status RestoreCheck::CheckShard(CheckpointFile* file, const StoredShard& shard,
                                bool is_delta, bool reads_keys) {
  const bool versions = request_.reads_versions();
  StoredRowReader rows(file, request_.rules, shard);
  TF_RETURN_IF_ERROR(
      rows.OpenRows(resource_.table().dim(), request_.slots, versions));
  if (file->Has(shard.name + kKeysFiltered)) {
    StoredRowReader filtered(file, request_.rules, shard);
    TF_RETURN_IF_ERROR(filtered.OpenFiltered(versions));
  }
  if (is_delta) {
    StoredRowReader erased(file, request_.rules, shard);
    TF_RETURN_IF_ERROR(erased.OpenKeys(shard.name + kKeysErased, ""));
  }
  TF_RETURN_IF_ERROR(
      SketchRestore(resource_, nullptr).Check(file, shard, &loss_));
  TF_RETURN_IF_ERROR(CheckValues(file, shard));
  if (!reads_keys) return Status();
  const VisitKey nothing = [](int64_t, int64_t) {};
  TF_RETURN_IF_ERROR(ForEachKey(file, shard, kKeys, kFreqs, nothing));
  TF_RETURN_IF_ERROR(
      ForEachKey(file, shard, kKeysFiltered, kFreqsFiltered, nothing));
  return ForEachKey(file, shard, kKeysErased, "", nothing);
}

Status RestoreCheck::CheckValues(CheckpointFile* file,
                                 const StoredShard& shard) {
  const EmbeddingTable& table = resource_.table();
  StoredRowReader reader(file, request_.rules, shard);
  TF_RETURN_IF_ERROR(reader.OpenKeys(shard.name + kKeys, ""));
  TF_RETURN_IF_ERROR(
      reader.OpenValues(shard.name, table.dim(), "dim of the table"));
  if (!reader.CheckRange(table.rules().value.type)) return Status();
  reader.Start();
  RowBatch batch;
  do {
    TF_RETURN_IF_ERROR(reader.Next(&batch));
  } while (batch.n > 0);
  return Status();
}

Status RestoreCheck::ForEachKey(CheckpointFile* file, const StoredShard& shard,
                                const char* keys, const char* freqs,
                                const VisitKey& visit) {
  if (!file->Has(shard.name + keys)) return Status();
  StoredRowReader reader(file, request_.rules, shard);
  TF_RETURN_IF_ERROR(reader.OpenKeys(shard.name + keys, ""));
  if (*freqs != 0) TF_RETURN_IF_ERROR(reader.OpenFreqs(shard.name + freqs));
  reader.Start();
  RowBatch batch;
  do {
    TF_RETURN_IF_ERROR(reader.Next(&batch));
    for (size_t i = 0; i < batch.n; ++i) {
      visit(batch.keys[i], batch.freqs.empty() ? 0 : batch.freqs[i]);
    }
  } while (batch.n > 0);
  return Status();
}

Status RestoreCheck::ForEachShard(const std::vector<Link>& chain,
                                  const VisitShard& visit) {
  for (auto link = chain.rbegin(); link != chain.rend(); ++link) {
    CheckpointFile file(link->prefix);
    TF_RETURN_IF_ERROR(OpenLink(*link, &file));
    StoredTable stored;
    TF_RETURN_IF_ERROR(FindStoredTable(&file, request_.name, &stored));
    for (const StoredShard& shard : stored.shards) {
      if (IsElsewhere(request_.rules, shard)) continue;
      TF_RETURN_IF_ERROR(visit(&file, shard, !stored.delta_of.empty()));
    }
  }
  return Status();
}

Status RestoreCheck::MostRows(const std::vector<Link>& chain, int64_t* rows) {
  *rows = 0;
  return ForEachShard(
      chain, [&](CheckpointFile* file, const StoredShard& shard, bool) {
        for (const char* suffix : {kKeys, kKeysFiltered}) {
          if (!file->Has(shard.name + suffix)) continue;
          StoredTensor keys;
          TF_RETURN_IF_ERROR(
              file->Find(shard.name + suffix, {DT_INT64, DT_INT32}, 1, &keys));
          *rows += keys.rows;
        }
        return Status();
      });
}

Status RestoreCheck::CountRows(const std::vector<Link>& chain, int64_t* rows) {
  const EmbeddingTable& table = resource_.table();
  const auto threshold = static_cast<int64_t>(table.filter().threshold);
  // The newest checkpoint that has a key decides, so that one is read first.
  // Who wrote the file may have chosen the keys.
  struct SecretHash {
    size_t operator()(int64_t key) const { return HashKey(key); }
  };
  std::unordered_set<int64_t, SecretHash> decided;
  *rows = 0;
  return ForEachShard(
      chain,
      [&](CheckpointFile* file, const StoredShard& shard,
          bool is_delta) -> Status {
        const auto decide = [&](int64_t key, bool owns_row) {
          const bool is_first =
              is_delta ? decided.insert(key).second : decided.count(key) == 0;
          const bool is_padding =
              table.rules().has_padding && key == EmbeddingTable::kPadding;
          *rows += is_first && owns_row && !is_padding;
        };
        // In the opposite order of a restore.
        TF_RETURN_IF_ERROR(ForEachKey(file, shard, kKeysFiltered,
                                      kFreqsFiltered,
                                      [&](int64_t key, int64_t freq) {
                                        if (freq >= threshold) {
                                          decide(key, true);
                                        }
                                      }));
        TF_RETURN_IF_ERROR(
            ForEachKey(file, shard, kKeys, "",
                       [&](int64_t key, int64_t) { decide(key, true); }));
        return ForEachKey(file, shard, kKeysErased, "",
                          [&](int64_t key, int64_t) { decide(key, false); });
      });
}

}  // namespace rec_estimator
