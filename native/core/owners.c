// SPDX-License-Identifier: Apache-2.0
// What Python is told of holders.h, and tells it.
#include "hooks.h"

#include "holders.h"
#include "texts.h"

PyObject *owners_before(PyObject *Py_UNUSED(module), PyObject *storages) {
  Ring *ring = recorder_ring();
  if (ring == NULL) Py_RETURN_NONE;
  PyObject *each = PySequence_Fast(storages, "a sequence of (address, bytes, device)");
  for (Py_ssize_t i = 0; each && i < PySequence_Fast_GET_SIZE(each); i++) {
    unsigned long long address;
    long long bytes;
    int device;
    PyObject *storage = PySequence_Fast_GET_ITEM(each, i);
    if (PyArg_ParseTuple(storage, "KLi", &address, &bytes, &device)) {
      holders_before(ring, bytes, address, device);
    } else {
      Py_CLEAR(each);
    }
  }
  if (each == NULL) return NULL;
  Py_DECREF(each);
  Py_RETURN_NONE;
}

PyObject *owners_forget(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  holders_forget();
  Py_RETURN_NONE;
}

static PyObject *owner_name(uint32_t serial, uint32_t owner) {
  if (owner == kHoldersBefore) return PyUnicode_FromString("(before the start)");
  char text[256];
  if (text_copy(serial, owner, text, sizeof text)) {
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
  }
  PyObject *name = string_of_id(serial, owner);
  return name ? name : PyUnicode_FromString("(unknown)");
}

PyObject *owners_list(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  static Holder found[kMostHolders];  // the GIL is held: nobody else is here
  uint32_t serial = holders_sum(found);
  PyObject *list = PyList_New(0);
  for (uint32_t i = 0; list && i < kMostHolders; i++) {
    if (found[i].blocks == 0) continue;
    PyObject *row = Py_BuildValue("(NiKL)", owner_name(serial, found[i].owner), found[i].device,
                                  (unsigned long long)found[i].blocks, (long long)found[i].bytes);
    if (row == NULL || PyList_Append(list, row) != 0) Py_CLEAR(list);
    Py_XDECREF(row);
  }
  return list;
}
