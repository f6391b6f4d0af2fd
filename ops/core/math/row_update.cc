// SPDX-License-Identifier: Apache-2.0
// The optimizer rules. Each rule is a struct with its published formula. The
// formula is written once, over a lane type, and runs on eight floats at a time
// and then on the remaining floats of the row one by one.
//
// Bits. Training a table must equal training a dense variable with TensorFlow's
// own optimizer bit for bit (all rules of tf.compat.v1.train but Adam; wheel
// 2.15). TensorFlow computes these rules with Eigen, built for AVX without FMA:
// each operation is rounded separately, in the order of the kernel's source.
// Therefore:
//  * this unit is always compiled with -mavx -mno-fma -ffp-contract=off, since
//    one fused multiply-add changes the last bit;
//  * the order of operations below, including parentheses, is that of
//    TensorFlow's sparse kernels (core/kernels/training_ops.cc);
//  * the first 8 * floor(dim / 8) elements of a row use Eigen's functions for
//    reciprocal square root and power, and the tail uses the C library's;
//  * rows of one float use the scalar formulas that TensorFlow has for them.
// rsqrtps has different bits on CPUs of different vendors, but then
// TensorFlow's result differs in the same way. Rules that TensorFlow lacks use
// only operations that IEEE 754 rounds correctly, so NumPy computes the same
// bits. Without AVX (on another architecture) the rules are correct, but agree
// with TensorFlow only up to rounding.
#include "ops/core/math/row_update.h"

#include <algorithm>
#include <cmath>

#include "ops/core/math/lanes.h"

namespace rec_estimator {
namespace {

// ------------------------------------------------------------------- rules
//
// BeginRow is called once per row, before Step, and may change slots of width
// 1. Step<V> updates one lane group of a row: *value and slots[0 ..
// kLaneSlots). EndRow is called once per row, after Step, and may change the
// whole row. A rule that computes rows of one float differently has a
// SingleStep for them.

// The base of all rules: one update for each key, nothing to do for a row as a
// whole.
struct RowRule {
  static constexpr bool kPerOccurrence = false;
  void BeginRow(const float*, float*, int) {}
  void EndRow(float*, int) const {}
};

// The base of rules that treat all elements of a row alike.
template <int kSlotCount>
struct ElementWise : RowRule {
  static constexpr int kSlots = kSlotCount;
  static constexpr int kLaneSlots = kSlotCount;
  static int SlotWidth(int, int dim) { return dim; }
};

// The sum of the squares of n floats, as float64. A square is exact in float64
// and the sum nearly so: its order does not affect the sum as a float32.
double SumOfSquares(const float* x, int n) {
  typedef float Floats __attribute__((vector_size(16), aligned(4), may_alias));
  typedef double Parts __attribute__((vector_size(32)));
  constexpr int kParts = 4;
  Parts parts = {};
  int i = 0;
  for (; i + kParts <= n; i += kParts) {
    const Parts each =
        __builtin_convertvector(*reinterpret_cast<const Floats*>(x + i), Parts);
    parts += each * each;
  }
  for (; i < n; ++i) {
    const double each = x[i];
    parts[0] += each * each;
  }
  return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

// H. Robbins, S. Monro, "A Stochastic Approximation Method", 1951.
struct GradientDescent : ElementWise<0> {
  // TensorFlow scatters -lr*g of every occurrence instead of summing first.
  static constexpr bool kPerOccurrence = true;

  explicit GradientDescent(const float* hyper) : learning_rate(hyper[0]) {}

  template <typename V>
  void Step(V grad, V* value, V*) const {
    *value = *value - grad * learning_rate;
  }

  float learning_rate;
};

// GradientDescent with an L2 penalty of weight_decay / 2 * value^2 on the rows
// of the batch.
struct GradientDescentWeightDecay : ElementWise<0> {
  explicit GradientDescentWeightDecay(const float* hyper)
      : learning_rate(hyper[0]), weight_decay(hyper[1]) {}

  template <typename V>
  void Step(V grad, V* value, V*) const {
    *value = *value - (grad + *value * weight_decay) * learning_rate;
  }

  float learning_rate, weight_decay;
};

// B. Polyak, "Some methods of speeding up the convergence of iteration
// methods", 1964; nesterov: I. Sutskever et al., "On the importance of
// initialization and momentum in deep learning", 2013, as TensorFlow rearranges
// it.
// slots[0]: the running sum of gradients.
struct Momentum : ElementWise<1> {
  explicit Momentum(const float* hyper)
      : learning_rate(hyper[0]),
        momentum(hyper[1]),
        use_nesterov(hyper[2] != 0.0f) {}

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    const V sum = slots[0] * momentum + grad;
    slots[0] = sum;
    if (use_nesterov) {
      *value =
          *value - (grad * learning_rate + sum * (learning_rate * momentum));
    } else {
      *value = *value - sum * learning_rate;
    }
  }

  float learning_rate, momentum;
  bool use_nesterov;
};

// J. Duchi, E. Hazan, Y. Singer, "Adaptive Subgradient Methods for Online
// Learning and Stochastic Optimization", 2011.
// slots[0]: the sum of squared gradients.
struct Adagrad : ElementWise<1> {
  explicit Adagrad(const float* hyper) : learning_rate(hyper[0]) {}

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    slots[0] = slots[0] + grad * grad;
    *value = *value - (grad * learning_rate) * Rsqrt(slots[0]);
  }

