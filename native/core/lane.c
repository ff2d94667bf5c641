// SPDX-License-Identifier: Apache-2.0
// Lanes: (thread, Python context). The one place that looks inside CPython's Context.
#define _GNU_SOURCE
#define Py_BUILD_CORE
#include <Python.h>
#include <internal/pycore_context.h>
#undef Py_BUILD_CORE

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hooks.h"

enum { kMostContexts = 65536 };

// A thread starts without a context and gets one when its first ContextVar is set, as numpy does in
// passing. That one is never "entered", and is the same lane as none. The others (tasks,
// Context.run) are lanes of their own. A freed context's address may come again: the new task
// cannot overlap the old one, so they may share a lane.
static const void *lane_key(PyObject *context) {
  if (context == NULL || !((PyContext *)context)->ctx_entered) return NULL;
  return context;
}

static unsigned long system_tid(void) {
  return (unsigned long)syscall(SYS_gettid);
}

static void define_with_python(Ring *ring, uint32_t lane, uint32_t context_number) {
  uint32_t serial = ring->serial;
  PyObject *text = python_call(kDescribeLane, Py_BuildValue("(kI)", system_tid(), context_number));
  Py_ssize_t length = 0;
  const char *bytes = text ? PyUnicode_AsUTF8AndSize(text, &length) : NULL;
  if (bytes == NULL) {
    python_forget_error();
  } else if (recorder_owns(ring, serial)) {
    log_define(ring->log, kDefineLane, lane, bytes, (size_t)length);
  }
  Py_XDECREF(text);
}

static void define_without_python(Ring *ring, uint32_t lane, uint32_t context_number) {
  char thread[16] = "", text[128];
  pthread_getname_np(pthread_self(), thread, sizeof thread);
  for (char *c = thread; *c; c++) {
    if (*c < ' ' || *c > '~' || *c == '"' || *c == '\\') *c = '?';
  }
  int length =
      snprintf(text, sizeof text,
               "{\"tid\": %lu, \"thread\": \"%s\", \"context\": %u, \"system_name\": true}",
               system_tid(), thread, context_number);
  log_define(ring->log, kDefineLane, lane, text, (size_t)length);
}

// Who may name a lane. One that the system named is defined again once Python can.
typedef enum { kBySystem, kByPython } Namer;

static void define_lane(Ring *ring, uint32_t lane, uint32_t context_number, Namer namer) {
  if (namer == kByPython) {
    define_with_python(ring, lane, context_number);
  } else {
    define_without_python(ring, lane, context_number);
  }
}

// Where the key is, or would be: open addressing, never more than half full.
static LaneEntry *probe(LaneEntry *lanes, uint32_t capacity, const void *key) {
  uint32_t place = (uint32_t)((uintptr_t)key >> 4) * 2654435769u;
  for (;; place++) {
    LaneEntry *entry = &lanes[place & (capacity - 1)];
    if (!entry->used || entry->context == key) return entry;
  }
}

static bool grow(Ring *ring) {
  uint32_t capacity = ring->lane_capacity ? ring->lane_capacity * 2 : 8;
  LaneEntry *lanes = calloc(capacity, sizeof *lanes);
  if (lanes == NULL) return false;
  for (uint32_t i = 0; i < ring->lane_capacity; i++) {
    LaneEntry *old = &ring->lanes[i];
    if (old->used) *probe(lanes, capacity, old->context) = *old;
  }
  free(ring->lanes);
  ring->lanes = lanes;
  ring->lane_capacity = capacity;
  return true;
}

// The lane of a context. Its place is taken before Python code runs, which may want it too.
static uint32_t context_lane(Ring *ring, const void *key, Namer namer) {
  if (ring->lane_count == kMostContexts) ring_forget_lanes(ring);
  if (ring->lane_count * 2 >= ring->lane_capacity && !grow(ring)) return ring->lane;
  LaneEntry *entry = probe(ring->lanes, ring->lane_capacity, key);
  if (entry->used && (entry->named || namer == kBySystem)) return entry->lane;
  if (!entry->used) {
    *entry = (LaneEntry){.context = key, .used = true};
    entry->lane = atomic_fetch_add(&ring->log->next_lane, 1);
    entry->number = ++ring->contexts;
    ring->lane_count++;
  }
  entry->named = namer == kByPython;
  uint32_t lane = entry->lane;
  define_lane(ring, lane, entry->number, namer);
  return lane;
}

static uint32_t base_lane(Ring *ring, Namer namer) {
  if (ring->base_lane_known && (ring->base_lane_named || namer == kBySystem)) {
    return ring->base_lane;
  }
  if (!ring->base_lane_known) ring->base_lane = atomic_fetch_add(&ring->log->next_lane, 1);
  ring->base_lane_known = true;
  ring->base_lane_named = namer == kByPython;
  uint32_t lane = ring->base_lane;
  define_lane(ring, lane, 0, namer);
  return lane;
}

static uint32_t find_lane(Ring *ring, const PyThreadState *thread, Namer namer) {
  uint32_t serial = ring->serial;
  const void *context = thread->context;
  uint64_t version = thread->context_ver;
  const void *key = lane_key(thread->context);
  uint32_t lane = key ? context_lane(ring, key, namer) : base_lane(ring, namer);
  if (!recorder_owns(ring, serial)) return lane;
  ring->lane = lane;
  ring->lane_context = context;
  ring->lane_version = version;
  ring->lane_known = true;
  ring->lane_named = namer == kByPython;
  return lane;
}

uint32_t lane_slow(Ring *ring, const PyThreadState *thread) {
  return find_lane(ring, thread, kByPython);
}

// A thread's state and context are changed by that thread alone, so it may look at them without the
// GIL.
uint32_t lane_without_gil(Ring *ring) {
  const PyThreadState *thread = PyGILState_GetThisThreadState();
  if (thread == NULL) return base_lane(ring, kBySystem);
  if (lane_is_current(ring, thread)) return ring->lane;
  return find_lane(ring, thread, kBySystem);
}

uint32_t lane_of_thread(Ring *ring, unsigned long ident) {
  uint32_t serial = ring->serial;
  PyObject *text = python_call(kDescribeThread, Py_BuildValue("(k)", ident));
  Py_ssize_t length = 0;
  const char *bytes = text ? PyUnicode_AsUTF8AndSize(text, &length) : NULL;
  uint32_t lane = 0;
  if (recorder_owns(ring, serial)) {
    lane = atomic_fetch_add(&ring->log->next_lane, 1);
    if (bytes) log_define(ring->log, kDefineLane, lane, bytes, (size_t)length);
  }
  if (bytes == NULL) python_forget_error();
  Py_XDECREF(text);
  return lane;
}
