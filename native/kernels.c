// SPDX-License-Identifier: Apache-2.0
//
// Hot loops of strobe.analysis: what polars cannot say in one pass. Knows columns, not tables.
// The Python twin is src/strobe/model/_nesting_python.py.

#include "stateless.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { kColumns = 5 };  // what each function here takes

typedef enum { kRead, kWrite } Access;

typedef struct {
  const char *name;
  Py_ssize_t itemsize;
  Access access;
  bool per_row;  // has one item per row, so must be as long as the first column
} Column;

typedef enum {
  kFine,
  kNoMemory,
  kNegativeLane,
  kNegativeName,
  kNameTooLarge,
  kEndBeforeStart,
  kTooLong,
  kUnsortedStart,
  kUnsortedEnd,
  kParentBelow,
} Fault;

// A loop runs without the GIL, so it reports what it found and where; raising happens later.
typedef struct {
  Fault fault;
  Py_ssize_t row;
} Outcome;

static const Outcome kDone = {kFine, 0};

typedef struct {
  Py_ssize_t rows;
  const int32_t *lane;
  const int64_t *start_ns;
  const int64_t *end_ns;
  Py_ssize_t lanes;  // largest lane id + 1, known after check_spans
} Spans;

typedef struct {
  Py_buffer views[kColumns];
  int held;
} Buffers;

// ---- columns -------------------------------------------------------------------------------

static bool is_signed_integer(const Py_buffer *view, Py_ssize_t itemsize) {
  const char *format = view->format ? view->format : "B";
  // '<' is foreign on a big-endian machine; numpy writes native int64 as "l" or "q" without it.
  if (*format == '@' || *format == '=') {
    format++;
  }
  return view->itemsize == itemsize && strlen(format) == 1 && strchr("ilq", *format) != NULL;
}

static void release(Buffers *buffers) {
  while (buffers->held > 0) {
    PyBuffer_Release(&buffers->views[--buffers->held]);
  }
}

static bool overlap(const Py_buffer *a, const Py_buffer *b) {
  uintptr_t a_from = (uintptr_t)a->buf;
  uintptr_t b_from = (uintptr_t)b->buf;
  return a_from < b_from + (uintptr_t)b->len && b_from < a_from + (uintptr_t)a->len;
}

static bool check_column(const char *function, const Column *columns, const Buffers *buffers,
                         int i) {
  const Py_buffer *view = &buffers->views[i];
  if (view->ndim != 1 || !is_signed_integer(view, columns[i].itemsize)) {
    PyErr_Format(PyExc_ValueError, "%s(%s=...): %s must be a one-dimensional int%d buffer",
                 function, columns[i].name, columns[i].name, (int)columns[i].itemsize * 8);
    return false;
  }
  if (columns[i].per_row && view->shape[0] != buffers->views[0].shape[0]) {
    PyErr_Format(PyExc_ValueError, "%s(%s=...): %s has %zd rows but %s has %zd", function,
                 columns[i].name, columns[i].name, view->shape[0], columns[0].name,
                 buffers->views[0].shape[0]);
    return false;
  }
  for (int j = 0; j < i; j++) {
    // The loops follow indices they wrote themselves: shared memory would send them astray.
    if ((columns[i].access == kWrite || columns[j].access == kWrite) &&
        overlap(view, &buffers->views[j])) {
      PyErr_Format(PyExc_ValueError, "%s(%s=...): %s must not share memory with %s", function,
                   columns[i].name, columns[i].name, columns[j].name);
      return false;
    }
  }
  return true;
}

static bool acquire(const char *function, const Column *columns, int count, PyObject *const *args,
                    Py_ssize_t nargs, Buffers *buffers) {
  buffers->held = 0;
  if (nargs != count) {
    PyErr_Format(PyExc_TypeError, "%s() takes %d buffers, %zd were given", function, count, nargs);
    return false;
  }
  for (int i = 0; i < count; i++) {
    int flags = PyBUF_ND | PyBUF_FORMAT | (columns[i].access == kWrite ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(args[i], &buffers->views[i], flags) < 0) {
      release(buffers);
      return false;
    }
    buffers->held++;
    if (!check_column(function, columns, buffers, i)) {
      release(buffers);
      return false;
    }
  }
  return true;
}

