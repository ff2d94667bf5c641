// SPDX-License-Identifier: Apache-2.0
// strobe.record._core: the recorder as Python sees it. record/_python.py is its twin.
#include "hooks.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "clock.h"
#include "files.h"
#include "log.h"
#include "spawn.h"

static PyObject *raise_errno(int failure, const char *path) {
  errno = failure;
  return PyErr_SetFromErrnoWithFilename(PyExc_OSError, path);
}

static PyObject *core_clock_ns(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  return PyLong_FromUnsignedLongLong(clock_ns());
}

// What is said about a point: keys with plain values, or a dict; neither if nothing is.
typedef struct {
  PyObject *keys;
  PyObject *const *values;
  PyObject *dict;
} About;

// Writes a record that has no duration; returns None.
static PyObject *put_point(PyObject *name, About about, uint64_t value, Kind kind,
                           uint8_t category) {
  uint64_t now_ns = clock_ns();
  Ring *ring = recorder_ring();
  if (ring == NULL) Py_RETURN_NONE;
  uint32_t serial = ring->serial;
  Record record = {
      .start_ns = now_ns, .dur_ns = value, .kind = (uint8_t)kind, .category = category};
  bool defined = true;
  record.attributes = about.keys ? values_id(ring, about.keys, about.values, &defined)
                                 : attributes_id(ring, about.dict, &defined);
  record.name = recorder_owns(ring, serial) ? string_id(ring, name, &defined) : 0;
  record.lane = recorder_owns(ring, serial) ? lane_id(ring) : 0;
  if (record.name && recorder_owns(ring, serial)) ring_put(ring, &record);
  return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *put_instant(PyObject *name, uint8_t category, PyObject *const *values,
                             PyObject *keywords) {
  if (!check_name("instant", name)) return NULL;
  Py_ssize_t said = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  About about = {NULL, values, NULL};
  if (said && said <= kMostValues && values_are_plain(about.values, said)) {
    about.keys = keywords;
  } else if (said) {
    about.dict = collect_attributes("instant", about.values, keywords, -1);
    if (about.dict == NULL) return NULL;
  }
  PyObject *result = put_point(name, about, 0, kKindInstant, category);
  Py_XDECREF(about.dict);
  return result;
}

static PyObject *core_instant(PyObject *Py_UNUSED(module), PyObject *const *arguments,
                              Py_ssize_t count, PyObject *keywords) {
  if (count != 1) {
    PyErr_Format(PyExc_TypeError,
                 "instant() takes a name and keyword attributes (%zd values given)", count);
    return NULL;
  }
  return put_instant(arguments[0], 0, arguments + count, keywords);
}

static PyObject *core_source_instant(PyObject *Py_UNUSED(module), PyObject *const *arguments,
                                     Py_ssize_t count, PyObject *keywords) {
  long code = count == 2 ? PyLong_AsLong(arguments[1]) : 0;
  if (count != 2 || (code == -1 && PyErr_Occurred())) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "source_instant() takes two values");
    return NULL;
  }
  return put_instant(arguments[0], (uint8_t)code, arguments + count, keywords);
}

static PyObject *put_counter(PyObject *name, double value, uint8_t category) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return put_point(name, (About){NULL, NULL, NULL}, bits, kKindCounter, category);
}

static PyObject *core_counter(PyObject *Py_UNUSED(module), PyObject *const *arguments,
                              Py_ssize_t count) {
  if (count != 2) {
    PyErr_Format(PyExc_TypeError, "counter() takes a name and a value (%zd values given)", count);
    return NULL;
  }
  if (!check_name("counter", arguments[0])) return NULL;
  double value = PyFloat_AsDouble(arguments[1]);
  if (value == -1.0 && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_OverflowError)) {
      return NULL;
    }
    PyErr_Clear();
    Py_XDECREF(python_call(kRefuseValue, PyTuple_Pack(2, arguments[0], arguments[1])));
    return NULL;
  }
  return put_counter(arguments[0], value, 0);
}