  void SingleStep(float grad, float* value, float* slots) const {
    slots[0] = slots[0] + grad * grad;
    *value = *value - (grad * learning_rate) / Sqrt(slots[0]);
  }

  float learning_rate;
};

// Adagrad whose sums are discounted whenever a period of global steps ends, and
// never fall below their initial value: DeepRec, "AdagradDecay Optimizer"
// (docs/docs_en/AdagradDecay-Optimizer.md). A row catches up with all periods
// that ended since its last step, according to the formula on that page.
// slots[0]: the sum of squared gradients. slots[1]: the number of periods for
// which it has been discounted, in the first float; V2 has only that float.
template <bool kPowerOfRow>
struct AdagradDecay : RowRule {
  static constexpr int kSlots = 2;
  static constexpr int kLaneSlots = 1;
  static int SlotWidth(int slot, int dim) {
    return slot == 1 && kPowerOfRow ? 1 : dim;
  }

  explicit AdagradDecay(const float* hyper)
      : learning_rate(hyper[0]),
        decay_rate(hyper[1]),
        baseline(hyper[2]),
        periods(hyper[3]) {}

  void BeginRow(const float*, float* row, int dim) {
    float* const power = row + 2 * dim;
    decays = *power < periods;
    if (!decays) return;
    // A sum at the baseline stays there, so one factor for all periods gives
    // the same result as one step per period.
    discount = static_cast<float>(
        std::pow(static_cast<double>(decay_rate),
                 static_cast<double>(periods) - static_cast<double>(*power)));
    *power = periods;
  }

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    V sum = slots[0];
    if (decays) sum = AtLeast(sum * discount, baseline);
    sum = sum + grad * grad;
    slots[0] = sum;
    *value = *value - (grad * learning_rate) / Sqrt(sum);
  }

  float learning_rate, decay_rate, baseline, periods;
  bool decays = false;  // These two are of the current row.
  float discount = 1.0f;
};

// Adagrad with one sum a row, of the mean of its squared gradients: M. Gupta,
// S. Bengio, J. Weston, "Training Highly Multiclass Classifiers", 2014;
// D. Mudigere et al., "Software-Hardware Co-design for Fast and Scalable
// Training of Deep Learning Recommendation Models", 2022.
// The one float of its slot: the sum of mean squared gradients.
struct RowwiseAdagrad : RowRule {
  static constexpr int kSlots = 1;
  static constexpr int kLaneSlots = 0;
  static int SlotWidth(int, int) { return 1; }

  explicit RowwiseAdagrad(const float* hyper) : learning_rate(hyper[0]) {}

  void BeginRow(const float* grad, float* row, int dim) {
    row[dim] += static_cast<float>(SumOfSquares(grad, dim) / dim);
    scale = learning_rate / Sqrt(row[dim]);
  }

  template <typename V>
  void Step(V grad, V* value, V*) const {
    *value = *value - grad * scale;
  }

  float learning_rate;
  float scale = 0.0f;  // The factor of the current row.
};