static PyObject *conclude(const char *function, Outcome outcome) {
  switch (outcome.fault) {
    case kFine:
      Py_RETURN_NONE;
    case kNoMemory:
      return PyErr_NoMemory();
    case kParentBelow:
      return PyErr_Format(PyExc_ValueError, "%s(): row %zd has a parent that is not above it",
                          function, outcome.row);
    case kNegativeLane:
      return PyErr_Format(PyExc_ValueError, "%s(): row %zd has a negative lane", function,
                          outcome.row);
    case kNegativeName:
      return PyErr_Format(PyExc_ValueError, "%s(): row %zd has a negative name", function,
                          outcome.row);
    case kNameTooLarge:
      return PyErr_Format(PyExc_ValueError,
                          "%s(): row %zd has a name that covered_ns has no place for", function,
                          outcome.row);
    case kEndBeforeStart:
      return PyErr_Format(PyExc_ValueError, "%s(): row %zd ends before it starts", function,
                          outcome.row);
    case kTooLong:
      return PyErr_Format(PyExc_ValueError,
                          "%s(): row %zd is longer than int64 nanoseconds can say", function,
                          outcome.row);
    case kUnsortedStart:
      return PyErr_Format(PyExc_ValueError,
                          "%s(): row %zd starts before the row above it; sort by start_ns",
                          function, outcome.row);
    case kUnsortedEnd:
      return PyErr_Format(PyExc_ValueError,
                          "%s(): row %zd starts with the row above it but ends later; sort "
                          "by start_ns, then by end_ns descending",
                          function, outcome.row);
  }
  Py_UNREACHABLE();
}

// ---- spans ---------------------------------------------------------------------------------

static Outcome check_spans(Spans *spans) {
  const int64_t *start_ns = spans->start_ns;
  const int64_t *end_ns = spans->end_ns;
  int32_t last_lane = -1;
  for (Py_ssize_t i = 0; i < spans->rows; i++) {
    if (spans->lane[i] < 0) {
      return (Outcome){kNegativeLane, i};
    }
    if (spans->lane[i] > last_lane) {
      last_lane = spans->lane[i];
    }
    if (end_ns[i] < start_ns[i]) {
      return (Outcome){kEndBeforeStart, i};
    }
    if ((uint64_t)end_ns[i] - (uint64_t)start_ns[i] > (uint64_t)INT64_MAX) {
      return (Outcome){kTooLong, i};
    }
    if (i > 0 && start_ns[i] < start_ns[i - 1]) {
      return (Outcome){kUnsortedStart, i};
    }
  }
  spans->lanes = (Py_ssize_t)last_lane + 1;
  return kDone;
}

// ---- nest ----------------------------------------------------------------------------------

