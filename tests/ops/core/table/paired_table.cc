// SPDX-License-Identifier: Apache-2.0
// Compiled once per tree: TABLE_HEADER is the tree's embedding_table.h, and
// MAKE_TABLE is MakeBase or MakeNew. HANDS_OVER: the tree has LookupListed.
// HAS_ROW_READER: its reader is a class of its own.
#include "paired_table.h"  // This tree's; the other may have another one.

#include <memory>
#include <vector>

#include TABLE_HEADER
#if defined(HANDS_OVER)
#include "ops/core/keys/deduplicated_list.h"
#endif
#if defined(HAS_ROW_READER)
#include "ops/core/table/row_reader.h"
#endif

namespace paired {
namespace {

using ::rec_estimator::EmbeddingTable;
using ::rec_estimator::SerialFor;
using ::rec_estimator::UnknownKey;
#if defined(HAS_ROW_READER)
using ::rec_estimator::RowReader;
#else
using RowReader = EmbeddingTable::Reader;
#endif

// The filter of a tree whose FilterSpec has the parameters of a Bloom filter,
// or of one in which a Bloom filter is a sketch.
template <typename Filter>
auto FilterOf(const Spec& spec,
              int) -> decltype(Filter{1u, 1u, int64_t{0}, 0.0}) {
  return {spec.threshold, 1, spec.max_elements, spec.false_positive_rate};
}
template <typename Filter>
Filter FilterOf(const Spec& spec, long) {
  Filter filter = {spec.threshold, 1};
  if (spec.max_elements > 0) {
    filter.sketch = {
        "counting_bloom_filter",
        {{"max_element_size", static_cast<double>(spec.max_elements)},
         {"false_positive_probability", spec.false_positive_rate}}};
  }
  return filter;
}

class TreeTable : public Table {
 public:
  explicit TreeTable(const Spec& spec)
      : table_(spec.dim, 0.0f, FilterOf<rec_estimator::FilterSpec>(spec, 0),
               {spec.max_rows, spec.has_padding_and_frozen_keys,
                spec.has_padding_and_frozen_keys ? std::vector<int64_t>{5, 77}
                                                 : std::vector<int64_t>{}}),
        rule_(rec_estimator::MakeRowUpdate("Adagrad", {0.05f})) {
    std::vector<float> bank(4096 * static_cast<size_t>(spec.dim));
    for (size_t i = 0; i < bank.size(); ++i) bank[i] = 0.001f * (i % 1000);
    table_.SetBank(bank.data(), 4096);
    table_.EnsureSlots({{"Adagrad", spec.dim, 0.1f}});
  }

  bool Apply(const int64_t* keys, const float* grads, size_t n,
             int64_t version) override {
    return table_.Apply({keys, grads, n, nullptr, 0, version}, *rule_,
                        SerialFor);
  }
  void Lookup(const int64_t* keys, size_t n, float* out) override {
    table_.Lookup(keys, n, UnknownKey::kInitial, out, SerialFor);
  }
  bool Step(const int64_t* keys, const float* grads, size_t n, int64_t version,
            float* out) override {
#if defined(HANDS_OVER)
    constexpr size_t kLeastHandedOver = 256;  // ops/lookup/step_keys.h
    if (n >= kLeastHandedOver) {
      const auto found = table_.LookupListed(
          std::make_shared<rec_estimator::DeduplicatedList>(keys, n, SerialFor),
          UnknownKey::kInitial, out, SerialFor);
      return table_.Apply(
          {keys, grads, n, nullptr, 0, version, nullptr, found.get()}, *rule_,
          SerialFor);
    }
#endif
    Lookup(keys, n, out);
    return Apply(keys, grads, n, version);
  }
  void Read(const int64_t* keys, size_t n, const float** rows) override {
    const RowReader reader(table_, keys, n);
    reader.Rows(keys, n, UnknownKey::kInitial, rows);
  }
  bool Insert(const int64_t* keys, const float* values, size_t n) override {
    return table_.Insert({keys, n, values, {}, nullptr, nullptr});
  }
  bool Admits(const int64_t* keys, size_t n, bool* out) override {
    return table_.Admits(keys, n, out);
  }
  void Frequencies(const int64_t* keys, size_t n, int64_t* out) override {
    table_.Frequencies(keys, n, out);
  }
  int64_t memory_bytes() override { return table_.memory_bytes(); }

 private:
  EmbeddingTable table_;
  const std::unique_ptr<rec_estimator::RowUpdate> rule_;
};

}  // namespace

std::unique_ptr<Table> MAKE_TABLE(const Spec& spec) {
  return std::make_unique<TreeTable>(spec);
}

}  // namespace paired