// D. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", 2015, the
// form before section 2.1 (epsilon outside the correction). Lazy: the moments
// of a row that is not in the batch do not decay, unlike in the paper.
// slots[0], slots[1]: first and second moment.
struct Adam : ElementWise<2> {
  explicit Adam(const float* hyper)
      : beta1(hyper[1]),
        beta2(hyper[2]),
        epsilon(hyper[3]),
        // hyper[4], hyper[5]: beta1 and beta2 to the power of the step, from 1.
        corrected_rate(hyper[0] * std::sqrt(1.0f - hyper[5]) /
                       (1.0f - hyper[4])) {}

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    *value = *value - Difference(grad, slots);
  }

  // Updates the moments and returns what to subtract from the value.
  template <typename V>
  V Difference(V grad, V* slots) const {
    UpdateMoments(grad, slots);
    return (slots[0] * corrected_rate) / (Sqrt(slots[1]) + epsilon);
  }

  template <typename V>
  void UpdateMoments(V grad, V* slots) const {
    slots[0] = slots[0] * beta1 + grad * (1.0f - beta1);
    slots[1] = slots[1] * beta2 + (grad * grad) * (1.0f - beta2);
  }

  float beta1, beta2, epsilon, corrected_rate;
};

// I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", 2019,
// algorithm 2 with a schedule multiplier of 1: the decay depends neither on the
// gradient nor on the learning rate. Lazy like Adam.
struct AdamW : Adam {
  explicit AdamW(const float* hyper) : Adam(hyper), weight_decay(hyper[6]) {}

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    *value = *value - (*value * weight_decay + Difference(grad, slots));
  }

  float weight_decay;
};

// S. Reddi, S. Kale, S. Kumar, "On the Convergence of Adam and Beyond", 2018,
// with Adam's bias correction, as TensorFlow's ApplyAdamWithAmsgrad. Lazy like
// Adam.
// slots[2]: the largest second moment of all steps.
struct AMSGrad : Adam {
  static constexpr int kSlots = 3;
  static constexpr int kLaneSlots = 3;

  using Adam::Adam;

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    UpdateMoments(grad, slots);
    slots[2] = AtLeast(slots[1], slots[2]);
    *value = *value - (slots[0] * corrected_rate) / (Sqrt(slots[2]) + epsilon);
  }
};

// DeepRec's AdamAsync for sparse gradients with apply_sparse_rmsprop
// (docs/docs_en/AdamAsync-Optimizer.md and the kernels): RMSProp of T.
// Tieleman, G. Hinton, 2012, with momentum and without bias correction.
// slots[0]: momentum, slots[1]: mean square.
struct AdamAsyncRmsprop : ElementWise<2> {
  explicit AdamAsyncRmsprop(const float* hyper)
      : learning_rate(hyper[0]),
        beta1(hyper[1]),
        beta2(hyper[2]),
        epsilon(hyper[3]) {}

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    slots[1] = slots[1] * beta2 + (grad * grad) * (1.0f - beta2);
    slots[0] =
        slots[0] * beta1 + (grad * learning_rate) / Sqrt(slots[1] + epsilon);
    *value = *value - slots[0];
  }

  float learning_rate, beta1, beta2, epsilon;
};

// T. Tieleman, G. Hinton, "Lecture 6.5 - RMSProp", 2012, with momentum.
// slots[0]: mean square, slots[1]: momentum.
struct RMSProp : ElementWise<2> {
  explicit RMSProp(const float* hyper)
      : learning_rate(hyper[0]),
        decay(hyper[1]),
        momentum(hyper[2]),
        epsilon(hyper[3]) {}

  template <typename V>
  V Mean(V mean, V next) const {
    return mean * decay + next * (1.0f - decay);
  }

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    slots[0] = Mean(slots[0], grad * grad);
    slots[1] = slots[1] * momentum +
               (Rsqrt(slots[0] + epsilon) * learning_rate) * grad;
    *value = *value - slots[1];
  }

  float learning_rate, decay, momentum, epsilon;
};

// RMSProp by the variance instead of the mean square: A. Graves, "Generating
// Sequences With Recurrent Neural Networks", 2013.
// slots[0]: mean square, slots[1]: mean, slots[2]: momentum.
struct CenteredRMSProp : RMSProp {
  static constexpr int kSlots = 3;
  static constexpr int kLaneSlots = 3;

