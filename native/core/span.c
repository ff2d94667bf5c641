// SPDX-License-Identifier: Apache-2.0
// strobe.span: context manager, decorator, begin() and end().
#include "hooks.h"

#include <structmember.h>

#include "clock.h"

// One beginning that has not ended.
typedef struct {
  Ring *ring;  // NULL: none. Looked into only while `serial` is the current log's.
  uint32_t serial;
  uint32_t slot;
  uint64_t start_ns;
  uint32_t name;
  uint32_t attributes;
  uint32_t lane;
  uint8_t category;
} Opening;

typedef struct {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject *name;
  // Attributes are a tuple of keys with their values, if these are few and plain, or else a dict.
  PyObject *keys;        // NULL: none
  PyObject *attributes;  // NULL: none
  PyObject *values[kMostValues];
  uint32_t serial;  // the log that the two ids belong to
  uint32_t name_id;
  uint32_t attributes_id;
  uint8_t category;  // 0: the user's
  Opening open;      // the latest
  // A span object may be entered again before it is left: by recursion, by threads, by tasks.
  Opening *earlier;
  uint32_t earlier_count, earlier_capacity;
} Span;

// Spans made for one `with` come and go all the time; their memory stays here in between.
enum { kSpareSpans = 64 };
static Span *spare_spans[kSpareSpans];
static int spare_count;

static Record record_of(const Opening *open, uint64_t end_ns, Kind kind) {
  return (Record){.start_ns = open->start_ns,
                  .dur_ns = end_ns - open->start_ns,
                  .name = open->name,
                  .attributes = open->attributes,
                  .lane = open->lane,
                  .kind = (uint8_t)kind,
                  .category = open->category};
}

static bool keep_earlier(Span *self) {
  if (self->earlier_count == self->earlier_capacity) {
    uint32_t capacity = self->earlier_capacity ? self->earlier_capacity * 2 : 4;
    Opening *grown = PyMem_Realloc(self->earlier, capacity * sizeof *grown);
    if (grown == NULL) return false;
    self->earlier = grown;
    self->earlier_capacity = capacity;
  }
  self->earlier[self->earlier_count++] = self->open;
  return true;
}

// The name and the attributes as numbers of the ring's log, and the thread's lane. Runs Python code
// the first time: what it raises that is the program's stays set.
static Opening describe(Span *self, Ring *ring) {
  uint32_t serial = ring->serial;
  Opening open = {.ring = ring, .serial = serial, .slot = kNoSlot, .category = self->category};
  if (self->serial == serial) {
    open.name = self->name_id;
    open.attributes = self->attributes_id;
  } else {
    bool defined = true;
    open.attributes = self->keys ? values_id(ring, self->keys, self->values, &defined)
                                 : attributes_id(ring, self->attributes, &defined);
    if (recorder_owns(ring, serial)) open.name = string_id(ring, self->name, &defined);
    self->serial = open.name && defined ? serial : 0;
    self->name_id = open.name;
    self->attributes_id = open.attributes;
  }
  if (recorder_owns(ring, serial)) open.lane = lane_id(ring);
  return open;
}

// False with an exception that is the program's, from a signal handler say.
static bool begin(Span *self) {
  Ring *ring = recorder_ring();
  if (ring == NULL) return true;
  bool quick = self->serial == ring->serial && lane_is_known(ring);
  Opening open = describe(self, ring);
  if (__builtin_expect(!quick, 0)) {
    if (PyErr_Occurred()) return false;
    // Switched off meanwhile, or nothing to call it by.
    if (!recorder_owns(ring, open.serial) || open.name == 0) return true;
  }
  if (__builtin_expect(self->open.ring != NULL, 0) && !keep_earlier(self)) return true;
  Record record = {.name = open.name,
                   .attributes = open.attributes,
                   .lane = open.lane,
                   .category = open.category};
  record.start_ns = open.start_ns = clock_ns();
  open.slot = ring_open(ring, &record);
  self->open = open;
  return true;
}

