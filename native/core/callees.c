// SPDX-License-Identifier: Apache-2.0
#include "callees.h"

enum {
  // Past this the table is emptied: a program that makes code without end must not be held in
  // memory by us. The functions get their numbers again, as their texts are known.
  kMostCallees = 65536,
  kFirstPlaces = 1024,
};

static Callee no_places[1];
CalleeTable callees = {.places = no_places};
static CalleeFilter filter;

static void forget(void) {
  Callee *places = callees.places;
  PyObject **held = callees.held;
  uint32_t mask = callees.mask;
  callees = (CalleeTable){.places = no_places, .serial = callees.serial};
  if (places == no_places) return;
  PyMem_Free(places);
  // Last: a code object that dies may run the program's code.
  for (uint32_t place = 0; place <= mask; place++) Py_XDECREF(held[place]);
  PyMem_Free(held);
}

void callees_filter(CalleeFilter wanted) {
  CalleeFilter before = filter;
  filter = wanted;
  forget();
  Py_XDECREF(before.ours);
  Py_XDECREF(before.muting);
  Py_XDECREF(before.include);
  Py_XDECREF(before.exclude);
}

void callees_hide(PyObject *ours) {
  if (filter.ours == NULL) filter.ours = Py_NewRef(ours);
}

void callees_start_over(uint32_t serial) {
  callees.serial = serial;
  forget();
}

static uint32_t free_place(const Callee *places, uint32_t mask, const void *key) {
  uint32_t place = (uint32_t)((uintptr_t)key >> 4) * 2654435769u >> 7;
  while (places[place & mask].key) place++;
  return place & mask;
}

static bool grow(void) {
  uint32_t size = callees.places == no_places ? kFirstPlaces : (callees.mask + 1) * 2;
  Callee *places = PyMem_Calloc(size, sizeof *places);
  PyObject **held = PyMem_Calloc(size, sizeof *held);
  if (places == NULL || held == NULL) {
    PyMem_Free(places);
    PyMem_Free(held);
    return false;
  }
  for (uint32_t i = 0; callees.places != no_places && i <= callees.mask; i++) {
    if (callees.places[i].key == NULL) continue;
    uint32_t place = free_place(places, size - 1, callees.places[i].key);
    places[place] = callees.places[i];
    held[place] = callees.held[i];
  }
  if (callees.places != no_places) {
    PyMem_Free(callees.places);
    PyMem_Free(callees.held);
  }
  callees.places = places;
  callees.held = held;
  callees.mask = size - 1;
  return true;
}

static void keep(Callee callee, PyObject *held) {
  if (callee_find(callee.key)) return;
  if (callees.count >= kMostCallees) forget();
  bool full = callees.places == no_places || callees.count * 2 > callees.mask;
  if (full && !grow()) return;
  uint32_t place = free_place(callees.places, callees.mask, callee.key);
  callees.places[place] = callee;
  callees.held[place] = Py_XNewRef(held);
  callees.count++;
}

// Is the module one of these, or inside one of them?
static bool is_among(PyObject *module, PyObject *names) {
  for (Py_ssize_t i = 0; names && module && i < PyTuple_GET_SIZE(names); i++) {
    PyObject *name = PyTuple_GET_ITEM(names, i);
    Py_ssize_t length = PyUnicode_GET_LENGTH(name);
    if (PyUnicode_Tailmatch(module, name, 0, PY_SSIZE_T_MAX, -1) != 1) continue;
    if (PyUnicode_GET_LENGTH(module) == length) return true;
    if (PyUnicode_READ_CHAR(module, length) == '.') return true;
  }
  return false;
}

// JSON of a str, by the C function that json itself uses: it runs no Python code.
static PyObject *quote(PyObject *text) {
  static PyObject *encode;
  if (encode == NULL) {
    PyObject *module = PyImport_ImportModule("_json");
    encode = module ? PyObject_GetAttrString(module, "encode_basestring_ascii") : NULL;
    Py_XDECREF(module);
    if (encode == NULL) return NULL;
  }
  return PyObject_CallOneArg(encode, text);
}

// Name and module of a function, its file and line if it has any; references of ours.
typedef struct {
  PyObject *name, *module, *file;
  int line;
} Description;

static void clear(Description *description) {
  Py_CLEAR(description->name);
  Py_CLEAR(description->module);
  Py_CLEAR(description->file);
}

static PyObject *json(const Description *description, const char *more) {
  PyObject *file = description->file ? quote(description->file) : NULL;
  PyObject *module = description->module ? quote(description->module) : NULL;
  PyObject *text = NULL;
  if (file && module) {
    text = PyUnicode_FromFormat("{\"file\":%U,\"line\":%d,\"module\":%U%s}", file,
                                description->line, module, more);
  } else if (file) {
    text = PyUnicode_FromFormat("{\"file\":%U,\"line\":%d%s}", file, description->line, more);
  } else if (module) {
    text = PyUnicode_FromFormat("{\"module\":%U%s}", module, more);
  }
  Py_XDECREF(file);
  Py_XDECREF(module);
  return text;
}

static PyObject *frame_globals(PyFrameObject *frame) {
#if PY_VERSION_HEX >= 0x030b0000
  return PyFrame_GetGlobals(frame);
#else
  return Py_XNewRef(frame->f_globals);
#endif
}