  using RMSProp::RMSProp;

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    slots[0] = Mean(slots[0], grad * grad);
    slots[1] = Mean(slots[1], grad);
    const V variance = (slots[0] + epsilon) - slots[1] * slots[1];
    slots[2] = slots[2] * momentum + (Rsqrt(variance) * learning_rate) * grad;
    *value = *value - slots[2];
  }
};

// M. Zeiler, "ADADELTA: An Adaptive Learning Rate Method", 2012.
// slots[0]: mean of the squared gradients, slots[1]: of the squared updates.
struct Adadelta : ElementWise<2> {
  explicit Adadelta(const float* hyper)
      : learning_rate(hyper[0]), rho(hyper[1]), epsilon(hyper[2]) {}

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    slots[0] = slots[0] * rho + (grad * grad) * (1.0f - rho);
    const V update =
        (Sqrt(slots[1] + epsilon) * Rsqrt(slots[0] + epsilon)) * grad;
    *value = *value - update * learning_rate;
    slots[1] = slots[1] * rho + (update * update) * (1.0f - rho);
  }

  float learning_rate, rho, epsilon;
};

// J. Duchi, Y. Singer, "Efficient Online and Batch Learning using Forward
// Backward Splitting", 2009: a step of gradient descent, then the minimum of
// the penalty near its result.
struct ForwardBackward {
  // The value after a step of this rate.
  template <typename V, typename Rate>
  V Shrunk(V stepped, Rate rate) const {
    const Rate divisor = rate * l2 + 1.0f;
    return l1 > 0.0f ? Sign(stepped) * AtLeast(Abs(stepped) - rate * l1, 0.0f) /
                           divisor
                     : stepped / divisor;
  }

  // TensorFlow divides rows of one float in float64.
  float ShrunkSingle(float stepped, float rate) const {
    const double divisor = 1.0 + l2 * rate;
    return static_cast<float>(
        l1 > 0.0f
            ? Sign(stepped) * AtLeast(Abs(stepped) - rate * l1, 0.0f) / divisor
            : stepped / divisor);
  }

  float l1, l2;
};

struct ProximalGradientDescent : ElementWise<0> {
  explicit ProximalGradientDescent(const float* hyper)
      : learning_rate(hyper[0]), penalty{hyper[1], hyper[2]} {}

  template <typename V>
  void Step(V grad, V* value, V*) const {
    *value = penalty.Shrunk(*value - grad * learning_rate, learning_rate);
  }

  void SingleStep(float grad, float* value, float*) const {
    *value = penalty.ShrunkSingle(*value - learning_rate * grad, learning_rate);
  }

  float learning_rate;
  ForwardBackward penalty;
};

// slots[0]: the sum of squared gradients.
struct ProximalAdagrad : ElementWise<1> {
  explicit ProximalAdagrad(const float* hyper)
      : learning_rate(hyper[0]), penalty{hyper[1], hyper[2]} {}

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    slots[0] = slots[0] + grad * grad;
    const V rate = Rsqrt(slots[0]) * learning_rate;
    *value = penalty.Shrunk(*value - grad * rate, rate);
  }

  void SingleStep(float grad, float* value, float* slots) const {
    slots[0] = slots[0] + grad * grad;
    const float rate = learning_rate / Sqrt(slots[0]);
    *value = penalty.ShrunkSingle(*value - rate * grad, rate);
  }

  float learning_rate;
  ForwardBackward penalty;
};

