// SPDX-License-Identifier: Apache-2.0
// What Python calls, as numbers of the log: code objects and C functions. Needs the GIL.
#pragma once

#include "hooks.h"

#include <frameobject.h>

// A function's name and what else is known of it (file, line, module), as texts of the log.
typedef struct {
  const void *key;      // NULL: a free place
  uint32_t name;        // 0: not to be recorded
  uint32_t attributes;  // of one that is not: kMuting, if neither is what it calls
} Callee;

enum { kMuting = 1 };

typedef struct {
  Callee *places;   // open addressing, never more than half full
  PyObject **held;  // by place: keeps the key from becoming another's address
  uint32_t mask, count;
  uint32_t serial;  // of the log that the numbers belong to
} CalleeTable;
extern CalleeTable callees;

// Which functions are recorded: `ours` is the folder of those that never are, `muting` the one in it
// whose functions call only for our own sake; the others are tuples of module names, empty for no
// such filter.
typedef struct {
  PyObject *ours, *muting, *include, *exclude;
} CalleeFilter;

// Takes the references. What is known of functions so far is forgotten.
void callees_filter(CalleeFilter filter);
// Only the folder is set, where no filter is.
void callees_hide(PyObject *ours);
void callees_start_over(uint32_t serial);

static inline const Callee *callee_find(const void *key) {
  for (uint32_t place = (uint32_t)((uintptr_t)key >> 4) * 2654435769u >> 7;; place++) {
    const Callee *callee = &callees.places[place & callees.mask];
    if (callee->key == key) return callee;
    if (callee->key == NULL) return NULL;
  }
}

// The slow ways, for what callee_find does not have; the name is 0 where none can be had. The frame
// may be NULL: then the calling thread's is meant. An exception of the program's stays set.
Callee callee_of_code(Ring *ring, PyCodeObject *code, PyFrameObject *frame);
Callee callee_of_builtin(Ring *ring, PyObject *function);

// Of a frame that runs already: its attributes say so. Not kept in the table.
Callee callee_of_running(Ring *ring, PyFrameObject *frame);

// The method table's entry of a C function or method, NULL of anything else: what it is known by.
static inline const PyMethodDef *builtin_method(PyObject *function) {
  if (PyCFunction_Check(function)) return ((PyCFunctionObject *)function)->m_ml;
  if (Py_IS_TYPE(function, &PyMethodDescr_Type)) return ((PyMethodDescrObject *)function)->d_method;
  return NULL;
}
