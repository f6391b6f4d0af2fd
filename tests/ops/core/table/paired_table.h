// SPDX-License-Identifier: Apache-2.0
// A table of either tree, for bench_paired.cc.
#ifndef REC_ESTIMATOR_TESTS_OPS_CORE_TABLE_PAIRED_TABLE_H_
#define REC_ESTIMATOR_TESTS_OPS_CORE_TABLE_PAIRED_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace paired {

// As FilterSpec and RowRules, which each tree declares for itself.
struct Spec {
  const char* name;
  uint32_t threshold = 0;
  int64_t max_elements = 0;
  double false_positive_rate = 0;
  int64_t max_rows = 0;
  bool has_padding_and_frozen_keys = false;
  int dim = 16;
};

// An EmbeddingTable with the rule Adagrad, on the calling thread.
class Table {
 public:
  virtual ~Table() = default;
  virtual bool Apply(const int64_t* keys, const float* grads, size_t n,
                     int64_t version) = 0;
  virtual void Lookup(const int64_t* keys, size_t n, float* out) = 0;
  // A lookup and an apply of the same keys. The lookup hands over what it finds
  // if it can.
  virtual bool Step(const int64_t* keys, const float* grads, size_t n,
                    int64_t version, float* out) = 0;
  virtual void Read(const int64_t* keys, size_t n, const float** rows) = 0;
  virtual bool Insert(const int64_t* keys, const float* values, size_t n) = 0;
  virtual bool Admits(const int64_t* keys, size_t n, bool* out) = 0;
  virtual void Frequencies(const int64_t* keys, size_t n, int64_t* out) = 0;
  virtual int64_t memory_bytes() = 0;
};

std::unique_ptr<Table> MakeBase(const Spec& spec);  // In the other tree.
std::unique_ptr<Table> MakeNew(const Spec& spec);   // In this tree.

}  // namespace paired

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_TABLE_PAIRED_TABLE_H_
