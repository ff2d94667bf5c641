// SPDX-License-Identifier: Apache-2.0
// Rows of pieces -> the bytes of a foreign format. Knows how an event is glued together, not what
// its pieces say: those come ready, each distinct one once. module.c says what each function takes.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *chrome_events(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *perfetto_packets(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *annotate(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *number_hashes(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

extern PyType_Spec kTracksSpec;