// Dual averaging with Adagrad's scale: J. Duchi, E. Hazan, Y. Singer, "Adaptive
// Subgradient Methods for Online Learning and Stochastic Optimization", 2011.
// The value follows from the slots and the step.
// slots[0]: the sum of gradients, slots[1]: the sum of squared gradients.
struct AdagradDA : ElementWise<2> {
  explicit AdagradDA(const float* hyper)
      : learning_rate(hyper[0]), l1(hyper[1]), l2(hyper[2]), step(hyper[3]) {}

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    slots[0] = slots[0] + grad;
    slots[1] = slots[1] + grad * grad;
    const V divisor = Sqrt(slots[1]) / (step * learning_rate) + l2;
    if (l1 > 0.0f) {
      *value = (Sign(slots[0]) * -1.0f) *
               AtLeast(Abs(slots[0]) / step - l1, 0.0f) / divisor;
    } else {
      *value = (slots[0] / step) * -1.0f / divisor;
    }
  }

  // TensorFlow computes rows of one float in float64, and rounds the slots.
  void SingleStep(float grad, float* value, float* slots) const {
    const double g = grad;
    const double rate = learning_rate;
    slots[0] = slots[0] + grad;
    slots[1] = static_cast<float>(slots[1] + g * g);
    const double divisor =
        static_cast<double>(step) * l2 * rate + Sqrt(slots[1]);
    if (l1 > 0.0f) {
      const double excess = Abs(slots[0]) - static_cast<double>(step) * l1;
      *value = static_cast<float>(Sign(-slots[0]) * rate *
                                  (excess < 0.0 ? 0.0 : excess) / divisor);
    } else {
      *value = static_cast<float>(-slots[0] * rate / divisor);
    }
  }

  float learning_rate, l1, l2, step;
};

// H. B. McMahan et al., "Ad Click Prediction: a View from the Trenches", 2013;
// learning_rate_power is -1/2 in the paper. l2_shrinkage is TensorFlow's: an L2
// penalty in the gradient that the accumulator leaves out. TensorFlow passes
// the paper's beta as a part of l2, beta / (2 learning_rate).
// slots[0]: the sum of squared gradients, slots[1]: the paper's z.
struct FtrlSlots : ElementWise<2> {
  explicit FtrlSlots(const float* hyper)
      : learning_rate(hyper[0]),
        power(-hyper[1]),
        l1(hyper[2]),
        l2(2.0f * hyper[3]),
        l2_shrinkage(2.0f * hyper[4]) {}

  template <typename V>
  V Shrunk(V grad, V value) const {
    return l2_shrinkage > 0.0f ? grad + value * l2_shrinkage : grad;
  }

  template <typename V>
  V Root(V accumulated) const {
    return power == 0.5f ? Sqrt(accumulated) : Pow(accumulated, power);
  }

  // Returns the root of slots[0].
  template <typename V>
  V UpdateSlots(V grad, V value, V* slots) const {
    const V accumulated = slots[0] + grad * grad;
    const V root = Root(accumulated);
    const V sigma = (root - Root(slots[0])) / learning_rate;
    slots[1] = slots[1] + (Shrunk(grad, value) - sigma * value);
    slots[0] = accumulated;
    return root;
  }

  float learning_rate, power, l1, l2, l2_shrinkage;
};

struct Ftrl : FtrlSlots {
  using FtrlSlots::FtrlSlots;

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    const V root = UpdateSlots(grad, *value, slots);
    *value = (Clamp(slots[1], l1) - slots[1]) / (root / learning_rate + l2);
  }

  // Unlike Step, calls Pow even for a power of 1/2, and adds in another order.
  void SingleStep(float grad, float* value, float* slots) const {
    const float accumulated = slots[0] + grad * grad;
    const float sigma =
        (Pow(accumulated, power) - Pow(slots[0], power)) / learning_rate;
    const float z = (slots[1] + Shrunk(grad, *value)) - sigma * *value;
    *value = (Clamp(z, l1) - z) / (Root(accumulated) / learning_rate + l2);
    slots[0] = accumulated;
    slots[1] = z;
  }
};

// Sparse group lasso, whose groups are the rows: Y. Yue et al., "Adaptive
// Optimizers with Sparse Group Lasso for Neural Networks in CTR Prediction",
// 2021, algorithm 1. Step leaves s of the paper in the value, and EndRow makes
// the value of it: zeros if the norm of s is at most l21 * sqrt(dim).
struct GroupLasso {
  // divisor(i): what the paper divides element i by.
  template <typename Divisor>
  void Shrink(float* value, int dim, const Divisor& divisor) const {
    const float norm = static_cast<float>(std::sqrt(SumOfSquares(value, dim)));
    const float limit = l21 * Sqrt(static_cast<float>(dim));
    if (norm <= limit) {
      std::fill_n(value, dim, 0.0f);
      return;
    }
    const float kept = (norm - limit) / norm;
    for (int i = 0; i < dim; ++i) value[i] = value[i] * kept / divisor(i);
  }