static PyObject *core_source_counter(PyObject *Py_UNUSED(module), PyObject *arguments) {
  PyObject *name;
  double value;
  unsigned char code;
  if (!PyArg_ParseTuple(arguments, "Udb", &name, &value, &code)) return NULL;
  return put_counter(name, value, code);
}

static PyObject *core_step(PyObject *Py_UNUSED(module), PyObject *arguments) {
  unsigned int window, number, samples;
  unsigned long long start_ns;
  int request;
  if (!PyArg_ParseTuple(arguments, "IIKIp", &window, &number, &start_ns, &samples, &request)) {
    return NULL;
  }
  Record record = {.start_ns = start_ns,
                   .dur_ns = clock_ns() - start_ns,
                   .name = number,
                   .attributes = samples,
                   .kind = kKindStep,
                   .category = (uint8_t)request,
                   .window = (uint16_t)window};
  Ring *ring = recorder_ring();
  if (ring) {
    uint32_t serial = ring->serial;
    record.lane = lane_id(ring);
    if (recorder_owns(ring, serial)) ring_put(ring, &record);
  }
  return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *core_use_control(PyObject *Py_UNUSED(module), PyObject *arguments) {
  PyObject *path, *encoded = NULL;
  int create;
  if (!PyArg_ParseTuple(arguments, "Op", &path, &create)) return NULL;
  if (path != Py_None && !PyUnicode_FSConverter(path, &encoded)) return NULL;
  int failure = recorder_use_control(encoded ? PyBytes_AS_STRING(encoded) : NULL, create);
  if (failure) raise_errno(failure, encoded ? PyBytes_AS_STRING(encoded) : "shared memory");
  Py_XDECREF(encoded);
  return failure ? NULL : Py_NewRef(Py_None);
}

static PyObject *core_start(PyObject *Py_UNUSED(module), PyObject *arguments) {
  PyObject *encoded = NULL;
  int counter = 0;
  unsigned long long log_bytes = 0, ring_bytes = 0, recording = 0;
  if (!PyArg_ParseTuple(arguments, "O&|pKKK", PyUnicode_FSConverter, &encoded, &counter, &log_bytes,
                        &ring_bytes, &recording)) {
    return NULL;
  }
  RecorderOptions options = {counter, log_bytes, ring_bytes, recording};
  int failure = recorder_start(PyBytes_AS_STRING(encoded), options);
  if (failure) raise_errno(failure, PyBytes_AS_STRING(encoded));
  Py_DECREF(encoded);
  if (failure) return NULL;
  Py_RETURN_NONE;
}

static PyObject *core_watch_usage(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  recorder_watch_usage();
  Py_RETURN_NONE;
}

static PyObject *core_put_usage(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  // The first lane of a log is that of these counters: it must be somebody's.
  Ring *ring = recorder_ring();
  if (ring) lane_id(ring);
  recorder_put_usage();
  return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

#if PY_VERSION_HEX >= 0x030d0000
static int go_on(void *Py_UNUSED(argument)) {
  recorder_go_on();
  return 0;
}
#endif

static PyObject *core_go_on(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
#if PY_VERSION_HEX >= 0x030d0000
  // os.fork() is about to look for threads, which it warns of.
  Py_AddPendingCall(go_on, NULL);
#else
  recorder_go_on();
#endif
  Py_RETURN_NONE;
}

static PyObject *core_stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  // It may wait for the drain thread, if there is one, to finish a write.
  PyThreadState *state = recorder_drains() ? PyEval_SaveThread() : NULL;
  int failure = recorder_stop();
  if (state) PyEval_RestoreThread(state);
  if (failure) return raise_errno(failure, NULL);
  Py_RETURN_NONE;
}

static PyObject *core_directory(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  char directory[kPathBytes];
  if (!recorder_directory(directory)) Py_RETURN_NONE;
  return PyUnicode_DecodeFSDefault(directory);
}

static PyObject *core_use_counter(PyObject *Py_UNUSED(module), PyObject *allowed) {
  int truth = PyObject_IsTrue(allowed);
  if (truth < 0) return NULL;
  clock_use_counter(truth);
  Py_RETURN_NONE;
}

static PyObject *core_calibrate(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  SpanCosts costs = span_calibrate();
  return Py_BuildValue("(dd)", costs.plain_ns, costs.with_value_ns);
}

static PyObject *core_stats(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  RecorderStats stats = recorder_stats();
  return Py_BuildValue("{sKsKsKsKsKsIsisK}", "records", (unsigned long long)stats.records,
                       "dropped", (unsigned long long)stats.dropped, "own_ns",
                       (unsigned long long)stats.own_ns, "drain_ns",
                       (unsigned long long)stats.drain_ns, "lost_definitions",
                       (unsigned long long)stats.lost_definitions, "anonymous_rings",
                       stats.anonymous_rings, "failed_errno", stats.failed_errno,
                       "forgotten_errors", (unsigned long long)python_forgotten_errors());
}

static bool is_on_network(const char *path) {
  char folder[kPathBytes];
  const char *end = strrchr(path, '/');
  size_t length = end ? (size_t)(end - path) : 0;
  if (length == 0 || length >= sizeof folder) return false;
  memcpy(folder, path, length);
  folder[length] = 0;
  return log_is_network(folder);
}

// These keep the GIL, as start() does: beside three busy threads, getting it back once takes 17 ms in
// the median and 76 ms at the 99th percentile, while the calls themselves take a tenth of a
// millisecond. A network file system may take long, so there other threads run meanwhile.
static PyObject *core_replace_file(PyObject *Py_UNUSED(module), PyObject *arguments) {
  PyObject *part = NULL, *path = NULL;
  const char *data;
  Py_ssize_t length;
  if (!PyArg_ParseTuple(arguments, "O&O&y#", PyUnicode_FSConverter, &part, PyUnicode_FSConverter,
                        &path, &data, &length)) {
    return NULL;
  }
  const char *target = PyBytes_AS_STRING(path);
  PyThreadState *state = is_on_network(target) ? PyEval_SaveThread() : NULL;
  int failure = file_replace(PyBytes_AS_STRING(part), target, data, (size_t)length);
  if (state) PyEval_RestoreThread(state);
  if (failure) raise_errno(failure, target);
  Py_DECREF(part);
  Py_DECREF(path);
  return failure ? NULL : Py_NewRef(Py_None);
}

static PyObject *core_make_folder(PyObject *Py_UNUSED(module), PyObject *arguments) {
  PyObject *path;
  if (!PyArg_ParseTuple(arguments, "O&", PyUnicode_FSConverter, &path)) return NULL;
  const char *target = PyBytes_AS_STRING(path);
  PyThreadState *state = is_on_network(target) ? PyEval_SaveThread() : NULL;
  int failure = mkdir(target, 0777) == 0 ? 0 : errno;
  if (state) PyEval_RestoreThread(state);
  if (failure) raise_errno(failure, target);
  Py_DECREF(path);
  return failure ? NULL : Py_NewRef(Py_None);
}

static PyObject *core_is_private_folder(PyObject *Py_UNUSED(module), PyObject *arguments) {
  PyObject *path;
  if (!PyArg_ParseTuple(arguments, "O&", PyUnicode_FSConverter, &path)) return NULL;
  bool private = folder_is_private(PyBytes_AS_STRING(path));
  Py_DECREF(path);
  return PyBool_FromLong(private);
}

static PyObject *core_is_locked(PyObject *Py_UNUSED(module), PyObject *arguments) {
  PyObject *path;
  bool locked = false;
  if (!PyArg_ParseTuple(arguments, "O&", PyUnicode_FSConverter, &path)) return NULL;
  int failure = file_is_locked(PyBytes_AS_STRING(path), &locked);
  if (failure) raise_errno(failure, PyBytes_AS_STRING(path));
  Py_DECREF(path);
  return failure ? NULL : PyBool_FromLong(locked);
}

// A NULL-terminated array that borrows the bytes objects of a tuple.
static char **borrow_strings(PyObject *items) {
  Py_ssize_t count = PyTuple_GET_SIZE(items);
  char **array = PyMem_Calloc((size_t)count + 1, sizeof *array);
  if (array == NULL) return (char **)PyErr_NoMemory();
  for (Py_ssize_t i = 0; i < count; i++) {
    array[i] = PyBytes_AsString(PyTuple_GET_ITEM(items, i));
    if (array[i] == NULL) {
      PyMem_Free(array);
      return NULL;
    }
  }
  return array;
}

static PyObject *core_spawn_detached(PyObject *Py_UNUSED(module), PyObject *arguments) {
  PyObject *argv, *environment;
  const char *error_path;
  if (!PyArg_ParseTuple(arguments, "O!O!y", &PyTuple_Type, &argv, &PyTuple_Type, &environment,
                        &error_path)) {
    return NULL;
  }
  char **argv_array = borrow_strings(argv);
  char **environment_array = argv_array ? borrow_strings(environment) : NULL;
  int failure = 0;
  if (environment_array) {
    Py_BEGIN_ALLOW_THREADS;
    failure = spawn_detached(argv_array, environment_array, error_path);
    Py_END_ALLOW_THREADS;
    if (failure) raise_errno(failure, argv_array[0]);
  }
  PyMem_Free(environment_array);
  PyMem_Free(argv_array);
  if (PyErr_Occurred()) return NULL;
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"clock_ns", core_clock_ns, METH_NOARGS, "Nanoseconds of the recording's clock."},
    {"instant", (PyCFunction)(void (*)(void))core_instant, METH_FASTCALL | METH_KEYWORDS,
     "instant(name, /, **attributes)\n--\n\nRecord a point in time."},
    {"counter", (PyCFunction)(void (*)(void))core_counter, METH_FASTCALL,
     "counter(name, value, /)\n--\n\n"
     "Record the value of a counter at this instant, as a float64."},
    {"step", core_step, METH_VARARGS,
     "step(window, number, start_ns, samples, request, /)\n--\n\n"
     "Record that a step of a window, or a request, ends now."},
    {"source_span", span_of_category, METH_VARARGS,
     "source_span(name, code, attributes={}, /)\n--\n\n"
     "A span that is not the user's; the code is that of model.tables.record_code."},
    {"source_instant", (PyCFunction)(void (*)(void))core_source_instant,
     METH_FASTCALL | METH_KEYWORDS,
     "source_instant(name, code, /, **attributes)\n--\n\nThe same for a point in time."},
    {"source_counter", core_source_counter, METH_VARARGS,
     "source_counter(name, value, code, /)\n--\n\nThe same for the value of a counter."},
    {"use_control", core_use_control, METH_VARARGS,
     "use_control(path, create)\n--\n\nMap a control page; None: one for forked children only."},
    {"start", core_start, METH_VARARGS,
     "start(directory, counter=False, max_log_bytes=0, max_ring_bytes=0, recording=0, /)\n--\n\n"
     "Record into the directory; with counter, times come from the processor's counter. The bounds "
     "are of one process, 0 for none. recording is its id: it names ring files that lie "
     "elsewhere."},
    {"stop", core_stop, METH_NOARGS, "Stop recording, here and in the children."},
    {"watch_usage", core_watch_usage, METH_NOARGS,
     "From the next start on, record the process's memory and threads twice a second."},
    {"put_usage", core_put_usage, METH_NOARGS, "Record them now, if they are watched."},
    {"go_on", core_go_on, METH_NOARGS, "After a fork, in the parent: go on with that."},
    {"directory", core_directory, METH_NOARGS, "Where recording goes now; None while it is off."},
    {"calibrate", core_calibrate, METH_NOARGS,
     "Nanoseconds that one span costs, plain and with an attribute, measured while recording; "
     "negative when it cannot be."},
    {"stats", core_stats, METH_NOARGS, "Figures of this process's current log."},
    {"use_counter", core_use_counter, METH_O,
     "use_counter(allowed, /)\n--\n\nLet sources outside take times from the processor's counter, "
     "set right every millisecond."},
    {"calls_start", calls_start, METH_VARARGS,
     "calls_start(ours, include, exclude, min_ns, max_depth, category, tool, /)\n--\n\n"
     "Record the calls of all threads, or go on with another filter; False while nothing records."},
    {"calls_keep", calls_keep, METH_NOARGS, "Write the calls that are open into the log."},
    {"calls_stop", calls_stop, METH_NOARGS,
     "Take the hooks away; figures of what went wrong with them."},
    {"calls_after_fork", calls_after_fork, METH_NOARGS, "In the child: there is one thread."},
    {"sampler_start", sampler_start, METH_VARARGS,
     "sampler_start(rate_hz, ours, /)\n--\n\nSample the stacks of all threads, or change the "
     "rate."},
    {"sampler_stop", sampler_stop, METH_NOARGS, "Stop sampling; its figures."},
    {"sampler_forget", sampler_forget, METH_NOARGS, "Begin the figures anew."},
    {"sampler_restart", sampler_restart, METH_NOARGS, "After a fork: sample again."},
    {"owners_list", owners_list, METH_NOARGS,
     "Who holds what frameworks have allocated now: (owner, device, blocks, bytes) each."},
    {"owners_before", owners_before, METH_O,
     "owners_before(storages, /)\n--\n\nThere were these: (address, bytes, device) each."},
    {"owners_forget", owners_forget, METH_NOARGS, "Follow the blocks known so far no more."},
    {"replace_file", core_replace_file, METH_VARARGS,
     "replace_file(part, path, content, /)\n--\n\n"
     "Write a new file `part` and give it the name `path`."},
    {"make_folder", core_make_folder, METH_VARARGS, "make_folder(path, /)\n--\n\nMake it."},
    {"is_private_folder", core_is_private_folder, METH_VARARGS,
     "is_private_folder(path, /)\n--\n\nWhether it is this user's alone."},
    {"is_locked", core_is_locked, METH_VARARGS,
     "is_locked(path, /)\n--\n\nWhether somebody holds the lock on this file."},
    {"traced_sums", traced_sums, METH_O,
     "traced_sums(get_traces, /)\n--\n\nWhat is held by each traceback, given tracemalloc's "
     "function that lists all blocks: (traceback, bytes, blocks) each."},
    {"spawn_detached", core_spawn_detached, METH_VARARGS,
     "spawn_detached(argv, environment, error_path)\n--\n\nStart a program that is no child."},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) {
  int failure = recorder_initialize();
  if (failure) {
    raise_errno(failure, NULL);
    return -1;
  }
  if (span_prepare() != 0) return -1;
  Py_INCREF(&SpanType);
  if (PyModule_AddObject(module, "span", (PyObject *)&SpanType) != 0) return -1;
  PyObject *capsule = source_capsule();
  if (capsule == NULL || PyModule_AddObject(module, "source", capsule) != 0) return -1;
  if (PyModule_AddIntConstant(module, "HAS_COUNTER", CLOCK_HAS_COUNTER) != 0) return -1;
  return PyModule_AddIntConstant(module, "FORMAT_VERSION", kFormatVersion);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030c0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,      .m_name = "strobe.record._core",
    .m_doc = "The C recorder.", .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void) {
  return PyModuleDef_Init(&definition);
}
