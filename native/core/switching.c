// SPDX-License-Identifier: Apache-2.0
// The one place that looks at CPython's GIL from outside of it.
#define Py_BUILD_CORE
#include <Python.h>
#if PY_VERSION_HEX >= 0x030d0000
#include <internal/pycore_ceval.h>
#endif
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

void python_ask_for_gil(PyInterpreterState *interpreter) {
#if PY_VERSION_HEX >= 0x030d0000
  struct _gil_runtime_state *gil = gil_of(interpreter);
  // Whoever has it cannot end meanwhile: to let it go takes the mutex.
  pthread_mutex_lock(&gil->mutex);
  PyThreadState *holder = python_gil_holder(interpreter);
  if (holder) _Py_set_eval_breaker_bit(holder, _PY_GIL_DROP_REQUEST_BIT);
  pthread_mutex_unlock(&gil->mutex);
#else
  _Py_atomic_store_relaxed(&interpreter->ceval.gil_drop_request, 1);
  _Py_atomic_store_relaxed(&interpreter->ceval.eval_breaker, 1);
#endif
}

PyThreadState *python_gil_holder(PyInterpreterState *interpreter) {
  struct _gil_runtime_state *gil = gil_of(interpreter);
#if PY_VERSION_HEX >= 0x030d0000
  bool locked = _Py_atomic_load_int(&gil->locked);
#else
  bool locked = _Py_atomic_load_relaxed(&gil->locked);
#endif
  return locked ? python_last_gil_holder(interpreter) : NULL;
}

PyThreadState *python_last_gil_holder(PyInterpreterState *interpreter) {
  struct _gil_runtime_state *gil = gil_of(interpreter);
#if PY_VERSION_HEX >= 0x030d0000
  return _Py_atomic_load_ptr(&gil->last_holder);
#else
  return (PyThreadState *)_Py_atomic_load_relaxed(&gil->last_holder);
#endif
}

unsigned long python_gil_switches(PyInterpreterState *interpreter) {
  return *(volatile unsigned long *)&gil_of(interpreter)->switch_number;
}

void python_notice_pending_calls(PyInterpreterState *interpreter) {
#if PY_VERSION_HEX < 0x030d0000
  _Py_atomic_store_relaxed(&interpreter->ceval.eval_breaker, 1);
#else
  (void)interpreter;
#endif
}
