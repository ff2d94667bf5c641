// SPDX-License-Identifier: Apache-2.0
//
// strobe.importers._wire: wire.c for Python. The Python twin is src/strobe/importers/_wire_python.py.

#include "buffers.h"
#include "stateless.h"
#include "wire.h"

static Messages messages_of(const Buffers *buffers) {
  return (Messages){buffers->data.buf, buffers->data.len, buffers->arrays[0].shape[0],
                    buffers->arrays[0].buf, buffers->arrays[1].buf};
}

static PyObject *conclude(Buffers *buffers, Outcome outcome) {
  release(buffers);
  return Py_BuildValue("(iLL)", (int)outcome.fault, (long long)outcome.at,
                       (long long)outcome.count);
}

// find(data, begin, end, number, parent, found_begin, found_end)
static PyObject *find(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  Buffers buffers;
  if (!is_count("find", nargs, 7)) {
    return NULL;
  }
  PyObject *arrays[] = {args[1], args[2], args[4], args[5], args[6]};
  unsigned long long number = PyLong_AsUnsignedLongLong(args[3]);
  if (PyErr_Occurred() || !acquire("find", args[0], arrays, 5, 3, &buffers)) {
    return NULL;
  }
  if (!same_length("find", &buffers, 0, 1) || !same_length("find", &buffers, 2, 3) ||
      !same_length("find", &buffers, 2, 4)) {
    release(&buffers);
    return NULL;
  }
  Messages in = messages_of(&buffers);
  Outcome outcome;
  Py_BEGIN_ALLOW_THREADS;
  outcome = wire_find(&in, number, buffers.arrays[2].shape[0], buffers.arrays[2].buf,
                      buffers.arrays[3].buf, buffers.arrays[4].buf);
  Py_END_ALLOW_THREADS;
  return conclude(&buffers, outcome);
}

// numbers(data, begin, end, number, parent, value)
static PyObject *numbers(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  Buffers buffers;
  if (!is_count("numbers", nargs, 6)) {
    return NULL;
  }
  PyObject *arrays[] = {args[1], args[2], args[4], args[5]};
  unsigned long long number = PyLong_AsUnsignedLongLong(args[3]);
  if (PyErr_Occurred() || !acquire("numbers", args[0], arrays, 4, 2, &buffers)) {
    return NULL;
  }
  if (!same_length("numbers", &buffers, 0, 1) || !same_length("numbers", &buffers, 2, 3)) {
    release(&buffers);
    return NULL;
  }
  Messages in = messages_of(&buffers);
  Outcome outcome;
  Py_BEGIN_ALLOW_THREADS;
  outcome = wire_numbers(&in, number, buffers.arrays[2].shape[0], buffers.arrays[2].buf,
                         buffers.arrays[3].buf);
  Py_END_ALLOW_THREADS;
  return conclude(&buffers, outcome);
}

// number(data, begin, end, table, first, code)
static PyObject *number(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  Buffers buffers;
  if (!is_count("number", nargs, 6) || !acquire("number", args[0], args + 1, 5, 3, &buffers)) {
    return NULL;
  }
  if (!same_length("number", &buffers, 0, 1) || !same_length("number", &buffers, 0, 3) ||
      !same_length("number", &buffers, 0, 4)) {
    release(&buffers);
    return NULL;
  }
  Messages in = messages_of(&buffers);
  int64_t cells = buffers.arrays[2].shape[0];
  if (cells < 1 || (cells & (cells - 1)) != 0 || cells / 2 < in.messages) {
    PyErr_SetString(PyExc_ValueError, "number(): table must have a power of two cells, and room");
    release(&buffers);
    return NULL;
  }
  Outcome outcome;
  Py_BEGIN_ALLOW_THREADS;
  outcome =
      wire_number(&in, cells, buffers.arrays[2].buf, buffers.arrays[3].buf, buffers.arrays[4].buf);
  Py_END_ALLOW_THREADS;
  return conclude(&buffers, outcome);
}

// columns(data, begin, end, numbers, kinds, out)
static PyObject *columns(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  Buffers buffers;
  if (!is_count("columns", nargs, 6) || !acquire("columns", args[0], args + 1, 5, 1, &buffers)) {
    return NULL;
  }
  if (!same_length("columns", &buffers, 0, 1) || !same_length("columns", &buffers, 2, 3)) {
    release(&buffers);
    return NULL;
  }
  Messages in = messages_of(&buffers);
  int64_t count = buffers.arrays[2].shape[0];
  int64_t room = buffers.arrays[4].shape[0];
  if (in.messages > 0 && (room % in.messages != 0 || room / in.messages != count)) {
    PyErr_SetString(PyExc_ValueError, "columns(): out must have a cell per message and column");
    release(&buffers);
    return NULL;
  }
  Outcome outcome;
  Py_BEGIN_ALLOW_THREADS;
  outcome =
      wire_columns(&in, count, buffers.arrays[2].buf, buffers.arrays[3].buf, buffers.arrays[4].buf);
  Py_END_ALLOW_THREADS;
  return conclude(&buffers, outcome);
}

static PyMethodDef kMethods[] = {
    {"find", (PyCFunction)(void (*)(void))find, METH_FASTCALL, "Find submessages of a field."},
    {"numbers", (PyCFunction)(void (*)(void))numbers, METH_FASTCALL,
     "Find the varints of a repeated field."},
    {"number", (PyCFunction)(void (*)(void))number, METH_FASTCALL,
     "Number texts, the same ones alike."},
    {"columns", (PyCFunction)(void (*)(void))columns, METH_FASTCALL,
     "Write one row per message and one column per field."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef kModule = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_wire",
    .m_doc = "Protobuf's wire format as columns; the Python twin is strobe.importers._wire_python.",
    .m_size = 0,
    .m_methods = kMethods,
    .m_slots = kStatelessSlots,
};

PyMODINIT_FUNC PyInit__wire(void) {
  return PyModuleDef_Init(&kModule);
}
