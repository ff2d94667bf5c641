// SPDX-License-Identifier: Apache-2.0
// How often a sampler may look: as often as asked while its processor time stays within 1 % of one
// core's wall time, less often beyond that. What it does not use in one second is not saved for
// later, so that a quiet hour does not pay for a costly minute.
#pragma once

#include <stdint.h>

enum {
  // Nanoseconds that go by for one of ours: more than 100, because one second is paid in advance.
  kWallPerOwn = 105,
  kMostSavedNs = 10000000,
  kMostOwedNs = 100000000,  // a look that costs more is not paid in full: this takes 10 s
};

typedef struct {
  int64_t saved_ns;  // processor time that we may still use; negative: owed
} Budget;

// The first looks see everything for the first time, and cost the most.
static const Budget kFirstBudget = {.saved_ns = kMostSavedNs};

// After `wall_ns` in which we used `own_ns` of a processor.
static inline void budget_account(Budget *budget, uint64_t wall_ns, uint64_t own_ns) {
  uint64_t earned_ns = wall_ns / kWallPerOwn;
  uint64_t room_ns = (uint64_t)(kMostSavedNs - budget->saved_ns);
  budget->saved_ns += (int64_t)(earned_ns < room_ns ? earned_ns : room_ns);
  uint64_t payable_ns = (uint64_t)(budget->saved_ns + kMostOwedNs);
  budget->saved_ns -= (int64_t)(own_ns < payable_ns ? own_ns : payable_ns);
}

// How long to wait before the next look, if they were to come at this interval: until nothing is owed.
static inline uint64_t budget_pause_ns(const Budget *budget, uint64_t interval_ns) {
  if (budget->saved_ns >= 0) return interval_ns;
  uint64_t until_paid_ns = (uint64_t)-budget->saved_ns * kWallPerOwn;
  return until_paid_ns > interval_ns ? until_paid_ns : interval_ns;
}
