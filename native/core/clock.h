// SPDX-License-Identifier: Apache-2.0
// One clock for all processes of a host: CLOCK_MONOTONIC or, when asked for, the processor's own
// counter, scaled to run with it. The finalizer takes off what the two drift apart.
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#define CLOCK_HAS_COUNTER 1
#else
#define CLOCK_HAS_COUNTER 0
#endif

// ns = base_ns + (counter - base) * scale / 2^32. scale 0: CLOCK_MONOTONIC.
typedef struct {
  uint64_t base;
  uint64_t base_ns;
  uint64_t scale;
} ClockScale;

typedef struct {
  _Atomic uint64_t base, base_ns, scale;
} SharedClockScale;

extern SharedClockScale clock_scale;

// A scale that begins now; with scale 0 where there is no counter. May sleep for some milliseconds
// in a process that has just started, because a rate needs two readings.
ClockScale clock_measure(void);
void clock_use(ClockScale scale);

static inline uint64_t clock_monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t clock_ns(void) {
#if CLOCK_HAS_COUNTER
  uint64_t scale = atomic_load_explicit(&clock_scale.scale, memory_order_relaxed);
  if (scale) {
    uint64_t base = atomic_load_explicit(&clock_scale.base, memory_order_relaxed);
    uint64_t base_ns = atomic_load_explicit(&clock_scale.base_ns, memory_order_relaxed);
    return base_ns + (uint64_t)((unsigned __int128)(__rdtsc() - base) * scale >> 32);
  }
#endif
  return clock_monotonic_ns();
}

// Nanoseconds per tick of the counter, as in ClockScale, for all clocks below; 0: it is not used.
// Needs no lock: it is the same whoever measures it.
void clock_use_counter(bool allowed);

// The recording's clock again, for one thread at a time: between two readings of it, which are less
// than a millisecond apart, the processor's counter tells the time.
typedef struct {
  uint64_t counter, ns;  // at the last reading
  uint64_t scale;        // as in ClockScale
  uint64_t most;         // ticks for which the reading is good; 0: each time is read
} QuickClock;

uint64_t clock_quick_read(QuickClock *clock);

static inline uint64_t clock_quick_ns(QuickClock *clock) {
#if CLOCK_HAS_COUNTER
  uint64_t since = __rdtsc() - clock->counter;
  if (__builtin_expect(since < clock->most, 1)) {
    return clock->ns + (since * clock->scale >> 32);
  }
#endif
  return clock_quick_read(clock);
}
