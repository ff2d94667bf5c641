// SPDX-License-Identifier: Apache-2.0
// The one place that looks at CPython's switch interval from outside the GIL.
#define Py_BUILD_CORE
#include <Python.h>
#if PY_VERSION_HEX >= 0x030c0000
#include <internal/pycore_interp.h>
#else
#include <internal/pycore_runtime.h>
#endif
#undef Py_BUILD_CORE

#include "hooks.h"

unsigned long *python_switch_interval_us(PyInterpreterState *interpreter) {
#if PY_VERSION_HEX >= 0x030c0000
  return &interpreter->ceval.gil->interval;
#else
  (void)interpreter;
  return &_PyRuntime.ceval.gil.interval;
#endif
}
