// SPDX-License-Identifier: Apache-2.0
// The process's recorder: the control page, the current log, a ring for each thread, forks.
#pragma once

#include "ring.h"

// Never NULL: a private page that says "off" until a control page is mapped.
extern ControlPage *_Atomic recorder_control;

#if defined(__GLIBC__)
#define FAST_TLS __attribute__((tls_model("initial-exec")))
#else
#define FAST_TLS
#endif
extern _Thread_local Ring *recorder_thread_ring FAST_TLS;

typedef struct {
  bool counter;             // times come from the processor's counter
  uint64_t max_log_bytes;   // of one process's chunk file; 0: no limit
  uint64_t max_ring_bytes;  // of one process's rings; 0: no limit
  uint64_t recording;       // the id of the recording
} RecorderOptions;

// Once per process; 0 or an errno.
int recorder_initialize(void);

// From now on logs have the counters of usage.h, twice a second.
void recorder_watch_usage(void);
// Records them now.
void recorder_put_usage(void);
// After a fork, in the parent: goes on with it.
void recorder_go_on(void);

// Makes `path` the control page of this process and of the children that map it; with create, a new
// one. path NULL: shared with forked children only. 0 or an errno.
int recorder_use_control(const char *path, bool create);

// Switches recording on, into the directory, for this process and the children that share the
// control page. Both return 0 or an errno.
int recorder_start(const char *directory, RecorderOptions options);
int recorder_stop(void);
// Whether a thread writes the log besides those that record.
bool recorder_drains(void);

// Copies where recording goes now into kPathBytes bytes; false while it is off.
bool recorder_directory(char *directory);

typedef struct {
  uint64_t records;
  uint64_t dropped;
  uint64_t own_ns;
  uint64_t drain_ns;
  uint64_t lost_definitions;
  uint32_t anonymous_rings;
  int failed_errno;
} RecorderStats;

// Of this process and its current log; zeros while off.
RecorderStats recorder_stats(void);

// The slow path of recorder_ring.
Ring *recorder_attach(uint32_t generation);

static inline ControlPage *recorder_page(void) {
  return atomic_load_explicit(&recorder_control, memory_order_acquire);
}

// The calling thread's ring, NULL while recording is off or impossible.
static inline Ring *recorder_ring(void) {
  uint32_t generation = atomic_load_explicit(&recorder_page()->generation, memory_order_acquire);
  if (!(generation & 1)) return NULL;
  Ring *ring = recorder_thread_ring;
  if (__builtin_expect(
          ring && atomic_load_explicit(&ring->generation, memory_order_relaxed) == generation, 1)) {
    return ring;
  }
  return recorder_attach(generation);
}

// Python code that ran in between may have let another thread stop and start recording, and this
// thread attach again: the ring is then gone. Compares before it looks inside.
static inline bool recorder_owns(const Ring *ring, uint32_t serial) {
  return recorder_thread_ring == ring && ring->serial == serial;
}