// Which of several openings does an end() in this lane mean? The latest of the lane; else the latest.
static Opening take_opening(Span *self, uint32_t serial, uint32_t lane) {
  Opening taken = self->open;
  if (self->earlier_count == 0) {
    self->open.ring = NULL;
    return taken;
  }
  uint32_t last = self->earlier_count - 1;
  bool here = taken.serial == serial && taken.lane == lane;
  for (uint32_t i = last; !here && i != UINT32_MAX; i--) {
    if (self->earlier[i].serial != serial || self->earlier[i].lane != lane) continue;
    taken = self->earlier[i];
    memmove(&self->earlier[i], &self->earlier[i + 1], (last - i) * sizeof taken);
    self->earlier_count--;
    return taken;
  }
  self->open = self->earlier[last];
  self->earlier_count--;
  return taken;
}

// False as begin().
static bool end(Span *self) {
  if (self->open.ring == NULL) return true;
  uint64_t now_ns = clock_ns();
  Ring *ring = recorder_ring();
  uint32_t serial = ring ? ring->serial : 0;
  uint32_t lane = 0;
  if (__builtin_expect(self->earlier_count > 0, 0) && ring) {
    lane = lane_id(ring);
    if (!recorder_owns(ring, serial)) ring = NULL;
  }
  // Another thread may have taken it while Python code ran.
  if (self->open.ring == NULL) return !PyErr_Occurred();
  Opening open = take_opening(self, serial, lane);
  // Recording was stopped in between: the recording it was begun in shows it as unfinished.
  if (ring == NULL || serial != open.serial) return !PyErr_Occurred();
  Record record = record_of(&open, now_ns, kKindSpan);
  ring_put(ring, &record);
  ring_close(ring, open.ring, open.slot);
  return __builtin_expect(lane == 0, 1) || !PyErr_Occurred();
}

// Nobody can end these any more: they leave the table, which is small, for the log, which is not.
static void abandon(const Opening *open) {
  Ring *ring = recorder_ring();
  if (ring == NULL || ring->serial != open->serial || open->slot == kNoSlot) return;
  Record record = record_of(open, open->start_ns, kKindOpen);
  ring_put(ring, &record);
  ring_close(ring, open->ring, open->slot);
}

static void span_dealloc(Span *self) {
  if (self->open.ring) abandon(&self->open);
  for (uint32_t i = 0; i < self->earlier_count; i++) abandon(&self->earlier[i]);
  PyMem_Free(self->earlier);
  Py_DECREF(self->name);
  Py_XDECREF(self->attributes);
  if (self->keys) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->keys); i++) Py_DECREF(self->values[i]);
    Py_DECREF(self->keys);
  }
  if (spare_count < kSpareSpans) {
    spare_spans[spare_count++] = self;
  } else {
    PyObject_Free(self);
  }
}

static PyObject *span_call(PyObject *object, PyObject *const *arguments, size_t flags,
                           PyObject *keywords) {
  Span *self = (Span *)object;
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (count == 0 && keywords == NULL) return begin(self) ? Py_NewRef(object) : NULL;
  if (count == 3 && keywords == NULL) return end(self) ? Py_NewRef(Py_None) : NULL;
  if (count == 1 && keywords == NULL) {
    return python_call(kDecorate, PyTuple_Pack(2, object, arguments[0]));
  }
  PyErr_SetString(PyExc_TypeError, "a span is called with the one function that it decorates");
  return NULL;
}

// Takes the reference to the attributes, which may be NULL.
static PyObject *make_span(PyTypeObject *type, PyObject *name, PyObject *attributes) {
  Span *self;
  if (spare_count > 0) {
    self = spare_spans[--spare_count];
    PyObject_Init((PyObject *)self, type);
  } else if ((self = PyObject_New(Span, type)) == NULL) {
    Py_XDECREF(attributes);
    return NULL;
  }
  self->vectorcall = span_call;
  self->name = Py_NewRef(name);
  self->attributes = attributes;
  self->keys = NULL;
  self->serial = 0;
  self->category = 0;
  self->open.ring = NULL;
  self->earlier = NULL;
  self->earlier_count = self->earlier_capacity = 0;
  return (PyObject *)self;
}

