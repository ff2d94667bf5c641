// SPDX-License-Identifier: Apache-2.0
// Attributes that are plain values, as records of the ring: no JSON while the program runs.
#include "hooks.h"

enum {
  kTextBytes = 16,  // of a text in one record
  kLongestText = 64,
  kMostRecords = kMostValues * (kLongestText / kTextBytes),
};

// An int that does not fit is one for JSON, as lists are.
static bool is_plain(PyObject *value) {
  if (PyLong_CheckExact(value)) {
    int overflow = 0;
    PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0;
  }
  return value == Py_None || PyUnicode_CheckExact(value) || PyFloat_CheckExact(value) ||
         PyBool_Check(value);
}

bool values_are_plain(PyObject *const *values, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; i++) {
    if (!is_plain(values[i])) return false;
  }
  return true;
}

PyObject *values_dict(PyObject *keys, PyObject *const *values) {
  PyObject *dict = PyDict_New();
  for (Py_ssize_t i = 0; dict && i < PyTuple_GET_SIZE(keys); i++) {
    if (PyDict_SetItem(dict, PyTuple_GET_ITEM(keys, i), values[i]) != 0) Py_CLEAR(dict);
  }
  return dict;
}

static Record number_record(ValueType type, uint64_t bits) {
  return (Record){.dur_ns = bits, .kind = kKindValue, .category = (uint8_t)type};
}

// The text in as many records as it needs; 0 if it is too long or has no UTF-8.
static size_t put_text(Record *records, PyObject *text) {
  Py_ssize_t length = 0;
  if (PyUnicode_GET_LENGTH(text) > kLongestText) return 0;
  const char *bytes = PyUnicode_AsUTF8AndSize(text, &length);
  if (bytes == NULL) PyErr_Clear();
  if (bytes == NULL || length > kLongestText) return 0;
  size_t count = 0;
  for (Py_ssize_t done = 0; done < length || count == 0; done += kTextBytes, count++) {
    uint64_t words[2] = {0, 0};
    size_t part = (size_t)(length - done < kTextBytes ? length - done : kTextBytes);
    memcpy(words, bytes + done, part);
    records[count] = (Record){.start_ns = words[0],
                              .dur_ns = words[1],
                              .kind = kKindValue,
                              .category = count ? kValueMore : kValueText,
                              .window = (uint16_t)length};
  }
  return count;
}

// The value in one or more records; returns how many, 0 if a string could not be defined.
static size_t put_value(Ring *ring, PyObject *value, Record *records, bool *defined) {
  if (PyBool_Check(value)) {
    *records = number_record(kValueBool, value == Py_True);
  } else if (value == Py_None) {
    *records = number_record(kValueNull, 0);
  } else if (PyLong_CheckExact(value)) {
    *records = number_record(kValueInt, (uint64_t)PyLong_AsLongLong(value));
  } else if (PyFloat_CheckExact(value)) {
    double number = PyFloat_AS_DOUBLE(value);
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    *records = number_record(kValueFloat, bits);
  } else {
    size_t count = put_text(records, value);
    if (count) return count;
    *records = number_record(kValueString, 0);
    records->lane = string_id(ring, value, defined);
    if (records->lane == 0) return 0;
  }
  return 1;
}

uint32_t values_id(Ring *ring, PyObject *keys, PyObject *const *values, bool *defined) {
  Record records[kMostRecords];
  size_t count = 0;
  uint32_t serial = ring->serial;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++) {
    uint32_t key = string_id(ring, PyTuple_GET_ITEM(keys, i), defined);
    size_t added = key ? put_value(ring, values[i], records + count, defined) : 0;
    if (added == 0) return 0;
    for (size_t last = count + added; count < last; count++) records[count].name = key;
  }
  // Strings are defined by now, and what that ran may have ended the recording.
  if (!recorder_owns(ring, serial)) return 0;
  uint32_t id = kValuesBit | atomic_fetch_add(&ring->log->next_values, 1);
  for (size_t i = 0; i < count; i++) {
    records[i].attributes = id;
    ring_put(ring, &records[i]);
  }
  return id;
}
