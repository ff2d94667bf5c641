// SPDX-License-Identifier: Apache-2.0
// What every function does first and last: check what it was given, and say how far it came.
#include "buffers.h"

void release_buffers(Buffers *buffers) {
  while (buffers->held > 0) {
    PyBuffer_Release(&buffers->views[--buffers->held]);
  }
}

static bool has_kind(const Py_buffer *view, Kind kind) {
  const char *format = view->format ? view->format : "B";
  // '<' is foreign on a big-endian machine; numpy writes native int64 as "l" or "q" without it.
  if (*format == '@' || *format == '=') {
    format++;
  }
  if (view->ndim != 1 || strlen(format) != 1) {
    return false;
  }
  if (kind == kBytes || kind == kOut) {
    return view->itemsize == 1;
  }
  bool narrow = kind == kInt32 || kind == kOut32;
  return view->itemsize == (narrow ? 4 : 8) && strchr("ilq", *format) != NULL;
}

bool acquire_buffers(const char *function, const Argument *expected, int count,
                     PyObject *const *args, Buffers *buffers) {
  static const char *const kNames[] = {"bytes", "writable bytes", "int32",
                                       "int64", "writable int32", "writable int64"};
  buffers->held = 0;
  for (int i = 0; i < count; i++) {
    Kind kind = expected[i].kind;
    int flags = PyBUF_ND | PyBUF_FORMAT | (kind == kOut || kind >= kOut32 ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(args[i], &buffers->views[i], flags) < 0) {
      release_buffers(buffers);
      return false;
    }
    buffers->held++;
    if (!has_kind(&buffers->views[i], kind)) {
      PyErr_Format(PyExc_ValueError, "%s(%s=...): %s must be a one-dimensional buffer of %s",
                   function, expected[i].name, expected[i].name, kNames[kind]);
      release_buffers(buffers);
      return false;
    }
  }
  return true;
}

Pieces pieces_of(const Py_buffer *bytes, const Py_buffer *at) {
  Py_ssize_t offsets = at->shape[0];
  return (Pieces){bytes->buf, bytes->len, at->buf, offsets > 0 ? offsets - 1 : 0};
}

PyObject *conclude(const char *function, Progress done) {
  if (done.wrong) {
    return PyErr_Format(PyExc_ValueError, "%s(): row %zd names a piece that does not exist",
                        function, done.next);
  }
  return Py_BuildValue("nn", done.next, done.used);
}

bool check_rows(const char *function, const char *name, Py_ssize_t given, Py_ssize_t rows) {
  if (given != rows) {
    PyErr_Format(PyExc_ValueError, "%s(%s=...): %s has %zd rows, not %zd", function, name, name,
                 given, rows);
    return false;
  }
  return true;
}

bool check_count(const char *function, Py_ssize_t given, Py_ssize_t expected) {
  if (given != expected) {
    PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, %zd were given", function, expected,
                 given);
    return false;
  }
  return true;
}