// The open spans of a lane form a stack on which ends only shrink towards the top: a span that
// ends before a later-started one can neither contain a later row nor be the latest-started
// again, so it leaves when that one arrives. What lies below a span is then its parent, so
// parent[] is the stack's links and a lane needs only its top, which is always its last row.
//
//   lane |  a---------------      stack when x arrives: a b
//        |    b-----              b ends before x: it is credited up to x and leaves
//        |        x------         parent[x] = a, stack: a x
//
// `from` is the start of the lane's last row: everything before it has been credited.
static Outcome nest_rows(Spans *spans, int64_t *parent, int64_t *self_ns) {
  const int64_t *start_ns = spans->start_ns;
  const int64_t *end_ns = spans->end_ns;
  Outcome checked = check_spans(spans);
  if (checked.fault != kFine || spans->rows == 0) {
    return checked;
  }
  // Row number + 1 of a lane's last row, so that calloc's untouched zero pages mean "none".
  int64_t *tops = calloc((size_t)spans->lanes, sizeof *tops);
  if (tops == NULL) {
    return (Outcome){kNoMemory, 0};
  }
  Outcome outcome = kDone;
  for (Py_ssize_t i = 0; i < spans->rows; i++) {
    if (i > 0 && start_ns[i] == start_ns[i - 1] && end_ns[i] > end_ns[i - 1]) {
      outcome = (Outcome){kUnsortedEnd, i};
      break;
    }
    int64_t top = tops[spans->lane[i]] - 1;
    int64_t from = top < 0 ? 0 : start_ns[top];
    while (top >= 0 && end_ns[top] < end_ns[i]) {
      int64_t until = end_ns[top] < start_ns[i] ? end_ns[top] : start_ns[i];
      if (until > from) {
        self_ns[top] += until - from;
        from = until;
      }
      top = parent[top];
    }
    if (top >= 0) {
      self_ns[top] += start_ns[i] - from;
    }
    parent[i] = top;
    self_ns[i] = 0;
    tops[spans->lane[i]] = i + 1;
  }
  for (Py_ssize_t lane = 0; outcome.fault == kFine && lane < spans->lanes; lane++) {
    int64_t top = tops[lane] - 1;
    int64_t from = top < 0 ? 0 : start_ns[top];
    for (; top >= 0; top = parent[top]) {
      self_ns[top] += end_ns[top] - from;
      from = end_ns[top];
    }
  }
  free(tops);
  return outcome;
}

// The first three columns of those that take spans.
static Spans spans_of(const Buffers *buffers) {
  return (Spans){
      .rows = buffers->views[0].shape[0],
      .lane = buffers->views[0].buf,
      .start_ns = buffers->views[1].buf,
      .end_ns = buffers->views[2].buf,
  };
}

static const Column kNestColumns[kColumns] = {
    {"lane", 4, kRead, true},    {"start_ns", 8, kRead, true}, {"end_ns", 8, kRead, true},
    {"parent", 8, kWrite, true}, {"self_ns", 8, kWrite, true},
};

static PyObject *nest(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  Buffers buffers;
  if (!acquire("nest", kNestColumns, kColumns, args, nargs, &buffers)) {
    return NULL;
  }
  Spans spans = spans_of(&buffers);
  PyThreadState *state = PyEval_SaveThread();
  Outcome outcome = nest_rows(&spans, buffers.views[3].buf, buffers.views[4].buf);
  PyEval_RestoreThread(state);
  release(&buffers);
  return conclude("nest", outcome);
}

PyDoc_STRVAR(nest_doc,
             "nest(lane, start_ns, end_ns, parent, self_ns, /)\n--\n\n"
             "Write each row's parent row (-1: none) and self time.");

// ---- cover ---------------------------------------------------------------------------------

// Row numbers by lane, each lane's in table order (a counting sort).
static bool order_by_lane(const Spans *spans, int64_t *order) {
  int64_t *next = calloc((size_t)spans->lanes + 1, sizeof *next);
  if (next == NULL) {
    return false;
  }
  for (Py_ssize_t i = 0; i < spans->rows; i++) {
    next[(Py_ssize_t)spans->lane[i] + 1]++;
  }
  for (Py_ssize_t lane = 1; lane < spans->lanes; lane++) {
    next[lane] += next[lane - 1];
  }
  for (Py_ssize_t i = 0; i < spans->rows; i++) {
    order[next[spans->lane[i]]++] = i;
  }
  free(next);
  return true;
}

// How far a name has been counted in the lane at hand. Going lane by lane keeps this at one per
// name; interleaved lanes would need one per (name, lane), which has no useful bound.
typedef struct {
  int64_t lane;  // lane + 1; 0: not met yet
  int64_t until_ns;
} Frontier;

