// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "clock.h"

SharedClockScale clock_scale;

#if CLOCK_HAS_COUNTER

enum { kTries = 20 };

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

static ClockScale measure(uint64_t least_ns) {
  uint64_t elapsed = clock_monotonic_ns() - first_reading.ns;
  if (elapsed < least_ns) {
    struct timespec rest = {0, (long)(least_ns - elapsed)};
    nanosleep(&rest, NULL);
  }
  Reading now = read_both();
  if (now.counter <= first_reading.counter) return (ClockScale){0, 0, 0};
  unsigned __int128 spent_ns = (unsigned __int128)(now.ns - first_reading.ns) << 32;
  uint64_t scale = (uint64_t)(spent_ns / (now.counter - first_reading.counter));
  return (ClockScale){now.counter, now.ns, scale};
}

#else

static ClockScale measure(uint64_t least_ns) {
  (void)least_ns;
  return (ClockScale){0, 0, 0};
}

#endif

enum { kLeastNs = 20 * 1000 * 1000, kLeastQuickNs = 2 * 1000 * 1000 };

ClockScale clock_measure(void) {
  return measure(kLeastNs);
}

void clock_use(ClockScale scale) {
  atomic_store_explicit(&clock_scale.scale, 0, memory_order_relaxed);
  atomic_store_explicit(&clock_scale.base, scale.base, memory_order_relaxed);
  atomic_store_explicit(&clock_scale.base_ns, scale.base_ns, memory_order_relaxed);
  atomic_store_explicit(&clock_scale.scale, scale.scale, memory_order_release);
}

static _Atomic uint64_t counter_scale;

enum { kQuickTicks = 1 << 20, kMostDriftNs = 1000 };

void clock_use_counter(bool allowed) {
  if (allowed && atomic_load_explicit(&counter_scale, memory_order_relaxed)) return;
  ClockScale measured = allowed ? measure(kLeastQuickNs) : (ClockScale){0, 0, 0};
  // Slower counters than that of a nanosecond are not worth it.
  bool usable = measured.scale < (uint64_t)1 << 32;
  atomic_store_explicit(&counter_scale, usable ? measured.scale : 0, memory_order_relaxed);
}

#if CLOCK_HAS_COUNTER

uint64_t clock_quick_read(QuickClock *clock) {
  uint64_t now_ns = clock_ns();
  if (clock->most == 0) {
    clock->scale = atomic_load_explicit(&counter_scale, memory_order_relaxed);
    if (clock->scale == 0) return now_ns;
    clock->most = kQuickTicks;
  }
  uint64_t counter = __rdtsc();
  uint64_t since = counter - clock->counter;
  if (clock->counter && since < (uint64_t)1 << 31) {
    // Never back: what was told since may have been ahead by a few nanoseconds.
    uint64_t told_ns = clock->ns + (since * clock->scale >> 32);
    if (told_ns > now_ns && told_ns - now_ns < kMostDriftNs) now_ns = told_ns;
  }
  clock->counter = counter;
  clock->ns = now_ns;
  return now_ns;
}

#else

uint64_t clock_quick_read(QuickClock *clock) {
  (void)clock;
  return clock_ns();
}

#endif