static PyObject *span_vectorcall(PyObject *type, PyObject *const *arguments, size_t flags,
                                 PyObject *keywords) {
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  Py_ssize_t keyword_count = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  PyObject *name = count == 1 ? arguments[0] : NULL;
  Py_ssize_t name_keyword = -1;
  for (Py_ssize_t i = 0; count == 0 && name == NULL && i < keyword_count; i++) {
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(keywords, i), "name") != 0) continue;
    name = arguments[i];
    name_keyword = i;
  }
  if (name == NULL) {
    PyErr_Format(PyExc_TypeError, "span() takes a name and keyword attributes (%zd values given)",
                 count);
    return NULL;
  }
  if (!check_name("span", name)) return NULL;
  PyObject *attributes = NULL;
  bool few = name_keyword < 0 && keyword_count <= kMostValues;
  if (keyword_count && few && values_are_plain(arguments + count, keyword_count)) {
    Span *span = (Span *)make_span((PyTypeObject *)type, name, NULL);
    if (span == NULL) return NULL;
    span->keys = Py_NewRef(keywords);
    for (Py_ssize_t i = 0; i < keyword_count; i++) {
      span->values[i] = Py_NewRef(arguments[count + i]);
    }
    return (PyObject *)span;
  }
  if (keyword_count > (name_keyword >= 0)) {
    attributes = collect_attributes("span", arguments + count, keywords, name_keyword);
    if (attributes == NULL) return NULL;
  }
  return make_span((PyTypeObject *)type, name, attributes);
}

PyObject *span_of_category(PyObject *Py_UNUSED(module), PyObject *arguments) {
  PyObject *name, *attributes = NULL;
  unsigned char category;
  if (!PyArg_ParseTuple(arguments, "Ub|O!", &name, &category, &PyDict_Type, &attributes)) {
    return NULL;
  }
  if (attributes && PyDict_GET_SIZE(attributes) == 0) attributes = NULL;
  PyObject *span = make_span(&SpanType, name, Py_XNewRef(attributes));
  if (span) ((Span *)span)->category = category;
  return span;
}

static PyObject *span_begin(PyObject *self, PyObject *Py_UNUSED(nothing)) {
  return begin((Span *)self) ? Py_NewRef(self) : NULL;
}

static PyObject *span_end(PyObject *self, PyObject *Py_UNUSED(nothing)) {
  return end((Span *)self) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *span_attributes(PyObject *object, void *Py_UNUSED(closure)) {
  Span *self = (Span *)object;
  if (self->keys) return values_dict(self->keys, self->values);
  return self->attributes ? PyDict_Copy(self->attributes) : PyDict_New();
}

static PyObject *span_repr(PyObject *object) {
  Span *self = (Span *)object;
  if (!self->keys && !self->attributes) return PyUnicode_FromFormat("strobe.span(%R)", self->name);
  PyObject *attributes = span_attributes(object, NULL);
  if (attributes == NULL) return NULL;
  PyObject *text = PyUnicode_FromFormat("strobe.span(%R, **%R)", self->name, attributes);
  Py_DECREF(attributes);
  return text;
}

// A model that holds a span can be copied and pickled: the copy is a span that is not open.
static PyObject *span_reduce(PyObject *object, PyObject *Py_UNUSED(nothing)) {
  PyObject *attributes = span_attributes(object, NULL);
  PyObject *rebuild = attributes ? python_support(kRebuildSpan) : NULL;
  if (rebuild == NULL) {
    Py_XDECREF(attributes);
    return NULL;
  }
  return Py_BuildValue("(O(ON))", rebuild, ((Span *)object)->name, attributes);
}

// __enter__ and __exit__ hand out the span itself instead of a bound method, because making two of
// those costs more than recording. The span then tells entering, leaving and decorating apart by
// the number of arguments. Looked up on the type, as contextlib.ExitStack does, they are functions.
static PyObject *protocol_get(PyObject *self, PyObject *span, PyObject *Py_UNUSED(type)) {
  return Py_NewRef(span ? span : self);
}

static PyObject *protocol_call(PyObject *Py_UNUSED(self), PyObject *arguments,
                               PyObject *Py_UNUSED(keywords)) {
  Py_ssize_t count = PyTuple_GET_SIZE(arguments);
  PyObject *span = count ? PyTuple_GET_ITEM(arguments, 0) : NULL;
  if ((count != 1 && count != 4) || !Py_IS_TYPE(span, &SpanType)) {
    PyErr_SetString(PyExc_TypeError, "__enter__ and __exit__ need a span");
    return NULL;
  }
  return span_call(span, &PyTuple_GET_ITEM(arguments, 0) + 1, (size_t)(count - 1), NULL);
}

static PyTypeObject ProtocolType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "strobe.record._core.protocol",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_descr_get = protocol_get,
    .tp_call = protocol_call,
};

