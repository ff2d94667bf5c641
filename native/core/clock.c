// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "clock.h"

SharedClockScale clock_scale;

#if CLOCK_HAS_COUNTER

enum { kLeastNs = 20 * 1000 * 1000, kTries = 20 };

typedef struct {
  uint64_t counter;
  uint64_t ns;
} Reading;

// Both clocks at one instant: the try that took least time is the one that was not interrupted.
static Reading read_both(void) {
  Reading best = {0, 0};
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < kTries; i++) {
    uint64_t before = __rdtsc();
    uint64_t ns = clock_monotonic_ns();
    uint64_t after = __rdtsc();
    if (after - before >= least) continue;
    least = after - before;
    best = (Reading){before + (after - before) / 2, ns};
  }
  return best;
}

static Reading first_reading;

__attribute__((constructor)) static void read_at_start(void) {
  first_reading = read_both();
}

ClockScale clock_measure(void) {
  uint64_t elapsed = clock_monotonic_ns() - first_reading.ns;
  if (elapsed < kLeastNs) {
    struct timespec rest = {0, (long)(kLeastNs - elapsed)};
    nanosleep(&rest, NULL);
  }
  Reading now = read_both();
  if (now.counter <= first_reading.counter) return (ClockScale){0, 0, 0};
  unsigned __int128 spent_ns = (unsigned __int128)(now.ns - first_reading.ns) << 32;
  uint64_t scale = (uint64_t)(spent_ns / (now.counter - first_reading.counter));
  return (ClockScale){now.counter, now.ns, scale};
}

#else

ClockScale clock_measure(void) {
  return (ClockScale){0, 0, 0};
}

#endif

void clock_use(ClockScale scale) {
  atomic_store_explicit(&clock_scale.scale, 0, memory_order_relaxed);
  atomic_store_explicit(&clock_scale.base, scale.base, memory_order_relaxed);
  atomic_store_explicit(&clock_scale.base_ns, scale.base_ns, memory_order_relaxed);
  atomic_store_explicit(&clock_scale.scale, scale.scale, memory_order_release);
}
