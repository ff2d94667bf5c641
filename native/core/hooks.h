// SPDX-License-Identifier: Apache-2.0
// The files that include this one are the only ones that touch Python objects; all of them run with
// the GIL held.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "recorder.h"

// A failure of ours must not reach the profiled program: it is counted and shown at stop.
void python_forget_error(void);
uint64_t python_forgotten_errors(void);

// The functions of strobe.record._support, which does in Python what need not be fast.
typedef enum {
  kCheckAttributes,
  kDecorate,
  kDescribeLane,
  kEncodeAttributes,
  kRebuildSpan,
  kRefuseName,
  kRefuseValue,
  kSupportFunctions,
} Support;

// A borrowed reference, or NULL with an exception.
PyObject *python_support(Support function);

// Calls it and takes the reference to the arguments, which may be NULL with an exception; a new
// reference or NULL with an exception.
PyObject *python_call(Support function, PyObject *arguments);

// The id of a str in the ring's log, defined there before it is returned; 0 when that failed.
uint32_t string_id(Ring *ring, PyObject *text);

// The id of the attributes' JSON text; 0 for none.
uint32_t attributes_id(Ring *ring, PyObject *attributes);

// Keyword arguments of a vectorcall but the one at `except` (-1: all) as a new dict whose values are
// ones that we can keep, or NULL with an exception. `caller` is for its message.
PyObject *collect_attributes(const char *caller, PyObject *const *values, PyObject *names,
                             Py_ssize_t except);

// True when `name` is a str; else sets UsageError.
bool check_name(const char *caller, PyObject *name);

uint32_t lane_slow(Ring *ring, PyObject *context);

// The calling thread's lane: one for each Python context, so that asyncio's tasks do not nest in
// each other.
static inline uint32_t lane_id(Ring *ring) {
  PyObject *context = PyThreadState_GET()->context;
  if (__builtin_expect(ring->lane_known && ring->lane_context == context, 1)) return ring->lane;
  return lane_slow(ring, context);
}

extern PyTypeObject SpanType;
int span_prepare(void);

// What one span costs in nanoseconds, measured now; negative when it cannot be.
double span_calibrate(void);