static Outcome cover_rows(Spans *spans, const int32_t *name, int64_t *covered_ns,
                          Py_ssize_t names) {
  Outcome checked = check_spans(spans);
  if (checked.fault != kFine) {
    return checked;
  }
  for (Py_ssize_t i = 0; i < spans->rows; i++) {
    if (name[i] < 0 || name[i] >= names) {
      return (Outcome){name[i] < 0 ? kNegativeName : kNameTooLarge, i};
    }
  }
  memset(covered_ns, 0, (size_t)names * sizeof *covered_ns);
  if (spans->rows == 0) {
    return kDone;
  }
  int64_t *order = malloc((size_t)spans->rows * sizeof *order);
  Frontier *frontiers = calloc((size_t)names, sizeof *frontiers);
  bool ready = order != NULL && frontiers != NULL && order_by_lane(spans, order);
  for (Py_ssize_t k = 0; ready && k < spans->rows; k++) {
    int64_t i = order[k];
    int64_t lane = (int64_t)spans->lane[i] + 1;
    int64_t from = spans->start_ns[i];
    Frontier *frontier = &frontiers[name[i]];
    if (frontier->lane == lane && frontier->until_ns > from) {
      from = frontier->until_ns;
    }
    if (frontier->lane != lane || spans->end_ns[i] > from) {
      // Unsigned: lanes that together last longer than int64 can say wrap, without UB.
      uint64_t part_ns = (uint64_t)spans->end_ns[i] - (uint64_t)from;
      covered_ns[name[i]] = (int64_t)((uint64_t)covered_ns[name[i]] + part_ns);
      *frontier = (Frontier){lane, spans->end_ns[i]};
    }
  }
  free(order);
  free(frontiers);
  return ready ? kDone : (Outcome){kNoMemory, 0};
}

static const Column kCoverColumns[kColumns] = {
    {"lane", 4, kRead, true}, {"start_ns", 8, kRead, true},     {"end_ns", 8, kRead, true},
    {"name", 4, kRead, true}, {"covered_ns", 8, kWrite, false},
};

static PyObject *cover(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  Buffers buffers;
  if (!acquire("cover", kCoverColumns, kColumns, args, nargs, &buffers)) {
    return NULL;
  }
  Spans spans = spans_of(&buffers);
  PyThreadState *state = PyEval_SaveThread();
  Outcome outcome =
      cover_rows(&spans, buffers.views[3].buf, buffers.views[4].buf, buffers.views[4].shape[0]);
  PyEval_RestoreThread(state);
  release(&buffers);
  return conclude("cover", outcome);
}

PyDoc_STRVAR(cover_doc,
             "cover(lane, start_ns, end_ns, name, covered_ns, /)\n--\n\n"
             "Write, per name, the time in which a span of that name is open, lane by lane.");

// ---- paths ---------------------------------------------------------------------------------

// Open addressing, never more than half full; grows with the paths that are met.
typedef struct {
  int64_t *places;  // path + 1; 0: free
  uint64_t mask;
  int64_t *above;
  int32_t *last;
  int64_t count;
} Paths;

static uint64_t find_path(const Paths *paths, int64_t above, int32_t last) {
  uint64_t place = ((uint64_t)above * 0x9e3779b97f4a7c15u + (uint32_t)last) * 0xff51afd7ed558ccdu;
  for (place >>= 20;; place++) {
    int64_t path = paths->places[place & paths->mask] - 1;
    if (path < 0 || (paths->above[path] == above && paths->last[path] == last)) {
      return place & paths->mask;
    }
  }
}

static bool grow_paths(Paths *paths) {
  uint64_t size = paths->places ? (paths->mask + 1) * 2 : 1024;
  int64_t *places = calloc(size, sizeof *places);
  if (places == NULL) {
    return false;
  }
  free(paths->places);
  paths->places = places;
  paths->mask = size - 1;
  for (int64_t path = 0; path < paths->count; path++) {
    paths->places[find_path(paths, paths->above[path], paths->last[path])] = path + 1;
  }
  return true;
}

