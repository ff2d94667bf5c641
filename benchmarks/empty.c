// SPDX-License-Identifier: Apache-2.0
// The floor: a context manager in C, with ordinary methods, that does nothing.
#include <Python.h>

static PyObject *enter(PyObject *self, PyObject *Py_UNUSED(nothing)) {
  return Py_NewRef(self);
}

static PyObject *leave(PyObject *Py_UNUSED(self), PyObject *const *Py_UNUSED(arguments),
                       Py_ssize_t Py_UNUSED(count)) {
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"__enter__", enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))leave, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject EmptyType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "empty.Empty",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = methods,
    .tp_new = PyType_GenericNew,
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "empty", .m_size = -1};

PyMODINIT_FUNC PyInit_empty(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module == NULL || PyType_Ready(&EmptyType) != 0) return NULL;
  Py_INCREF(&EmptyType);
  if (PyModule_AddObject(module, "Empty", (PyObject *)&EmptyType) != 0) return NULL;
  return module;
}
