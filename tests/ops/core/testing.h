// SPDX-License-Identifier: Apache-2.0
// A small test framework for the core. It needs only g++.
//
//   TEST(LookupNeverInserts) { ...; EXPECT_EQ(table.size(), 0); }
//   RUN_ALL_TESTS()
//
// Tests run in order. A failed expectation is printed, and the test goes
// on. `binary [part of a name]` runs the tests that contain it. Those of
// SLOW_TEST run only then. So do those of TEST_WITHOUT_TSAN under TSan: they
// take long there, and other tests run the same code with more threads. The
// last line is "N passed, N failed"; the exit code is 0 only if none failed.
#ifndef REC_ESTIMATOR_TESTS_OPS_CORE_TESTING_H_
#define REC_ESTIMATOR_TESTS_OPS_CORE_TESTING_H_

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <sstream>
#include <vector>

namespace rec_estimator {
namespace testing {

// A test that hangs (a deadlock) is killed after this time, in seconds. No test
// takes as long, even under TSan on a busy machine. A slow test has more.
constexpr unsigned kDeadline = 600;
constexpr unsigned kSlowDeadline = 7200;

enum class Kind { kUsual, kWithoutTsan, kSlow };

struct Test {
  const char* name;
  void (*body)();
  Kind kind;
};

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kUnderTsan = true;
#else
inline constexpr bool kUnderTsan = false;
#endif

inline bool RunsUnnamed(const Test& test) {
  if (test.kind == Kind::kWithoutTsan) return !kUnderTsan;
  return test.kind == Kind::kUsual;
}

inline std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

// Failed expectations of the running test, in all of its threads.
inline std::atomic<int>& Failures() {
  static std::atomic<int> failures{0};
  return failures;
}

struct Registration {
  Registration(const char* name, void (*body)(), Kind kind) {
    Tests().push_back({name, body, kind});
  }
};

inline void Fail(const char* file, int line, const std::string& what) {
  // The first failures of a loop are enough.
  if (++Failures() > 10) return;
  std::ostringstream text;
  text << file << ":" << line << ": " << what << "\n";
  std::cerr << text.str() << std::flush;
}

template <typename A, typename B>
void ExpectEqual(const A& a, const B& b, const char* a_text, const char* b_text,
                 const char* file, int line) {
  if (a == b) return;
  std::ostringstream what;
  what.precision(9);
  what << a_text << " must equal " << b_text << ", got " << a << " and " << b;
  Fail(file, line, what.str());
}

inline int RunAll(int argc, char** argv) {
  int passed = 0, failed = 0;
  for (const Test& test : Tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    if (argc <= 1 && !RunsUnnamed(test)) continue;
    std::printf("%s ", test.name);
    std::fflush(stdout);
    Failures() = 0;
    alarm(test.kind == Kind::kSlow ? kSlowDeadline : kDeadline);
    test.body();
    alarm(0);
    const bool good = Failures() == 0;
    std::printf("%s\n", good ? "ok" : "FAILED");
    ++(good ? passed : failed);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace testing
}  // namespace rec_estimator

#define REGISTER_TEST(name, kind)                                     \
  static void Test##name();                                           \
  static const ::rec_estimator::testing::Registration register##name( \
      #name, &Test##name, ::rec_estimator::testing::Kind::kind);      \
  static void Test##name()
#define TEST(name) REGISTER_TEST(name, kUsual)
#define TEST_WITHOUT_TSAN(name) REGISTER_TEST(name, kWithoutTsan)
#define SLOW_TEST(name) REGISTER_TEST(name, kSlow)

#define EXPECT_TRUE(condition)                                 \
  do {                                                         \
    if (!(condition)) {                                        \
      ::rec_estimator::testing::Fail(__FILE__, __LINE__,       \
                                     #condition " must hold"); \
    }                                                          \
  } while (false)
#define EXPECT_FALSE(condition) EXPECT_TRUE(!(condition))
#define EXPECT_EQ(a, b) \
  ::rec_estimator::testing::ExpectEqual((a), (b), #a, #b, __FILE__, __LINE__)

#define RUN_ALL_TESTS()                                  \
  int main(int argc, char** argv) {                      \
    return ::rec_estimator::testing::RunAll(argc, argv); \
  }

#endif  // REC_ESTIMATOR_TESTS_OPS_CORE_TESTING_H_
