/// @file
/// The main function of every test program: a failure is 1, a skip (see skip.hpp) 77, no test at all 2.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "support/skip.hpp"

namespace {

/// Counts the test cases that ran, so that a filter that matches nothing does not pass.
struct Counter final : doctest::IReporter {
  explicit Counter(const doctest::ContextOptions& /*options*/) {}
  void report_query(const doctest::QueryData& /*data*/) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override { cases() = stats.numTestCasesPassingFilters; }
  void test_case_start(const doctest::TestCaseData& /*data*/) override {}
  void test_case_reenter(const doctest::TestCaseData& /*data*/) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& /*stats*/) override {}
  void test_case_exception(const doctest::TestCaseException& /*exception*/) override {}
  void subcase_start(const doctest::SubcaseSignature& /*signature*/) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& /*data*/) override {}
  void log_message(const doctest::MessageData& /*data*/) override {}
  void test_case_skipped(const doctest::TestCaseData& /*data*/) override {}

  static unsigned& cases() {
    static unsigned count = 0;
    return count;
  }
};

}  // namespace

REGISTER_LISTENER("counter", 0, Counter);

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const int failed = context.run();
  if (context.shouldExit() || failed != 0) return failed;
  if (Counter::cases() == 0) {
    std::fputs("no test case matches the filter\n", stderr);
    return 2;
  }
  return dtrain_test::something_was_skipped() ? 77 : 0;
}
