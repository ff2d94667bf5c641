// SPDX-License-Identifier: Apache-2.0
//
// What Python hands to a reader: bytes to be read, and arrays of int64.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <string.h>

enum { kMostArrays = 5 };

typedef struct {
  Py_buffer data;
  Py_buffer arrays[kMostArrays];
  int held;
} Buffers;

static inline void release(Buffers *buffers) {
  while (buffers->held > 0) {
    PyBuffer_Release(&buffers->arrays[--buffers->held]);
  }
  PyBuffer_Release(&buffers->data);
}

static inline bool is_int64(const Py_buffer *view) {
  const char *format = view->format ? view->format : "B";
  return view->ndim == 1 && view->itemsize == 8 && strlen(format) == 1 && strchr("lq", *format);
}

// Takes the data and so many arrays, of which the last `written` are written to.
static inline bool acquire(const char *function, PyObject *data, PyObject *const *arrays, int count,
                           int written, Buffers *buffers) {
  buffers->held = 0;
  if (PyObject_GetBuffer(data, &buffers->data, PyBUF_SIMPLE) < 0) {
    return false;
  }
  for (int i = 0; i < count; i++) {
    int flags = PyBUF_ND | PyBUF_FORMAT | (i >= count - written ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(arrays[i], &buffers->arrays[i], flags) < 0) {
      release(buffers);
      return false;
    }
    buffers->held++;
    if (!is_int64(&buffers->arrays[i])) {
      PyErr_Format(PyExc_ValueError, "%s(): arrays must be one-dimensional int64 buffers",
                   function);
      release(buffers);
      return false;
    }
  }
  return true;
}

static inline bool same_length(const char *function, const Buffers *buffers, int a, int b) {
  if (buffers->arrays[a].shape[0] == buffers->arrays[b].shape[0]) {
    return true;
  }
  PyErr_Format(PyExc_ValueError, "%s(): arrays that belong together differ in length", function);
  return false;
}

static inline bool is_count(const char *function, Py_ssize_t nargs, int wanted) {
  if (nargs == wanted) {
    return true;
  }
  PyErr_Format(PyExc_TypeError, "%s() takes %d arguments, %zd were given", function, wanted, nargs);
  return false;
}
