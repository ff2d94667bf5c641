// SPDX-License-Identifier: Apache-2.0
// Distinct hashes of rows, numbered.
#include "writers.h"

#include <stdlib.h>

#include "buffers.h"

static inline size_t mix(uint64_t hash) {
  return (size_t)((hash ^ hash >> 32) * UINT64_C(0x9e3779b97f4a7c15) >> 32);
}

// Open addressing; the table grows before it is half full. A slot holds a number + 1.
static Py_ssize_t number_rows(const uint64_t *hashes, Py_ssize_t rows, int32_t *code,
                              int64_t *first) {
  size_t mask = 1023;
  int32_t *slots = calloc(mask + 1, sizeof *slots);
  Py_ssize_t count = 0;
  for (Py_ssize_t i = 0; slots != NULL && i < rows; i++) {
    size_t at = mix(hashes[i]) & mask;
    while (slots[at] != 0 && hashes[first[slots[at] - 1]] != hashes[i]) {
      at = (at + 1) & mask;
    }
    if (slots[at] == 0) {
      first[count++] = i;
      slots[at] = (int32_t)count;
      if ((size_t)count * 2 > mask) {
        free(slots);
        mask = mask * 4 + 3;
        slots = calloc(mask + 1, sizeof *slots);
        for (Py_ssize_t k = 0; slots != NULL && k < count; k++) {
          size_t to = mix(hashes[first[k]]) & mask;
          while (slots[to] != 0) {
            to = (to + 1) & mask;
          }
          slots[to] = (int32_t)(k + 1);
        }
      }
      code[i] = (int32_t)(count - 1);
    } else {
      code[i] = slots[at] - 1;
    }
  }
  bool failed = slots == NULL;
  free(slots);
  return failed ? -1 : count;
}

PyObject *number_hashes(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  static const Argument kArguments[] = {{"hashes", kInt64}, {"code", kOut32}, {"first", kOut64}};
  Buffers buffers;
  if (!check_count("number_hashes", nargs, 3) ||
      !acquire_buffers("number_hashes", kArguments, 3, args, &buffers)) {
    return NULL;
  }
  Py_buffer *views = buffers.views;
  Py_ssize_t rows = views[0].shape[0];
  Py_ssize_t count = -1;
  if (rows >= INT32_MAX) {
    PyErr_SetString(PyExc_ValueError, "number_hashes(): too many rows for one call");
  } else if (check_rows("number_hashes", "code", views[1].shape[0], rows) &&
             check_rows("number_hashes", "first", views[2].shape[0], rows)) {
    PyThreadState *state = PyEval_SaveThread();
    count = number_rows(views[0].buf, rows, views[1].buf, views[2].buf);
    PyEval_RestoreThread(state);
    if (count < 0) {
      PyErr_NoMemory();
    }
  }
  release_buffers(&buffers);
  return count < 0 ? NULL : PyLong_FromSsize_t(count);
}
