// SPDX-License-Identifier: Apache-2.0
//
// strobe.importers._json: json.c for Python. The Python twin is src/strobe/importers/_json_python.py.

#include "buffers.h"
#include "json.h"
#include "stateless.h"

// The names of members are bytes, and an array that says where each begins, and the last one ends.
static bool take_keys(PyObject *texts, const Py_buffer *at, JsonKeys *keys) {
  if (!PyBytes_Check(texts)) {
    PyErr_SetString(PyExc_TypeError, "keys must be bytes");
    return false;
  }
  const int64_t *places = at->buf;
  int64_t count = at->shape[0] - 1;
  bool fits = count >= 0 && places[0] == 0 && places[count] == PyBytes_GET_SIZE(texts);
  for (int64_t i = 0; fits && i < count; i++) {
    fits = places[i] <= places[i + 1];
  }
  if (!fits) {
    PyErr_SetString(PyExc_ValueError, "places of keys must rise from 0 to the size of the keys");
    return false;
  }
  *keys = (JsonKeys){(const uint8_t *)PyBytes_AS_STRING(texts), places, count};
  return true;
}

static PyObject *conclude(Buffers *buffers, JsonOutcome outcome) {
  release(buffers);
  return Py_BuildValue("(iLiLL)", (int)outcome.fault, (long long)outcome.at, (int)outcome.more,
                       (long long)outcome.rows, (long long)outcome.end);
}

// members(data, at, keys, places, begin, end)
static PyObject *members(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  Buffers buffers;
  if (!is_count("members", nargs, 6)) {
    return NULL;
  }
  long long at = PyLong_AsLongLong(args[1]);
  if (PyErr_Occurred() || !acquire("members", args[0], args + 3, 3, 2, &buffers)) {
    return NULL;
  }
  JsonKeys keys;
  if (!same_length("members", &buffers, 1, 2) || !take_keys(args[2], &buffers.arrays[0], &keys)) {
    release(&buffers);
    return NULL;
  }
  if (buffers.arrays[1].shape[0] != keys.count) {
    PyErr_SetString(PyExc_ValueError, "members(): begin and end must have a cell per key");
    release(&buffers);
    return NULL;
  }
  JsonText text = {buffers.data.buf, buffers.data.len};
  JsonOutcome outcome;
  Py_BEGIN_ALLOW_THREADS;
  outcome = json_members(text, at, keys, buffers.arrays[1].buf, buffers.arrays[2].buf);
  Py_END_ALLOW_THREADS;
  return conclude(&buffers, outcome);
}

// rows(data, at, keys, places, outer, begin, end)
static PyObject *rows(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  Buffers buffers;
  if (!is_count("rows", nargs, 7)) {
    return NULL;
  }
  PyObject *arrays[] = {args[3], args[5], args[6]};
  long long at = PyLong_AsLongLong(args[1]);
  long long outer = PyErr_Occurred() ? -1 : PyLong_AsLongLong(args[4]);
  if (PyErr_Occurred() || !acquire("rows", args[0], arrays, 3, 2, &buffers)) {
    return NULL;
  }
  JsonKeys keys;
  if (!same_length("rows", &buffers, 1, 2) || !take_keys(args[2], &buffers.arrays[0], &keys)) {
    release(&buffers);
    return NULL;
  }
  int64_t cells = buffers.arrays[1].shape[0];
  if (keys.count < 1 || cells % keys.count != 0) {
    PyErr_SetString(PyExc_ValueError,
                    "rows(): begin and end must have the same cells for all keys");
    release(&buffers);
    return NULL;
  }
  JsonText text = {buffers.data.buf, buffers.data.len};
  JsonOutcome outcome;
  Py_BEGIN_ALLOW_THREADS;
  outcome = json_rows(text, at, keys, outer, cells / keys.count, buffers.arrays[1].buf,
                      buffers.arrays[2].buf);
  Py_END_ALLOW_THREADS;
  return conclude(&buffers, outcome);
}

// decimals(data, begin, end, places, suffix, out)
static PyObject *decimals(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  Buffers buffers;
  if (!is_count("decimals", nargs, 6)) {
    return NULL;
  }
  PyObject *arrays[] = {args[1], args[2], args[5]};
  long places = PyLong_AsLong(args[3]);
  if (PyErr_Occurred() || !acquire("decimals", args[0], arrays, 3, 1, &buffers)) {
    return NULL;
  }
  if (!same_length("decimals", &buffers, 0, 1) || !same_length("decimals", &buffers, 0, 2)) {
    release(&buffers);
    return NULL;
  }
  if (!PyBytes_Check(args[4]) || places < 0 || places > 9) {
    PyErr_SetString(PyExc_ValueError, "decimals(): 0 to 9 places, and a suffix that is bytes");
    release(&buffers);
    return NULL;
  }
  JsonText text = {buffers.data.buf, buffers.data.len};
  JsonFault fault;
  Py_BEGIN_ALLOW_THREADS;
  fault =
      json_decimals(text, buffers.arrays[0].shape[0], buffers.arrays[0].buf, buffers.arrays[1].buf,
                    (int)places, (const uint8_t *)PyBytes_AS_STRING(args[4]),
                    PyBytes_GET_SIZE(args[4]), buffers.arrays[2].buf);
  Py_END_ALLOW_THREADS;
  release(&buffers);
  return PyLong_FromLong((long)fault);
}

// shorten(data, begin, end)
static PyObject *shorten(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  Buffers buffers;
  if (!is_count("shorten", nargs, 3) || !acquire("shorten", args[0], args + 1, 2, 2, &buffers)) {
    return NULL;
  }
  if (!same_length("shorten", &buffers, 0, 1)) {
    release(&buffers);
    return NULL;
  }
  JsonText text = {buffers.data.buf, buffers.data.len};
  JsonOutcome outcome;
  Py_BEGIN_ALLOW_THREADS;
  outcome =
      json_shorten(text, buffers.arrays[0].shape[0], buffers.arrays[0].buf, buffers.arrays[1].buf);
  Py_END_ALLOW_THREADS;
  return conclude(&buffers, outcome);
}

static PyMethodDef kMethods[] = {
    {"members", (PyCFunction)(void (*)(void))members, METH_FASTCALL,
     "Find the values of an object's members, up to an array."},
    {"rows", (PyCFunction)(void (*)(void))rows, METH_FASTCALL,
     "Find the values of the members of an array's objects."},
    {"decimals", (PyCFunction)(void (*)(void))decimals, METH_FASTCALL,
     "Read numbers of a few decimals."},
    {"shorten", (PyCFunction)(void (*)(void))shorten, METH_FASTCALL,
     "Take the quotes, and what is in brackets at the end, off strings."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef kModule = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_json",
    .m_doc = "JSON as columns; the Python twin is strobe.importers._json_python.",
    .m_size = 0,
    .m_methods = kMethods,
    .m_slots = kStatelessSlots,
};

PyMODINIT_FUNC PyInit__json(void) {
  return PyModuleDef_Init(&kModule);
}
