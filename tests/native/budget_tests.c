// SPDX-License-Identifier: Apache-2.0
#include "budget.h"
#include "check.h"

enum { kMillisecond = 1000000, kSecond = 1000000000 };

// Looks that cost what `cost_ns` says of their number, for so many, at the pauses that the budget
// gives; the time that went by.
typedef struct {
  uint64_t wall_ns, own_ns, longest_ns;
} Course;

static Course follow(uint64_t interval_ns, uint64_t looks, uint64_t (*cost_ns)(uint64_t number)) {
  Budget budget = kFirstBudget;
  Course course = {0};
  for (uint64_t number = 0; number < looks; number++) {
    uint64_t pause_ns = budget_pause_ns(&budget, interval_ns), own_ns = cost_ns(number);
    CHECK(pause_ns >= interval_ns);
    budget_account(&budget, pause_ns, own_ns);
    course.wall_ns += pause_ns;
    course.own_ns += own_ns;
    if (pause_ns > course.longest_ns) course.longest_ns = pause_ns;
  }
  return course;
}

static uint64_t cheap(uint64_t number) {
  return 80000 + number % 2 * 20000;  // 90 µs on average: 0.9 % at 100 Hz
}

static uint64_t costly(uint64_t number) {
  (void)number;
  return 420000;
}

static uint64_t one_of_ten_ms(uint64_t number) {
  return number == 0 ? 10 * kMillisecond : 50000;
}

static uint64_t monstrous(uint64_t number) {
  return number == 0 ? 3600ull * kSecond : 0;
}

static uint64_t drawn(uint64_t number) {
  uint64_t state = (number + 1) * 0x9e3779b97f4a7c15u;
  state ^= state >> 29;
  state *= 0xbf58476d1ce4e5b9u;
  return (state >> 40) % (number / 1000 % 2 ? 40000 : 400000);
}

static void keeps_an_affordable_rate(const char *scratch) {
  (void)scratch;
  Course course = follow(10 * kMillisecond, 100000, cheap);
  CHECK_EQUAL(course.wall_ns, 1000ull * kSecond);
  // What the first looks cost is paid in advance.
  CHECK_EQUAL(follow(10 * kMillisecond, 1000, one_of_ten_ms).longest_ns, 10 * kMillisecond);
}

static void lowers_a_rate_to_what_it_may_cost(const char *scratch) {
  (void)scratch;
  // A look pays for itself after 420 µs * 105 = 44.1 ms, whatever was asked.
  uint64_t asked_ns[] = {1 * kMillisecond, 2 * kMillisecond, 10 * kMillisecond};
  for (int i = 0; i < 3; i++) {
    Course course = follow(asked_ns[i], 10000, costly);
    CHECK_EQUAL(course.longest_ns, 44100000);
    CHECK(course.own_ns * 100 <= course.wall_ns);
    CHECK(course.own_ns * 107 >= course.wall_ns);
  }
  CHECK_EQUAL(follow(50 * kMillisecond, 100, costly).longest_ns, 50 * kMillisecond);
}

static void any_costs_stay_within_one_percent(const char *scratch) {
  (void)scratch;
  for (uint64_t rate_hz = 1; rate_hz <= 1000; rate_hz += 37) {
    Course course = follow(kSecond / rate_hz, 50000, drawn);
    CHECK(course.own_ns * 100 <= course.wall_ns);
  }
}

static void forgets_a_quiet_hour(const char *scratch) {
  (void)scratch;
  Budget budget = kFirstBudget;
  budget_account(&budget, 3600ull * kSecond, 0);
  CHECK_EQUAL(budget.saved_ns, kMostSavedNs);
  budget_account(&budget, 0, kMostSavedNs);
  CHECK_EQUAL(budget_pause_ns(&budget, 1), 1);
  budget_account(&budget, 0, 1000);
  CHECK_EQUAL(budget_pause_ns(&budget, 1), 105000);
}

static void one_look_never_ends_it(const char *scratch) {
  (void)scratch;
  Course course = follow(10 * kMillisecond, 10, monstrous);
  CHECK_EQUAL(course.longest_ns, 10500000000);
  CHECK_EQUAL(course.wall_ns, 10500000000 + 9 * 10 * kMillisecond);
}

const Test kBudgetTests[] = {
    {"the rate that was asked for is kept where it may be", keeps_an_affordable_rate},
    {"a rate that costs too much is lowered to what it may cost",
     lowers_a_rate_to_what_it_may_cost},
    {"whatever looks cost, together they stay within 1 %", any_costs_stay_within_one_percent},
    {"a quiet hour does not pay for what comes after", forgets_a_quiet_hour},
    {"one look, however long, does not end sampling", one_look_never_ends_it},
    {NULL, NULL},
};
