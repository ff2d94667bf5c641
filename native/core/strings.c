// SPDX-License-Identifier: Apache-2.0
// Names and attributes as numbers. A string reaches the definitions log before its number is used.
#include "hooks.h"

enum {
  kCachedNames = 2048,
  // Past these the table is emptied and strings get new numbers: a program that makes up names
  // without end must not grow without end. The finalizer merges equal strings.
  kMostStrings = 131072,
  kMostBytes = 16 << 20,
};

static struct {
  uint32_t serial;  // of the log that the numbers belong to
  PyObject *ids;    // str -> int
  size_t bytes;
  struct {
    PyObject *text;  // a reference: its address cannot be another string's
    uint32_t serial;
    uint32_t id;
  } cache[kCachedNames];
} strings;

static uint64_t forgotten_errors;

void python_forget_error(void) {
  forgotten_errors++;
  if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
}

uint64_t python_forgotten_errors(void) {
  return forgotten_errors;
}

PyObject *python_support(Support function) {
  static const char *const names[kSupportFunctions] = {
      "check_attributes", "decorate",     "describe_lane", "describe_thread", "encode_attributes",
      "qualified_name",   "rebuild_span", "refuse_name",   "refuse_value",
  };
  static PyObject *functions[kSupportFunctions];
  if (functions[function] == NULL) {
    // Late, because it imports modules that `import strobe` can do without.
    PyObject *module = PyImport_ImportModule("strobe.record._support");
    functions[function] = module ? PyObject_GetAttrString(module, names[function]) : NULL;
    Py_XDECREF(module);
  }
  return functions[function];
}

PyObject *python_call(Support function, PyObject *arguments) {
  PyObject *callable = arguments ? python_support(function) : NULL;
  PyObject *result = callable ? PyObject_CallObject(callable, arguments) : NULL;
  Py_XDECREF(arguments);
  return result;
}

static void start_over(uint32_t serial) {
  PyDict_Clear(strings.ids);
  strings.bytes = 0;
  strings.serial = serial;
}

static bool define_string(Log *log, uint32_t id, PyObject *text) {
  Py_ssize_t length = 0;
  const char *bytes = PyUnicode_AsUTF8AndSize(text, &length);
  if (bytes) {
    strings.bytes += (size_t)length;
    return log_define(log, kDefineString, id, bytes, (size_t)length);
  }
  PyErr_Clear();
  PyObject *encoded = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass");
  if (encoded == NULL) return false;
  length = PyBytes_GET_SIZE(encoded);
  strings.bytes += (size_t)length;
  bool written = log_define(log, kDefineString, id, PyBytes_AS_STRING(encoded), (size_t)length);
  Py_DECREF(encoded);
  return written;
}

static uint32_t intern(Ring *ring, PyObject *text, bool *defined) {
  if (strings.ids == NULL && (strings.ids = PyDict_New()) == NULL) return 0;
  bool full = PyDict_GET_SIZE(strings.ids) >= kMostStrings || strings.bytes >= kMostBytes;
  if (strings.serial != ring->serial || full) start_over(ring->serial);
  PyObject *known = PyDict_GetItemWithError(strings.ids, text);
  if (known) return (uint32_t)PyLong_AsUnsignedLong(known);
  if (PyErr_Occurred()) return 0;
  uint32_t id = atomic_fetch_add(&ring->log->next_string, 1);
  if (!define_string(ring->log, id, text)) {
    *defined = false;
    return PyErr_Occurred() ? 0 : id;
  }
  PyObject *number = PyLong_FromUnsignedLong(id);
  if (number == NULL || PyDict_SetItem(strings.ids, text, number) != 0) python_forget_error();
  Py_XDECREF(number);
  return id;
}

uint32_t string_id(Ring *ring, PyObject *text, bool *defined) {
  size_t place = ((uintptr_t)text >> 4) & (kCachedNames - 1);
  if (strings.cache[place].text == text && strings.cache[place].serial == ring->serial) {
    return strings.cache[place].id;
  }
  // A str subclass may compare as it likes; the text alone counts.
  PyObject *exact = PyUnicode_CheckExact(text) ? Py_NewRef(text) : PyUnicode_FromObject(text);
  uint32_t id = exact ? intern(ring, exact, defined) : 0;
  if (id == 0) {
    python_forget_error();
  } else if (*defined && exact == text && PyUnicode_GET_LENGTH(text) < 4096) {
    Py_INCREF(text);
    Py_XSETREF(strings.cache[place].text, text);
    strings.cache[place].serial = ring->serial;
    strings.cache[place].id = id;
  }
  Py_XDECREF(exact);
  return id;
}

PyObject *string_of_id(uint32_t serial, uint32_t id) {
  PyObject *text, *number;
  Py_ssize_t place = 0;
  if (strings.serial != serial || strings.ids == NULL) return NULL;
  while (PyDict_Next(strings.ids, &place, &text, &number)) {
    if (PyLong_AsUnsignedLong(number) == id) return Py_NewRef(text);
  }
  return NULL;
}

uint32_t attributes_id(Ring *ring, PyObject *attributes, bool *defined) {
  if (attributes == NULL) return 0;
  uint32_t serial = ring->serial;
  uint64_t began_ns = clock_ns();
  PyObject *text = python_call(kEncodeAttributes, PyTuple_Pack(1, attributes));
  uint32_t id = text && recorder_owns(ring, serial) ? intern(ring, text, defined) : 0;
  if (id == 0) python_forget_error();
  if (recorder_owns(ring, serial)) {
    atomic_fetch_add_explicit(&ring->shared->own_ns, clock_ns() - began_ns, memory_order_relaxed);
  }
  Py_XDECREF(text);
  return id;
}

PyObject *collect_attributes(const char *caller, PyObject *const *values, PyObject *names,
                             Py_ssize_t except) {
  PyObject *attributes = PyDict_New();
  for (Py_ssize_t i = 0; attributes && i < PyTuple_GET_SIZE(names); i++) {
    if (i == except) continue;
    if (PyDict_SetItem(attributes, PyTuple_GET_ITEM(names, i), values[i]) != 0) {
      Py_CLEAR(attributes);
    }
  }
  if (attributes == NULL || values_are_plain(values, PyTuple_GET_SIZE(names))) return attributes;
  PyObject *checked = python_call(kCheckAttributes, Py_BuildValue("(sO)", caller, attributes));
  Py_DECREF(attributes);
  return checked;
}

bool check_name(const char *caller, PyObject *name) {
  if (PyUnicode_Check(name)) return true;
  Py_XDECREF(python_call(kRefuseName, Py_BuildValue("(sO)", caller, name)));
  return false;
}
