// SPDX-License-Identifier: Apache-2.0
// The files that include this one are the only ones that touch Python objects; but for what source.c
// offers, all of it runs with the GIL held.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "recorder.h"

// A failure of ours must not reach the profiled program: it is counted and shown at stop. What is no
// Exception (KeyboardInterrupt from a signal handler) is the program's and stays set.
void python_forget_error(void);
uint64_t python_forgotten_errors(void);

// The functions of strobe.record._support, which does in Python what need not be fast.
typedef enum {
  kCheckAttributes,
  kDecorate,
  kDescribeLane,
  kDescribeThread,
  kEncodeAttributes,
  kQualifiedName,
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

// The id of a str in the ring's log; 0 when there can be none. `*defined` is cleared when it could
// not be written there: then it must not be kept, so that its next use tries again.
uint32_t string_id(Ring *ring, PyObject *text, bool *defined);

// A new reference to the str of a number, NULL without an exception where it is not known any more.
PyObject *string_of_id(uint32_t serial, uint32_t id);

// The same for the JSON text of attributes that are not plain; 0 for none.
uint32_t attributes_id(Ring *ring, PyObject *attributes, bool *defined);

// Attributes of a vectorcall are kept as the tuple of keys and as many values, and recorded without
// JSON, if they are few and plain: None, bool, int of 64 bits, float or str, and no subclass.
enum { kMostValues = 4 };
bool values_are_plain(PyObject *const *values, Py_ssize_t count);
PyObject *values_dict(PyObject *keys, PyObject *const *values);

// The id of a set of such values, which it writes to the ring; 0 when there can be none.
uint32_t values_id(Ring *ring, PyObject *keys, PyObject *const *values, bool *defined);

// Keyword arguments of a vectorcall but the one at `except` (-1: all) as a new dict whose values are
// ones that we can keep, or NULL with an exception. `caller` is for its message.
PyObject *collect_attributes(const char *caller, PyObject *const *values, PyObject *names,
                             Py_ssize_t except);

// True when `name` is a str; else sets UsageError.
bool check_name(const char *caller, PyObject *name);

uint32_t lane_slow(Ring *ring, const PyThreadState *thread);

// The same without the GIL; the lane gets the system's name for the thread until Python gives it
// one.
uint32_t lane_without_gil(Ring *ring);

// A new lane for another thread, by the number that `threading` has for it.
uint32_t lane_of_thread(Ring *ring, unsigned long ident);

// The version tells a context from another at its address.
static inline bool lane_is_current(const Ring *ring, const PyThreadState *thread) {
  return ring->lane_known && ring->lane_context == thread->context &&
         ring->lane_version == thread->context_ver;
}

// Whether lane_id will run no Python code.
static inline bool lane_is_known(const Ring *ring) {
  return lane_is_current(ring, PyThreadState_GET()) && ring->lane_named;
}

// The calling thread's lane: one for each Python context, so that asyncio's tasks do not nest in
// each other.
static inline uint32_t lane_id(Ring *ring) {
  if (__builtin_expect(lane_is_known(ring), 1)) return ring->lane;
  return lane_slow(ring, PyThreadState_GET());
}

extern PyTypeObject SpanType;
int span_prepare(void);

// source_span(name, category, attributes=None): a span that is not the user's.
PyObject *span_of_category(PyObject *module, PyObject *arguments);

// The table of source.h.
PyObject *source_capsule(void);

// What one span costs in nanoseconds, measured now; negative when it cannot be.
typedef struct {
  double plain_ns, with_value_ns;
} SpanCosts;
SpanCosts span_calibrate(void);

// Has the thread with the GIL let it go soon, and wait until somebody takes it: to be called right
// before that. Python itself asks after 5 ms, and whatever ends earlier would never be seen.
void python_ask_for_gil(PyInterpreterState *interpreter);

// Who has the GIL, NULL for nobody; may be asked without it. Only to be compared: the thread may have
// ended meanwhile.
PyThreadState *python_gil_holder(PyInterpreterState *interpreter);

// Who had the GIL last, or has it now; as above.
PyThreadState *python_last_gil_holder(PyInterpreterState *interpreter);

// How often the GIL has gone from a thread to another.
unsigned long python_gil_switches(PyInterpreterState *interpreter);

// Has the thread with the GIL look for pending calls soon: up to Python 3.12 the main thread does so
// only when it takes the GIL again.
void python_notice_pending_calls(PyInterpreterState *interpreter);

// Where a thread was: its innermost frame and, unless it went on while it was looked at, what that
// one ran and who called it. Only to be compared: all of it may be gone.
typedef struct {
  const void *frame, *caller;
  PyCodeObject *code;
} PythonPlace;

// To be asked without the GIL, of the main thread while it has it.
PythonPlace python_place(PyThreadState *thread);

// The code objects that a thread runs, innermost first, at most so many; how many those are. The
// references are borrowed: they are good until the thread runs again. With a frame in `place`, those
// that it ran when it was there, as far as they can still be known. The first of them may be gone.
int python_codes(PyThreadState *thread, const PythonPlace *place, PyCodeObject **codes, int most);

// What is told of holders.h: (owner, device, blocks, bytes) each; and of what there was before.
PyObject *owners_list(PyObject *module, PyObject *nothing);
PyObject *owners_before(PyObject *module, PyObject *storages);
PyObject *owners_forget(PyObject *module, PyObject *nothing);

// The Python calls of all threads (calls.c) and samples of their stacks (sampler.c).
PyObject *calls_start(PyObject *module, PyObject *arguments);
PyObject *calls_keep(PyObject *module, PyObject *nothing);
PyObject *calls_stop(PyObject *module, PyObject *nothing);
PyObject *calls_after_fork(PyObject *module, PyObject *nothing);
PyObject *sampler_start(PyObject *module, PyObject *arguments);
PyObject *sampler_stop(PyObject *module, PyObject *nothing);
PyObject *sampler_forget(PyObject *module, PyObject *nothing);
PyObject *sampler_restart(PyObject *module, PyObject *nothing);

// What tracemalloc traces, by its function that lists all blocks: (traceback, bytes, blocks) each.
PyObject *traced_sums(PyObject *module, PyObject *get_traces);
