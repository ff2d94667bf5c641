// SPDX-License-Identifier: Apache-2.0
// Sums of what tracemalloc traces. Python has only a list with one tuple per block: summing that up
// in Python takes ten times as long as making it, and the program stands still meanwhile.
#include "hooks.h"

#include <stdlib.h>

typedef struct {
  PyObject *traceback;  // borrowed from the list of blocks; NULL: free
  uint64_t bytes, blocks;
} TracedPlace;

typedef struct {
  TracedPlace *places;
  size_t count, capacity;  // a power of two, never more than half full
} TracedPlaces;

// Where the traceback is, or would be. Blocks of one place share one object.
static TracedPlace *probe(TracedPlace *places, size_t capacity, const PyObject *traceback) {
  size_t place = (size_t)(((uintptr_t)traceback >> 4) * 0x9e3779b97f4a7c15u >> 20);
  for (;; place++) {
    TracedPlace *found = &places[place & (capacity - 1)];
    if (found->traceback == NULL || found->traceback == traceback) return found;
  }
}

static bool grow(TracedPlaces *sums) {
  size_t capacity = sums->capacity ? sums->capacity * 2 : 1024;
  TracedPlace *places = calloc(capacity, sizeof *places);
  if (places == NULL) return false;
  for (size_t i = 0; i < sums->capacity; i++) {
    TracedPlace *old = &sums->places[i];
    if (old->traceback) *probe(places, capacity, old->traceback) = *old;
  }
  free(sums->places);
  sums->places = places;
  sums->capacity = capacity;
  return true;
}

// A block is (domain, bytes, traceback, frames).
static bool add_block(TracedPlaces *sums, PyObject *block) {
  if (!PyTuple_Check(block) || PyTuple_GET_SIZE(block) < 3) {
    PyErr_SetString(PyExc_TypeError, "traced_sums(): a block must be (domain, bytes, traceback)");
    return false;
  }
  if (sums->count * 2 >= sums->capacity && !grow(sums)) {
    PyErr_NoMemory();
    return false;
  }
  PyObject *traceback = PyTuple_GET_ITEM(block, 2);
  TracedPlace *place = probe(sums->places, sums->capacity, traceback);
  if (place->traceback == NULL) {
    place->traceback = traceback;
    sums->count++;
  }
  place->bytes += PyLong_AsSize_t(PyTuple_GET_ITEM(block, 1));
  place->blocks++;
  return !PyErr_Occurred();
}

static PyObject *list_places(const TracedPlaces *sums) {
  PyObject *list = PyList_New(0);
  for (size_t i = 0; list && i < sums->capacity; i++) {
    const TracedPlace *place = &sums->places[i];
    if (place->traceback == NULL) continue;
    PyObject *row = Py_BuildValue("(OKK)", place->traceback, (unsigned long long)place->bytes,
                                  (unsigned long long)place->blocks);
    if (row == NULL || PyList_Append(list, row) != 0) Py_CLEAR(list);
    Py_XDECREF(row);
  }
  return list;
}

static PyObject *sum_blocks(PyObject *blocks) {
  if (!PyList_Check(blocks)) {
    PyErr_SetString(PyExc_TypeError, "traced_sums(): get_traces must return a list");
    return NULL;
  }
  TracedPlaces sums = {0};
  bool added = true;
  for (Py_ssize_t i = 0; added && i < PyList_GET_SIZE(blocks); i++) {
    added = add_block(&sums, PyList_GET_ITEM(blocks, i));
  }
  PyObject *list = added ? list_places(&sums) : NULL;
  free(sums.places);
  return list;
}

PyObject *traced_sums(PyObject *Py_UNUSED(module), PyObject *get_traces) {
  // The tuples would set off one collection after the other, all in vain.
  int collecting = PyGC_Disable();
  PyObject *blocks = PyObject_CallNoArgs(get_traces);
  PyObject *list = blocks ? sum_blocks(blocks) : NULL;
  Py_XDECREF(blocks);
  if (collecting) PyGC_Enable();
  return list;
}