static PyObject *qualified_name(PyCodeObject *code, PyObject *globals) {
#if PY_VERSION_HEX >= 0x030b0000
  (void)globals;
  return Py_NewRef(code->co_qualname);
#else
  // Code objects do not know it yet: it is found out by the functions of the module.
  PyObject *found = python_call(kQualifiedName, PyTuple_Pack(2, code, globals ? globals : Py_None));
  if (found && PyUnicode_Check(found)) return found;
  Py_XDECREF(found);
  if (PyErr_Occurred()) python_forget_error();
  return Py_NewRef(code->co_name);
#endif
}

static bool lies_in(PyCodeObject *code, PyObject *folder) {
  return folder && PyUnicode_Tailmatch(code->co_filename, folder, 0, PY_SSIZE_T_MAX, -1) == 1;
}

// False if it is not to be recorded.
static bool describe_code(PyCodeObject *code, PyFrameObject *frame, Description *into) {
  *into = (Description){.line = code->co_firstlineno};
  if (lies_in(code, filter.ours)) return false;
  PyObject *globals = frame ? frame_globals(frame) : NULL;
  PyObject *module = globals ? PyDict_GetItemString(globals, "__name__") : NULL;
  if (module && PyUnicode_Check(module)) into->module = Py_NewRef(module);
  bool included = filter.include == NULL || PyTuple_GET_SIZE(filter.include) == 0 ||
                  is_among(into->module, filter.include);
  bool wanted = included && !is_among(into->module, filter.exclude);
  if (wanted) {
    into->file = Py_NewRef(code->co_filename);
    into->name = qualified_name(code, globals);
  }
  Py_XDECREF(globals);
  if (!wanted) clear(into);
  return wanted;
}

static bool describe_builtin(PyObject *function, Description *into) {
  *into = (Description){0};
  const char *name = builtin_method(function)->ml_name;
  PyTypeObject *type = NULL;
  if (PyCFunction_Check(function)) {
    PyObject *self = PyCFunction_GET_SELF(function);
    PyObject *module = ((PyCFunctionObject *)function)->m_module;
    if (module && PyUnicode_Check(module)) into->module = Py_NewRef(module);
    bool is_function = self == NULL || PyModule_Check(self) || PyCapsule_CheckExact(self);
    if (!is_function) type = PyType_Check(self) ? (PyTypeObject *)self : Py_TYPE(self);
  } else {
    type = PyDescr_TYPE(function);
  }
  if (type) {
    const char *last = strrchr(type->tp_name, '.');
    into->name = PyUnicode_FromFormat("%s.%s", last ? last + 1 : type->tp_name, name);
    if (into->module == NULL && last) {
      into->module = PyUnicode_FromStringAndSize(type->tp_name, last - type->tp_name);
    }
  } else {
    into->name = PyUnicode_FromString(name);
  }
  if (into->module == NULL && type) into->module = PyUnicode_FromString("builtins");
  if (!is_among(into->module, filter.exclude)) return true;
  clear(into);
  return false;
}

// Takes what the description refers to. `*defined` is cleared when it must not be kept.
static Callee number(Ring *ring, const void *key, Description *description, const char *more,
                     bool *defined) {
  uint32_t serial = ring->serial;
  Callee callee = {.key = key};
  PyObject *attributes = json(description, more);
  // Code of the program's may have run, on Python 3.10 or when memory was collected.
  if (description->name && recorder_owns(ring, serial)) {
    callee.name = string_id(ring, description->name, defined);
    if (attributes) callee.attributes = string_id(ring, attributes, defined);
  }
  if (callee.name == 0) {
    *defined = false;
    if (PyErr_Occurred()) python_forget_error();
  }
  Py_XDECREF(attributes);
  clear(description);
  return callee;
}

static PyFrameObject *current_frame(void) {
  return PyThreadState_GetFrame(PyThreadState_GET());
}

Callee callee_of_code(Ring *ring, PyCodeObject *code, PyFrameObject *frame) {
  Callee callee = {.key = code};
  Description description;
  bool defined = true;
  PyFrameObject *own = frame ? (PyFrameObject *)Py_NewRef(frame) : current_frame();
  if (describe_code(code, own, &description)) {
    callee = number(ring, code, &description, "", &defined);
  } else if (lies_in(code, filter.muting)) {
    callee.attributes = kMuting;
  }
  Py_XDECREF(own);
  if (defined && callees.serial == ring->serial) keep(callee, (PyObject *)code);
  return callee;
}

// What must live for its method table to live. Not the object that a method is bound to, which is
// the program's to let go.
static PyObject *holder(PyObject *function) {
  if (!PyCFunction_Check(function)) return (PyObject *)PyDescr_TYPE(function);
  PyObject *self = PyCFunction_GET_SELF(function);
  if (self == NULL) return NULL;
  bool lasts = PyModule_Check(self) || PyCapsule_CheckExact(self) || PyType_Check(self);
  return lasts ? self : (PyObject *)Py_TYPE(self);
}

Callee callee_of_builtin(Ring *ring, PyObject *function) {
  Callee callee = {.key = builtin_method(function)};
  Description description;
  bool defined = true;
  if (describe_builtin(function, &description)) {
    callee = number(ring, callee.key, &description, "", &defined);
  }
  if (defined && callees.serial == ring->serial) keep(callee, holder(function));
  return callee;
}

Callee callee_of_running(Ring *ring, PyFrameObject *frame) {
  PyCodeObject *code = PyFrame_GetCode(frame);
  Callee callee = {.key = code};
  Description description;
  bool defined = true;
  if (describe_code(code, frame, &description)) {
    callee = number(ring, code, &description, ",\"running\":true", &defined);
  } else if (lies_in(code, filter.muting)) {
    callee.attributes = kMuting;
  }
  Py_DECREF(code);
  return callee;
}