static PyMethodDef span_methods[] = {
    {"begin", span_begin, METH_NOARGS, "Begin the span now and return it."},
    {"end", span_end, METH_NOARGS,
     "End what the latest begin() of this thread and context began; nothing if none did."},
    {"__reduce__", span_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef span_members[] = {
    {"name", T_OBJECT_EX, offsetof(Span, name), READONLY, "The name, as given."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef span_getters[] = {
    {"attributes", span_attributes, NULL, "A copy of the attributes.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(
    span_doc,
    "span(name, **attributes)\n--\n\n"
    "A named interval of the program: a context manager, a decorator, or begin() and end().\n\n"
    "It may nest, overlap, be entered again, cross awaits and threads, or never end (then it\n"
    "is kept and marked unfinished). While nothing records it costs next to nothing; a span\n"
    "made then records once recording is on. Attribute values are str, int, float, bool,\n"
    "None, scalars of NumPy, or lists and dicts of these; anything else raises UsageError.");

PyTypeObject SpanType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "strobe.span",
    .tp_basicsize = sizeof(Span),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_doc = span_doc,
    .tp_dealloc = (destructor)span_dealloc,
    .tp_vectorcall = span_vectorcall,
    .tp_vectorcall_offset = offsetof(Span, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_methods = span_methods,
    .tp_members = span_members,
    .tp_getset = span_getters,
    .tp_repr = span_repr,
};

// Makes, enters and leaves one span as `with strobe.span(*given)` does: a name, then a value for each
// of the keywords.
static bool run_once(PyObject *const *given, PyObject *keywords) {
  PyObject *nothing[] = {Py_None, Py_None, Py_None};
  PyObject *span = span_vectorcall((PyObject *)&SpanType, given, 1, keywords);
  if (span == NULL) return false;
  PyObject *entered = span_call(span, NULL, 0, NULL);
  PyObject *left = entered ? span_call(span, nothing, 3, NULL) : NULL;
  Py_XDECREF(entered);
  Py_XDECREF(left);
  Py_DECREF(span);
  return left != NULL;
}

enum { kBatches = 8, kSpans = 250 };

// The least that one span took, negative if it cannot be recorded.
static double time_spans(PyObject *const *given, PyObject *keywords) {
  double best_ns = -1;
  for (int batch = 0; batch < kBatches; batch++) {
    uint64_t began_ns = clock_ns();
    for (int i = 0; i < kSpans; i++) {
      if (!run_once(given, keywords)) return -1;
    }
    double spent_ns = (double)(clock_ns() - began_ns) / kSpans;
    if (best_ns < 0 || spent_ns < best_ns) best_ns = spent_ns;
  }
  return best_ns;
}

SpanCosts span_calibrate(void) {
  SpanCosts costs = {-1, -1};
  Ring *ring = recorder_ring();
  PyObject *given[] = {PyUnicode_FromString("strobe calibration"), PyLong_FromLong(1 << 20)};
  PyObject *keywords = Py_BuildValue("(s)", "value");
  if (ring && given[0] && given[1] && keywords) {
    lane_id(ring);
    // The same code on a ring that nobody reads. A span with a value has two records.
    Ring *scratch = ring == recorder_ring() ? ring_scratch(ring, 3 * kBatches * kSpans) : NULL;
    if (scratch) {
      recorder_thread_ring = scratch;
      costs.plain_ns = time_spans(given, NULL);
      costs.with_value_ns = time_spans(given, keywords);
      recorder_thread_ring = ring;
      free(scratch);
    }
  }
  Py_XDECREF(keywords);
  Py_XDECREF(given[1]);
  Py_XDECREF(given[0]);
  if (PyErr_Occurred()) python_forget_error();
  return costs;
}

int span_prepare(void) {
  if (PyType_Ready(&ProtocolType) != 0 || PyType_Ready(&SpanType) != 0) return -1;
  PyObject *protocol = PyObject_New(PyObject, &ProtocolType);
  if (protocol == NULL) return -1;
  int failed = PyDict_SetItemString(SpanType.tp_dict, "__enter__", protocol) != 0 ||
               PyDict_SetItemString(SpanType.tp_dict, "__exit__", protocol) != 0;
  Py_DECREF(protocol);
  PyType_Modified(&SpanType);
  return failed ? -1 : 0;
}