  float l21;
};

// Ftrl with group lasso: "Group AdaGrad" of the paper.
struct GroupFtrl : FtrlSlots {
  explicit GroupFtrl(const float* hyper) : FtrlSlots(hyper), lasso{hyper[5]} {}

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    UpdateSlots(grad, *value, slots);
    *value = Clamp(slots[1], l1) - slots[1];
  }

  void EndRow(float* row, int dim) const {
    lasso.Shrink(row, dim, [this, sums = row + dim](int i) {
      return Root(sums[i]) / learning_rate + l2;
    });
  }

  GroupLasso lasso;
};

// "Group Adam" of the paper. Lazy like Adam. Without penalties, Adam.
// slots[2]: the corrected root of the second moment, plus epsilon; slots[3]: z.
struct GroupAdam : Adam {
  static constexpr int kSlots = 4;
  static constexpr int kLaneSlots = 4;

  explicit GroupAdam(const float* hyper)
      : Adam(hyper),
        learning_rate(hyper[0]),
        correction1(1.0f - hyper[4]),
        correction2(1.0f - hyper[5]),
        l1(hyper[6]),
        l2(2.0f * hyper[7]),
        lasso{hyper[8]} {}

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    UpdateMoments(grad, slots);
    const V root = Sqrt(slots[1] / correction2) + epsilon;
    const V sigma = (root - slots[2]) / learning_rate;
    slots[3] = slots[3] + (slots[0] / correction1 - sigma * *value);
    slots[2] = root;
    *value = Clamp(slots[3], l1) - slots[3];
  }

  void EndRow(float* row, int dim) const {
    lasso.Shrink(row, dim, [this, roots = row + 3 * dim](int i) {
      return roots[i] / learning_rate + l2;
    });
  }

  float learning_rate, correction1, correction2, l1, l2;
  GroupLasso lasso;
};

// ------------------------------------------------------------ rows by a rule

template <typename Rule>
class RuleRowUpdate final : public RowUpdate {
 public:
  explicit RuleRowUpdate(const float* hyper) : rule_(hyper) {}

  int slots() const override { return Rule::kSlots; }
  int slot_width(int slot, int dim) const override {
    return Rule::SlotWidth(slot, dim);
  }
  bool per_occurrence() const override { return Rule::kPerOccurrence; }

  void Update(float* const* rows, const float* const* grads, size_t n,
              int dim) const override {
    Rule rule = rule_;  // A copy stays in registers: rows might alias *this.
    if (dim == 1) {
      for (size_t r = 0; r < n; ++r) {
        rule.BeginRow(grads[r], rows[r], 1);
        SingleStep(rule, *grads[r], rows[r], 0);
        rule.EndRow(rows[r], 1);
      }
      return;
    }
    for (size_t r = 0; r < n; ++r) {
      float* const row = rows[r];
      const float* const grad = grads[r];
      rule.BeginRow(grad, row, dim);
      int i = 0;
#if defined(__AVX__)
      for (; i + kLanes <= dim; i += kLanes) {
        Step<Lanes>(rule, grad + i, row + i, dim);
      }
#endif
      for (; i < dim; ++i) Step<float>(rule, grad + i, row + i, dim);
      rule.EndRow(row, dim);
    }
  }

 private:
  template <typename V>
  static void Step(const Rule& rule, const float* grad, float* row, int dim) {
    V value = Load<V>(row);
    V slots[Rule::kLaneSlots + 1];  // One more: no empty array.
    for (int s = 0; s < Rule::kLaneSlots; ++s) {
      slots[s] = Load<V>(row + (s + 1) * dim);
    }
    rule.Step(Load<V>(grad), &value, slots);
    Store(value, row);
    for (int s = 0; s < Rule::kLaneSlots; ++s) {
      Store(slots[s], row + (s + 1) * dim);
    }
  }

  // Chosen if the rule has a SingleStep: 0 converts better to int than to long.
  template <typename R>
  static auto SingleStep(const R& rule, float grad, float* row,
                         int) -> decltype(rule.SingleStep(grad, row, row + 1)) {
    rule.SingleStep(grad, row, row + 1);
  }
  template <typename R>
  static void SingleStep(const R& rule, float grad, float* row, long) {
    rule.template Step<float>(grad, row, row + 1);
  }

