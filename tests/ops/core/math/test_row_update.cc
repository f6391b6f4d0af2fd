// SPDX-License-Identifier: Apache-2.0
// The optimizer rules, one row at a time: where they write, independence from
// neighbouring rows and from the batch, and rules that use a row as a whole.
// tests/ops/train/test_apply_ops.py and tests/optimizers compare the numbers
// with NumPy and TensorFlow.
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/core/math/row_update.h"
#include "tests/ops/core/edges.h"
#include "tests/ops/core/testing.h"

namespace rec_estimator {
namespace {

const std::vector<int> kDims = {1, 2, 5, 7, 8, 9, 15, 16, 17, 24, 33};

// Valid hyperparameters of a rule: 0.5 each, except the exponent of Ftrl.
std::vector<float> SomeHyper(const std::string& rule) {
  std::vector<float> hyper;
  for (const std::string& name : HyperparameterNames(rule)) {
    hyper.push_back(name == "learning_rate_power" ? -0.7f : 0.5f);
  }
  return hyper;
}

int RowFloats(const RowUpdate& update, int dim) {
  int floats = dim;
  for (int s = 0; s < update.slots(); ++s) floats += update.slot_width(s, dim);
  return floats;
}

std::vector<float> RandomFloats(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(0.1f, 1.0f);
  std::vector<float> floats(n);
  for (float& f : floats) f = uniform(random);
  return floats;
}

// The row is on the heap with its exact size, so ASan sees accesses beside it.
std::vector<float> Updated(const RowUpdate& update, std::vector<float> row,
                           const std::vector<float>& grad) {
  float* const rows[] = {row.data()};
  const float* const grads[] = {grad.data()};
  update.Update(rows, grads, 1, static_cast<int>(grad.size()));
  return row;
}

TEST(UnknownRuleOrWrongHyperparameterCountGivesNull) {
  EXPECT_TRUE(MakeRowUpdate("Magic", {0.5f}) == nullptr);
  EXPECT_TRUE(HyperparameterNames("Magic").empty());
  for (const std::string& rule : RowUpdateRules()) {
    std::vector<float> hyper = SomeHyper(rule);
    EXPECT_TRUE(MakeRowUpdate(rule, hyper) != nullptr);
    hyper.push_back(0.5f);
    EXPECT_TRUE(MakeRowUpdate(rule, hyper) == nullptr);
    EXPECT_TRUE(MakeRowUpdate(rule, {}) == nullptr);
  }
}

TEST(UpdateOfARowDoesNotDependOnItsBatch) {
  for (const std::string& rule : RowUpdateRules()) {
    const auto update = MakeRowUpdate(rule, SomeHyper(rule));
    for (const int dim : kDims) {
      const size_t n = 5;
      const size_t floats = static_cast<size_t>(RowFloats(*update, dim));
      std::vector<std::vector<float>> rows, grads, expected;
      std::vector<float*> row_at;
      std::vector<const float*> grad_at;
      for (unsigned r = 0; r < n; ++r) {
        rows.push_back(RandomFloats(floats, r));
        grads.push_back(RandomFloats(static_cast<size_t>(dim), 100 + r));
        expected.push_back(Updated(*update, rows[r], grads[r]));
      }
      for (unsigned r = 0; r < n; ++r) {
        row_at.push_back(rows[r].data());
        grad_at.push_back(grads[r].data());
      }
      update->Update(row_at.data(), grad_at.data(), n, dim);
      for (unsigned r = 0; r < n; ++r) {
        EXPECT_TRUE(SameBits(rows[r].data(), expected[r].data(), floats));
        // The value has moved, all of it.
        const std::vector<float> before = RandomFloats(floats, r);
        for (int d = 0; d < dim; ++d) EXPECT_TRUE(rows[r][d] != before[d]);
      }
    }
  }
}

TEST(SlotWidthIsDimOrOne) {
  for (const std::string& rule : RowUpdateRules()) {
    const auto update = MakeRowUpdate(rule, SomeHyper(rule));
    for (int s = 0; s < update->slots(); ++s) {
      const bool of_row =
          rule == "RowwiseAdagrad" || (rule == "AdagradDecayV2" && s == 1);
      EXPECT_EQ(update->slot_width(s, 9), of_row ? 1 : 9);
    }
  }
}

TEST(RowwiseAdagradAddsTheMeanSquare) {
  const auto update = MakeRowUpdate("RowwiseAdagrad", {0.5f});
  for (const int dim : kDims) {
    // Squares 1, 4, 9, ... have an exact sum: n (n + 1) (2n + 1) / 6.
    std::vector<float> grad, row(static_cast<size_t>(dim) + 1, 1.0f);
    for (int d = 0; d < dim; ++d) grad.push_back(static_cast<float>(d + 1));
    row = Updated(*update, row, grad);
    const float mean = static_cast<float>((dim + 1) * (2 * dim + 1) / 6.0);
    EXPECT_EQ(row[static_cast<size_t>(dim)], 1.0f + mean);
    for (int d = 0; d < dim; ++d) {
      EXPECT_EQ(row[d], 1.0f - grad[d] * (0.5f / std::sqrt(1.0f + mean)));
    }
  }
}

// Without penalties and with a first sum of 0, z is the gradient: the row is
// -0.5 * grad / |grad|, shrunk by the norm.
TEST(GroupLassoShrinksARowByItsNormAndTakesItToZeroAtTheLimit) {
  for (const int dim : kDims) {
    const float root = std::sqrt(static_cast<float>(dim));
    std::vector<float> row(static_cast<size_t>(3 * dim), 0.0f);
    const std::vector<float> grad(static_cast<size_t>(dim), -2.0f);
    const auto with_l21 = [&](float l21) {
      return Updated(*MakeRowUpdate("GroupFtrl", {0.5f, -0.5f, 0, 0, 0, l21}),
                     row, grad);
    };
    const float norm = 2.0f * root;
    for (int d = 0; d < dim; ++d) {
      EXPECT_EQ(with_l21(0.0f)[d], 0.5f);
      EXPECT_TRUE(std::abs(with_l21(0.5f)[d] - 0.5f * (1 - root / 2 / norm)) <
                  1e-6f);
      EXPECT_EQ(with_l21(2.5f)[d], 0.0f);
    }
  }
}

TEST(AdagradDecayDiscountsOncePerPeriodAfterAnyPause) {
  for (const char* rule : {"AdagradDecay", "AdagradDecayV2"}) {
    for (const int dim : kDims) {
      const std::vector<float> grad(static_cast<size_t>(dim), 0.0f);
      const auto at = [&](float periods) {
        return MakeRowUpdate(rule, {0.5f, 0.5f, 0.25f, periods});
      };
      std::vector<float> row(static_cast<size_t>(RowFloats(*at(0), dim)), 0.0f);
      const size_t sum = static_cast<size_t>(dim), power = 2 * sum;
      for (size_t d = 0; d < sum; ++d) row[sum + d] = 8.0f;
      row = Updated(*at(0), row, grad);
      EXPECT_EQ(row[sum], 8.0f);
      row = Updated(*at(3), row, grad);  // Three halvings at once.
      EXPECT_EQ(row[sum], 1.0f);
      EXPECT_EQ(row[power - 1], 1.0f);
      EXPECT_EQ(row[power], 3.0f);
      row = Updated(*at(3), row, grad);  // None is due.
      EXPECT_EQ(row[sum], 1.0f);
      row = Updated(*at(2), row, grad);  // Steps that went back: none.
      EXPECT_EQ(row[power], 3.0f);
      row = Updated(*at(1e7f), row, grad);  // Down to the baseline.
      EXPECT_EQ(row[sum], 0.25f);
      EXPECT_EQ(row[power], 1e7f);
    }
  }
}

// Whether the rule computes a number of all elements of a row.
bool IsOfWholeRow(const std::string& rule) {
  return rule == "RowwiseAdagrad" || rule == "GroupFtrl" || rule == "GroupAdam";
}

TEST(NanInAGradientStaysInItsElementUnlessTheRuleIsOfWholeRows) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::string& rule : RowUpdateRules()) {
    const auto update = MakeRowUpdate(rule, SomeHyper(rule));
    for (const int dim : kDims) {
      const size_t floats = static_cast<size_t>(RowFloats(*update, dim));
      for (int bad = 0; bad < dim; ++bad) {
        std::vector<float> grad = RandomFloats(static_cast<size_t>(dim), 1);
        grad[bad] = nan;
        const std::vector<float> row =
            Updated(*update, RandomFloats(floats, 2), grad);
        for (int d = 0; d < dim; ++d) {
          EXPECT_EQ(std::isnan(row[d]), d == bad || IsOfWholeRow(rule));
        }
      }
    }
  }
}

}  // namespace
}  // namespace rec_estimator

RUN_ALL_TESTS()
