// SPDX-License-Identifier: Apache-2.0
// Rows of pieces -> events of Chrome's JSON.
#include "writers.h"

#include "buffers.h"

static const char kDigits[] =
    "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546"
    "4748495051525354555657585960616263646566676869707172737475767778798081828384858687888990919293"
    "949596979899";

enum { kMicrosecondsSize = 22 };  // of the longest one, -9223372036854775.808, and room to spare

// Nanoseconds as microseconds with three decimals: exact, and a JSON number.
static inline char *put_microseconds(char *out, int64_t ns) {
  uint64_t rest = (uint64_t)ns;
  if (ns < 0) {
    *out++ = '-';
    rest = 0 - rest;
  }
  uint64_t whole = rest / 1000;
  uint32_t decimals = (uint32_t)(rest - whole * 1000);
  char text[20];
  char *first = text + sizeof text;
  while (whole >= 100) {
    uint64_t hundreds = whole / 100;
    first -= 2;
    memcpy(first, kDigits + 2 * (whole - hundreds * 100), 2);
    whole = hundreds;
  }
  if (whole >= 10) {
    first -= 2;
    memcpy(first, kDigits + 2 * whole, 2);
  } else {
    *--first = (char)('0' + whole);
  }
  out = put(out, first, (size_t)(text + sizeof text - first));
  *out++ = '.';
  *out++ = (char)('0' + decimals / 100);
  return put(out, kDigits + 2 * (decimals % 100), 2);
}

typedef struct {
  Py_ssize_t rows;
  const int32_t *head;
  Pieces heads;
  const int64_t *start_ns;
  const int64_t *dur_ns;  // NULL: the events have no duration
  Piece between;          // the two times
  const int32_t *track;
  Pieces tracks;
  Pieces arguments;  // one per row, "" for none; no pieces at all: no row has any
} ChromeRows;

// HEAD ts [BETWEEN dur] TRACK [,"args": ARGUMENTS] },\n
static Progress put_chrome_rows(const ChromeRows *rows, Py_ssize_t first, char *out,
                                Py_ssize_t size) {
  enum { kGlue = 2 * kMicrosecondsSize + sizeof(",\"args\":},\n") };
  char *at = out;
  for (Py_ssize_t i = first; i < rows->rows; i++) {
    Piece head;
    Piece track;
    Piece arguments = {NULL, 0};
    if (!take_piece(&rows->heads, rows->head[i], &head) ||
        !take_piece(&rows->tracks, rows->track[i], &track) ||
        (rows->arguments.count > 0 && !take_piece(&rows->arguments, i, &arguments))) {
      return (Progress){i, 0, true};
    }
    if ((size_t)(size - (at - out)) <
        head.size + rows->between.size + track.size + arguments.size + kGlue) {
      return (Progress){i, at - out, false};
    }
    at = put(at, head.bytes, head.size);
    at = put_microseconds(at, rows->start_ns[i]);
    if (rows->dur_ns != NULL) {
      at = put(at, rows->between.bytes, rows->between.size);
      at = put_microseconds(at, rows->dur_ns[i]);
    }
    at = put(at, track.bytes, track.size);
    if (arguments.size > 0) {
      at = PUT_TEXT(at, ",\"args\":");
      at = put(at, arguments.bytes, arguments.size);
    }
    at = PUT_TEXT(at, "},\n");
  }
  return (Progress){rows->rows, at - out, false};
}

PyObject *chrome_events(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  static const Argument kArguments[] = {
      {"out", kOut},        {"head", kInt32},      {"heads", kBytes},     {"heads_at", kInt64},
      {"start_ns", kInt64}, {"dur_ns", kInt64},    {"between", kBytes},   {"track", kInt32},
      {"tracks", kBytes},   {"tracks_at", kInt64}, {"arguments", kBytes}, {"arguments_at", kInt64},
  };
  enum { kCount = sizeof kArguments / sizeof *kArguments };
  Buffers buffers;
  if (!check_count("chrome_events", nargs, kCount + 1)) {
    return NULL;
  }
  Py_ssize_t first = PyLong_AsSsize_t(args[kCount]);
  if (first == -1 && PyErr_Occurred()) {
    return NULL;
  }
  if (!acquire_buffers("chrome_events", kArguments, kCount, args, &buffers)) {
    return NULL;
  }
  Py_buffer *views = buffers.views;
  ChromeRows rows = {
      .rows = views[1].shape[0],
      .head = views[1].buf,
      .heads = pieces_of(&views[2], &views[3]),
      .start_ns = views[4].buf,
      .dur_ns = views[5].shape[0] > 0 ? views[5].buf : NULL,
      .between = {views[6].buf, (size_t)views[6].len},
      .track = views[7].buf,
      .tracks = pieces_of(&views[8], &views[9]),
      .arguments = pieces_of(&views[10], &views[11]),
  };
  if (!check_rows("chrome_events", "start_ns", views[4].shape[0], rows.rows) ||
      !check_rows("chrome_events", "track", views[7].shape[0], rows.rows) ||
      (rows.dur_ns && !check_rows("chrome_events", "dur_ns", views[5].shape[0], rows.rows)) ||
      (rows.arguments.count > 0 &&
       !check_rows("chrome_events", "arguments_at", rows.arguments.count, rows.rows))) {
    release_buffers(&buffers);
    return NULL;
  }
  PyThreadState *state = PyEval_SaveThread();
  Progress done = put_chrome_rows(&rows, first < 0 ? 0 : first, views[0].buf, views[0].len);
  PyEval_RestoreThread(state);
  release_buffers(&buffers);
  return conclude("chrome_events", done);
}