  const Rule rule_;
};

template <typename Rule>
std::unique_ptr<RowUpdate> Make(const float* hyper) {
  return std::unique_ptr<RowUpdate>(new RuleRowUpdate<Rule>(hyper));
}

struct RuleEntry {
  const char* name;
  std::vector<std::string> hyper;
  std::unique_ptr<RowUpdate> (*make)(const float* hyper);
};

const std::vector<RuleEntry>& Entries() {
  static const auto* const entries = new std::vector<RuleEntry>{
      {"GradientDescent", {"learning_rate"}, Make<GradientDescent>},
      {"GradientDescentWeightDecay",
       {"learning_rate", "weight_decay"},
       Make<GradientDescentWeightDecay>},
      {"Momentum",
       {"learning_rate", "momentum", "use_nesterov"},
       Make<Momentum>},
      {"Adagrad", {"learning_rate"}, Make<Adagrad>},
      {"AdagradDecay",
       {"learning_rate", "decay_rate", "baseline", "periods"},
       Make<AdagradDecay<false>>},
      {"AdagradDecayV2",
       {"learning_rate", "decay_rate", "baseline", "periods"},
       Make<AdagradDecay<true>>},
      {"RowwiseAdagrad", {"learning_rate"}, Make<RowwiseAdagrad>},
      {"Adam",
       {"learning_rate", "beta1", "beta2", "epsilon", "beta1_power",
        "beta2_power"},
       Make<Adam>},
      {"AdamW",
       {"learning_rate", "beta1", "beta2", "epsilon", "beta1_power",
        "beta2_power", "weight_decay"},
       Make<AdamW>},
      {"AdamAsyncRmsprop",
       {"learning_rate", "beta1", "beta2", "epsilon"},
       Make<AdamAsyncRmsprop>},
      {"AMSGrad",
       {"learning_rate", "beta1", "beta2", "epsilon", "beta1_power",
        "beta2_power"},
       Make<AMSGrad>},
      {"GroupAdam",
       {"learning_rate", "beta1", "beta2", "epsilon", "beta1_power",
        "beta2_power", "l1", "l2", "l21"},
       Make<GroupAdam>},
      {"RMSProp",
       {"learning_rate", "decay", "momentum", "epsilon"},
       Make<RMSProp>},
      {"CenteredRMSProp",
       {"learning_rate", "decay", "momentum", "epsilon"},
       Make<CenteredRMSProp>},
      {"Adadelta", {"learning_rate", "rho", "epsilon"}, Make<Adadelta>},
      {"ProximalGradientDescent",
       {"learning_rate", "l1", "l2"},
       Make<ProximalGradientDescent>},
      {"ProximalAdagrad", {"learning_rate", "l1", "l2"}, Make<ProximalAdagrad>},
      {"AdagradDA", {"learning_rate", "l1", "l2", "step"}, Make<AdagradDA>},
      {"Ftrl",
       {"learning_rate", "learning_rate_power", "l1", "l2", "l2_shrinkage"},
       Make<Ftrl>},
      {"GroupFtrl",
       {"learning_rate", "learning_rate_power", "l1", "l2", "l2_shrinkage",
        "l21"},
       Make<GroupFtrl>},
  };
  return *entries;
}

const RuleEntry* Find(const std::string& rule) {
  for (const RuleEntry& entry : Entries()) {
    if (rule == entry.name) return &entry;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> HyperparameterNames(const std::string& rule) {
  const RuleEntry* const entry = Find(rule);
  return entry == nullptr ? std::vector<std::string>() : entry->hyper;
}

std::vector<std::string> RowUpdateRules() {
  std::vector<std::string> names;
  for (const RuleEntry& entry : Entries()) names.push_back(entry.name);
  return names;
}

std::unique_ptr<RowUpdate> MakeRowUpdate(const std::string& rule,
                                         const std::vector<float>& hyper) {
  const RuleEntry* const entry = Find(rule);
  if (entry == nullptr || hyper.size() != entry->hyper.size()) return nullptr;
  return entry->make(hyper.data());
}

}  // namespace rec_estimator
