// SPDX-License-Identifier: Apache-2.0
// The one place that looks at CPython's GIL from outside of it.
#define Py_BUILD_CORE
#include <Python.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#undef Py_BUILD_CORE

#include "hooks.h"

static struct _gil_runtime_state *gil_of(PyInterpreterState *interpreter) {
#if PY_VERSION_HEX >= 0x030c0000
  return interpreter->ceval.gil;
#else
  (void)interpreter;
  return &_PyRuntime.ceval.gil;
#endif
}

unsigned long *python_switch_interval_us(PyInterpreterState *interpreter) {
  return &gil_of(interpreter)->interval;
}

PyThreadState *python_gil_holder(PyInterpreterState *interpreter) {
  struct _gil_runtime_state *gil = gil_of(interpreter);
#if PY_VERSION_HEX >= 0x030d0000
  return _Py_atomic_load_int(&gil->locked) ? _Py_atomic_load_ptr(&gil->last_holder) : NULL;
#else
  if (!_Py_atomic_load_relaxed(&gil->locked)) return NULL;
  return (PyThreadState *)_Py_atomic_load_relaxed(&gil->last_holder);
#endif
}

void python_notice_pending_calls(PyInterpreterState *interpreter) {
#if PY_VERSION_HEX < 0x030d0000
  _Py_atomic_store_relaxed(&interpreter->ceval.eval_breaker, 1);
#else
  (void)interpreter;
#endif
}