static Outcome number_rows(Py_ssize_t rows, const int64_t *parent, const int32_t *code,
                           int64_t *path, Paths *paths) {
  for (Py_ssize_t i = 0; i < rows; i++) {
    if (code[i] < 0) {
      return (Outcome){kNegativeName, i};
    }
    if (parent[i] >= i) {
      return (Outcome){kParentBelow, i};
    }
    if (paths->places == NULL || (uint64_t)paths->count * 2 > paths->mask) {
      if (!grow_paths(paths)) {
        return (Outcome){kNoMemory, 0};
      }
    }
    int64_t above = parent[i] < 0 ? -1 : path[parent[i]];
    uint64_t place = find_path(paths, above, code[i]);
    if (paths->places[place] == 0) {
      paths->above[paths->count] = above;
      paths->last[paths->count] = code[i];
      paths->places[place] = ++paths->count;
    }
    path[i] = paths->places[place] - 1;
  }
  return kDone;
}

static const Column kPathColumns[kColumns] = {
    {"parent", 8, kRead, true}, {"code", 4, kRead, true},  {"path", 8, kWrite, true},
    {"above", 8, kWrite, true}, {"last", 4, kWrite, true},
};

static PyObject *number_paths(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  Buffers buffers;
  if (!acquire("number_paths", kPathColumns, kColumns, args, nargs, &buffers)) {
    return NULL;
  }
  Paths paths = {.above = buffers.views[3].buf, .last = buffers.views[4].buf};
  PyThreadState *state = PyEval_SaveThread();
  Outcome outcome = number_rows(buffers.views[0].shape[0], buffers.views[0].buf,
                                buffers.views[1].buf, buffers.views[2].buf, &paths);
  free(paths.places);
  PyEval_RestoreThread(state);
  release(&buffers);
  return conclude("number_paths", outcome);
}

PyDoc_STRVAR(number_paths_doc,
             "number_paths(parent, code, path, above, last, /)\n--\n\n"
             "Write each row's path, the codes from its outermost row to itself, as a number; and "
             "for each such number that of the path above and the last code.");

// ---- innermost -----------------------------------------------------------------------------

// A row that has found nothing takes what its parent has found, which stands above it.
static Outcome look_up(Py_ssize_t rows, const int64_t *parent, int64_t *found) {
  for (Py_ssize_t i = 0; i < rows; i++) {
    if (parent[i] >= i) {
      return (Outcome){kParentBelow, i};
    }
    if (found[i] < 0 && parent[i] >= 0) {
      found[i] = found[parent[i]];
    }
  }
  return kDone;
}

static const Column kAncestorColumns[] = {{"parent", 8, kRead, true}, {"found", 8, kWrite, true}};

static PyObject *innermost(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  Buffers buffers;
  if (!acquire("innermost", kAncestorColumns, 2, args, nargs, &buffers)) {
    return NULL;
  }
  PyThreadState *state = PyEval_SaveThread();
  Outcome outcome = look_up(buffers.views[0].shape[0], buffers.views[0].buf, buffers.views[1].buf);
  PyEval_RestoreThread(state);
  release(&buffers);
  return conclude("innermost", outcome);
}

PyDoc_STRVAR(innermost_doc,
             "innermost(parent, found, /)\n--\n\n"
             "Give each row in which `found` is negative what the nearest row around it has.");

// ---- module --------------------------------------------------------------------------------

// Cast twice, as METH_FASTCALL takes another signature than PyCFunction says.
static PyMethodDef kMethods[] = {
    {"nest", (PyCFunction)(void (*)(void))nest, METH_FASTCALL, nest_doc},
    {"cover", (PyCFunction)(void (*)(void))cover, METH_FASTCALL, cover_doc},
    {"number_paths", (PyCFunction)(void (*)(void))number_paths, METH_FASTCALL, number_paths_doc},
    {"innermost", (PyCFunction)(void (*)(void))innermost, METH_FASTCALL, innermost_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef kModule = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_kernels",
    .m_doc = "Hot loops over span columns; the Python twin is strobe.model._nesting_python.",
    .m_size = 0,
    .m_methods = kMethods,
    .m_slots = kStatelessSlots,
};

PyMODINIT_FUNC PyInit__kernels(void) {
  return PyModuleDef_Init(&kModule);
}
