// The optimizer rules. A rule is one struct with its published formula; it is
// written once over a lane type and runs on eight floats at a time and on the
// rest of the row one by one.
//
// Bits. Training a table must equal training a dense variable with TensorFlow's
// own optimizer bit for bit (GradientDescent, Momentum, Adagrad, Ftrl; wheel
// 2.15). TensorFlow computes these rules with Eigen built for AVX without FMA:
// every operation is rounded on its own, in the order its kernels write them.
// So
//  * this unit is compiled with -mavx -mno-fma -ffp-contract=off, whatever the
//    rest is compiled with: one fused multiply-add changes the last bit;
//  * the order of operations below is that of TensorFlow's sparse kernels
//    (core/kernels/training_ops.cc), brackets included;
//  * where Eigen has its own function for eight lanes (reciprocal square root,
//    power) and the C library's for the rest, so have we: the first
//    8 * floor(dim / 8) elements of a row and its tail take different ones;
//  * rows of one float take the scalar formulas that TensorFlow keeps for them.
// rsqrtps gives other bits on other CPU makes; both sides then change together.
// Built without AVX (another architecture) the rules are right, but only as
// close to TensorFlow as rounding allows.
#include "row_update.h"

#include <cmath>
#include <cstdint>
#include <limits>

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace rec_estimator {
namespace {

// ---------------------------------------------------------------- one float

template <typename V>
V Load(const float* from);

template <>
inline float Load<float>(const float* from) {
  return *from;
}

inline void Store(float value, float* to) { *to = value; }
inline float Sqrt(float x) { return std::sqrt(x); }
inline float Rsqrt(float x) { return 1.0f / std::sqrt(x); }
inline float Pow(float x, float exponent) { return std::pow(x, exponent); }
// x into [-bound, bound]; NaN stays NaN.
inline float Clamp(float x, float bound) {
  const float below = bound < x ? bound : x;
  return below < -bound ? -bound : below;
}

// ------------------------------------------------------------- eight floats

#if defined(__AVX__)

constexpr int kLanes = 8;
// The compiler's vector type: + - * / work, a float operand is broadcast.
using Lanes = __m256;

inline Lanes All(float x) { return _mm256_set1_ps(x); }
// Not blendv: without AVX2, GCC 12 takes that apart into eight branches.
inline Lanes Select(Lanes mask, Lanes yes, Lanes no) {
  return _mm256_or_ps(_mm256_and_ps(mask, yes), _mm256_andnot_ps(mask, no));
}
inline Lanes Abs(Lanes x) { return _mm256_andnot_ps(All(-0.0f), x); }
inline Lanes Less(Lanes a, Lanes b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
inline Lanes Equal(Lanes a, Lanes b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }

template <>
inline Lanes Load<Lanes>(const float* from) {
  return _mm256_loadu_ps(from);
}

inline void Store(Lanes value, float* to) { _mm256_storeu_ps(to, value); }
inline Lanes Sqrt(Lanes x) { return _mm256_sqrt_ps(x); }

// The CPU's 12-bit estimate and one Newton step, y - y/2 * (x*y*y - 1); at 0
// and infinity, where the step gives NaN, the estimate itself.
// As Eigen's generic_rsqrt_newton_step (MathFunctionsImpl.h).
inline Lanes Rsqrt(Lanes x) {
  const Lanes estimate = _mm256_rsqrt_ps(x);
  const Lanes error = (x * estimate) * estimate + -1.0f;
  const Lanes better = (estimate * -0.5f) * error + estimate;
  return Select(_mm256_cmp_ps(better, better, _CMP_UNORD_Q), estimate, better);
}

// min and max return their second operand if either is NaN.
inline Lanes Clamp(Lanes x, float bound) {
  return _mm256_max_ps(All(-bound), _mm256_min_ps(All(bound), x));
}

// A number as the unevaluated sum of two floats, |lo| <= ulp(hi) / 2. The
// operations are those of J.-M. Muller, "Elementary Functions", 3rd edition,
// 2016, chapter 2, in the variants Eigen picks.
struct TwoFloats {
  Lanes hi, lo;
};

// Exact if |a| >= |b|.
inline TwoFloats FastSum(Lanes a, Lanes b) {
  const Lanes sum = a + b;
  return {sum, b - (sum - a)};
}

// Needs |a.hi| >= |b.hi|.
inline TwoFloats FastSum(const TwoFloats& a, const TwoFloats& b) {
  const TwoFloats sum = FastSum(a.hi, b.hi);
  return FastSum(sum.hi, (b.lo + sum.lo) + a.lo);
}

inline TwoFloats Sum(const TwoFloats& a, const TwoFloats& b) {
  const Lanes a_greater = Less(Abs(b.hi), Abs(a.hi));
  const TwoFloats ab = FastSum(a.hi, b.hi);
  const TwoFloats ba = FastSum(b.hi, a.hi);
  return FastSum(
      Select(a_greater, ab.hi, ba.hi),
      Select(a_greater, (b.lo + ab.lo) + a.lo, (a.lo + ba.lo) + b.lo));
}

// Two halves of 12 bits each (Veltkamp).
inline TwoFloats Split(Lanes x) {
  const Lanes scaled = x * 4097.0f;  // 2^12 + 1
  const Lanes hi = (x - scaled) + scaled;
  return {hi, x - hi};
}

// Exact without FMA (Dekker).
inline TwoFloats Product(Lanes a, Lanes b) {
  const TwoFloats as = Split(a);
  const TwoFloats bs = Split(b);
  const Lanes product = a * b;
  Lanes error = as.hi * bs.hi - product;
  error = as.hi * bs.lo + error;
  error = as.lo * bs.hi + error;
  error = as.lo * bs.lo + error;
  return {product, error};
}

inline TwoFloats Product(const TwoFloats& a, Lanes b) {
  const TwoFloats product = Product(a.hi, b);
  const TwoFloats sum = FastSum(product.hi, a.lo * b);
  return FastSum(sum.hi, sum.lo + product.lo);
}

// Half away from zero.
inline Lanes Round(Lanes x) {
  const Lanes half = _mm256_or_ps(_mm256_and_ps(x, All(-0.0f)),
                                  All(0.49999997f));  // just below 1/2
  return _mm256_round_ps(half + x, _MM_FROUND_TO_ZERO);
}

// AVX has integer operations on half a register only.
template <typename Operation>
inline __m256i ByHalves(__m256i x, Operation operation) {
  const __m128i lo = operation(_mm256_castsi256_si128(x));
  const __m128i hi = operation(_mm256_extractf128_si256(x, 1));
  return _mm256_insertf128_si256(_mm256_castsi128_si256(lo), hi, 1);
}

// x = mantissa * 2^exponent, |mantissa| in [1/2, 1); zero, infinity and NaN are
// their own mantissa.
inline Lanes Mantissa(Lanes x, Lanes* exponent) {
  const float min_normal = std::numeric_limits<float>::min();
  const Lanes tiny = Less(Abs(x), All(min_normal));
  const Lanes normal = Select(tiny, x * 16777216.0f, x);  // 2^24
  const Lanes biased = _mm256_cvtepi32_ps(
      ByHalves(_mm256_castps_si256(Abs(normal)),
               [](__m128i bits) { return _mm_srli_epi32(bits, 23); }));
  const Lanes special =
      _mm256_or_ps(Equal(x, All(0.0f)), Equal(biased, All(255.0f)));
  *exponent = Select(special, All(0.0f),
                     biased + Select(tiny, All(-150.0f), All(-126.0f)));
  const Lanes fraction = _mm256_castsi256_ps(_mm256_set1_epi32(
      static_cast<int32_t>(0x807fffffu)));  // sign and 23 bits
  return Select(special, x,
                _mm256_or_ps(_mm256_and_ps(normal, fraction), All(0.5f)));
}

// x * 2^exponent for a whole exponent, in four factors so that none overflows
// before the result does.
inline Lanes Scale(Lanes x, Lanes exponent) {
  const Lanes limit = All(278.0f);  // beyond, every float is 0 or infinite
  const __m256i whole = _mm256_cvtps_epi32(
      _mm256_min_ps(limit, _mm256_max_ps(All(-278.0f), exponent)));
  const auto power = [](__m128i e) {  // the bits of 2^e
    return _mm_slli_epi32(_mm_add_epi32(e, _mm_set1_epi32(127)), 23);
  };
  const Lanes quarter = _mm256_castsi256_ps(
      ByHalves(whole, [&](__m128i e) { return power(_mm_srai_epi32(e, 2)); }));
  const Lanes rest = _mm256_castsi256_ps(ByHalves(whole, [&](__m128i e) {
    const __m128i q = _mm_srai_epi32(e, 2);
    return power(_mm_sub_epi32(_mm_sub_epi32(_mm_sub_epi32(e, q), q), q));
  }));
  return ((x * quarter) * quarter) * quarter * rest;
}

// log2 of m in [sqrt(1/2), sqrt(2)]. Minimax polynomial of log2(1 + x) / x; the
// four leading coefficients and the evaluation from there on have two floats.
inline TwoFloats Log2(Lanes m) {
  const Lanes x = m - 1.0f;
  const Lanes x2 = x * x;
  Lanes even = x2 * 9.703654795885e-2f + 0.1720575392246f;
  even = even * x2 + 0.2050433009862f;
  even = even * x2 + 0.2885761857032f;
  Lanes odd = x2 * -0.1690667718648f + -0.1789081543684f;
  odd = odd * x2 + -0.2404672354459f;
  const Lanes p = odd * x + even;
  const TwoFloats c3 = {All(-0.360674142838f), All(-6.13283912543e-09f)};
  const TwoFloats c2 = {All(0.480897903442f), All(-1.44861207474e-08f)};
  const TwoFloats c1 = {All(-0.721347510815f), All(-4.84483164698e-09f)};
  const TwoFloats c0 = {All(1.44269502163f), All(2.01711713999e-08f)};
  TwoFloats q = FastSum(c3, Product(p, x));
  q = FastSum(c2, Product(q, x));
  q = FastSum(c1, Product(q, x));
  q = FastSum(c0, Product(q, x));
  return Product(q, x);
}

// 2^x for x in [-1/2, 1/2]: 1 + x * (c + x * p(x)), minimax.
inline Lanes Exp2(Lanes x) {
  const Lanes x2 = x * x;
  Lanes even = x2 * 1.539513905e-4f + 9.618283249e-3f;
  const Lanes odd = x2 * 1.340007293e-3f + 5.550328270e-2f;
  even = even * x2 + 0.2402264923f;
  const Lanes p = odd * x + even;
  const TwoFloats c = {All(0.6931471825f), All(2.36836577e-08f)};
  const TwoFloats q = Product(Sum(Product(p, x), c), x);
  const TwoFloats one_plus = FastSum(All(1.0f), q.hi);
  return one_plus.hi + (q.lo + one_plus.lo);
}

// x^exponent for a whole exponent >= 0, by squaring.
inline Lanes WholePow(Lanes x, float exponent) {
  if (exponent == 0.0f) return All(1.0f);
  Lanes odd_factors = All(1.0f);
  while (exponent > 1.0f) {
    const float half = std::floor(exponent * 0.5f);
    if (half != exponent * 0.5f) odd_factors = odd_factors * x;
    x = x * x;
    exponent = half;
  }
  return odd_factors * x;
}

// x^exponent, x >= 0 and finite exponent >= 0 (others give some number, in
// bounded time): 2^(exponent * log2(x)) with log2(x) in two floats. The steps
// and constants of Eigen's generic_pow_impl and unary_pow_impl
// (GenericPacketMathFunctions.h) on a CPU without FMA.
inline Lanes Pow(Lanes x, float exponent) {
  if (std::isfinite(exponent) && std::floor(exponent) == exponent) {
    return WholePow(x, exponent);
  }
  Lanes e;
  Lanes m = Mantissa(x, &e);
  const Lanes low = Less(m, All(0.70710678118654752440f));
  m = Select(low, m * 2.0f, m);
  e = Select(low, e - 1.0f, e);

  const Lanes y = All(exponent);
  const TwoFloats f = FastSum(Product(e, y), Product(Log2(m), y));
  Lanes whole = Round(f.hi);
  Lanes rest = (f.hi - whole) + f.lo;
  const Lanes carry = Round(rest);
  rest = rest - carry;
  whole = whole + carry;

  const Lanes zero = All(0.0f);
  const Lanes infinity = All(std::numeric_limits<float>::infinity());
  Lanes power = Scale(Exp2(rest), whole);
  power = Select(Less(x, zero), All(std::nanf("")), power);
  power = Select(Equal(x, zero), zero, power);
  power = Select(Equal(x, infinity), infinity, power);
  return Select(Equal(x, All(1.0f)), x, power);
}

#endif  // __AVX__

// ------------------------------------------------------------------- rules
//
// Step<V> changes one lane group of a row: *value and slots[0 .. kSlots). A
// rule whose rows of one float are computed differently has SingleStep for
// those.

// H. Robbins, S. Monro, "A Stochastic Approximation Method", 1951.
struct GradientDescent {
  static constexpr int kSlots = 0;
  // TensorFlow scatters -lr*g of every occurrence instead of summing first.
  static constexpr bool kPerOccurrence = true;

  explicit GradientDescent(const float* hyper) : learning_rate(hyper[0]) {}

  template <typename V>
  void Step(V grad, V* value, V*) const {
    *value = *value - grad * learning_rate;
  }

  float learning_rate;
};

// B. Polyak, "Some methods of speeding up the convergence of iteration
// methods", 1964; nesterov: I. Sutskever et al., "On the importance of
// initialization and momentum in deep learning", 2013, as TensorFlow rearranges
// it.
// slots[0]: the running sum of gradients.
struct Momentum {
  static constexpr int kSlots = 1;
  static constexpr bool kPerOccurrence = false;

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
struct Adagrad {
  static constexpr int kSlots = 1;
  static constexpr bool kPerOccurrence = false;

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

// D. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", 2015, the
// form before section 2.1 (epsilon outside the correction). Lazy: a row that is
// not in the batch keeps its moments, where the paper decays them.
// slots[0], slots[1]: first and second moment.
struct Adam {
  static constexpr int kSlots = 2;
  static constexpr bool kPerOccurrence = false;

  explicit Adam(const float* hyper)
      : beta1(hyper[1]),
        beta2(hyper[2]),
        epsilon(hyper[3]),
        // hyper[4], hyper[5]: beta1 and beta2 to the power of the step, from 1.
        corrected_rate(hyper[0] * std::sqrt(1.0f - hyper[5]) /
                       (1.0f - hyper[4])) {}

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    slots[0] = slots[0] * beta1 + grad * (1.0f - beta1);
    slots[1] = slots[1] * beta2 + (grad * grad) * (1.0f - beta2);
    *value = *value - (slots[0] * corrected_rate) / (Sqrt(slots[1]) + epsilon);
  }

  float beta1, beta2, epsilon, corrected_rate;
};

// H. B. McMahan et al., "Ad Click Prediction: a View from the Trenches", 2013;
// learning_rate_power -1/2 is the paper's. l2_shrinkage is TensorFlow's: a
// gradient penalty on the value, left out of the accumulator. The paper's beta
// comes as a part of l2 (beta / (2 learning_rate)), as TensorFlow passes it.
// slots[0]: the sum of squared gradients, slots[1]: the paper's z.
struct Ftrl {
  static constexpr int kSlots = 2;
  static constexpr bool kPerOccurrence = false;

  explicit Ftrl(const float* hyper)
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

  template <typename V>
  void Step(V grad, V* value, V* slots) const {
    const V accumulated = slots[0] + grad * grad;
    const V root = Root(accumulated);
    const V sigma = (root - Root(slots[0])) / learning_rate;
    const V z = slots[1] + (Shrunk(grad, *value) - sigma * *value);
    *value = (Clamp(z, l1) - z) / (root / learning_rate + l2);
    slots[0] = accumulated;
    slots[1] = z;
  }

  // Takes powers also where the power is 1/2, and adds in another order.
  void SingleStep(float grad, float* value, float* slots) const {
    const float accumulated = slots[0] + grad * grad;
    const float sigma =
        (Pow(accumulated, power) - Pow(slots[0], power)) / learning_rate;
    const float z = (slots[1] + Shrunk(grad, *value)) - sigma * *value;
    *value = (Clamp(z, l1) - z) / (Root(accumulated) / learning_rate + l2);
    slots[0] = accumulated;
    slots[1] = z;
  }

  float learning_rate, power, l1, l2, l2_shrinkage;
};

// ------------------------------------------------------------ rows by a rule

template <typename Rule>
class RuleRowUpdate final : public RowUpdate {
 public:
  explicit RuleRowUpdate(const float* hyper) : rule_(hyper) {}

  int slots() const override { return Rule::kSlots; }
  bool per_occurrence() const override { return Rule::kPerOccurrence; }

  void Update(float* const* rows, const float* const* grads, size_t n,
              int dim) const override {
    const Rule rule = rule_;  // In registers: rows might alias *this.
    if (dim == 1) {
      for (size_t r = 0; r < n; ++r) SingleStep(rule, *grads[r], rows[r], 0);
      return;
    }
    for (size_t r = 0; r < n; ++r) {
      float* const row = rows[r];
      const float* const grad = grads[r];
      int i = 0;
#if defined(__AVX__)
      for (; i + kLanes <= dim; i += kLanes) {
        Step<Lanes>(rule, grad + i, row + i, dim);
      }
#endif
      for (; i < dim; ++i) Step<float>(rule, grad + i, row + i, dim);
    }
  }

 private:
  template <typename V>
  static void Step(const Rule& rule, const float* grad, float* row, int dim) {
    V value = Load<V>(row);
    V slots[Rule::kSlots + 1];  // One more: no array of none.
    for (int s = 0; s < Rule::kSlots; ++s) {
      slots[s] = Load<V>(row + (s + 1) * dim);
    }
    rule.Step(Load<V>(grad), &value, slots);
    Store(value, row);
    for (int s = 0; s < Rule::kSlots; ++s) {
      Store(slots[s], row + (s + 1) * dim);
    }
  }

  // Chosen where the rule has one: int is a better match for 0 than long.
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

struct Entry {
  const char* name;
  std::vector<std::string> hyper;
  std::unique_ptr<RowUpdate> (*make)(const float* hyper);
};

const std::vector<Entry>& Entries() {
  static const auto* const entries = new std::vector<Entry>{
      {"GradientDescent", {"learning_rate"}, Make<GradientDescent>},
      {"Momentum",
       {"learning_rate", "momentum", "use_nesterov"},
       Make<Momentum>},
      {"Adagrad", {"learning_rate"}, Make<Adagrad>},
      {"Adam",
       {"learning_rate", "beta1", "beta2", "epsilon", "beta1_power",
        "beta2_power"},
       Make<Adam>},
      {"Ftrl",
       {"learning_rate", "learning_rate_power", "l1", "l2", "l2_shrinkage"},
       Make<Ftrl>},
  };
  return *entries;
}

const Entry* Find(const std::string& rule) {
  for (const Entry& entry : Entries()) {
    if (rule == entry.name) return &entry;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> HyperparameterNames(const std::string& rule) {
  const Entry* const entry = Find(rule);
  return entry == nullptr ? std::vector<std::string>() : entry->hyper;
}

std::vector<std::string> RowUpdateRules() {
  std::vector<std::string> names;
  for (const Entry& entry : Entries()) names.push_back(entry.name);
  return names;
}

std::unique_ptr<RowUpdate> MakeRowUpdate(const std::string& rule,
                                         const std::vector<float>& hyper) {
  const Entry* const entry = Find(rule);
  if (entry == nullptr || hyper.size() != entry->hyper.size()) return nullptr;
  return entry->make(hyper.data());
}

}  // namespace rec_estimator
