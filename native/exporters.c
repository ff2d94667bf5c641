// SPDX-License-Identifier: Apache-2.0
//
// Hot loops of strobe.exporters: rows of pieces -> the bytes of a foreign format. Knows how an event
// is glued together, not what its pieces say: those come ready, each distinct one once.
// The Python twin is src/strobe/exporters/_writers_python.py.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { kMaxBuffers = 12 };

typedef enum { kBytes, kOut, kInt32, kInt64, kOut32, kOut64 } Kind;

typedef struct {
  const char *name;
  Kind kind;
} Argument;

typedef struct {
  Py_buffer views[kMaxBuffers];
  int held;
} Buffers;

// One of the pieces that rows choose from: number i lies in bytes[at[i]] to bytes[at[i + 1]].
typedef struct {
  const char *bytes;
  Py_ssize_t size;
  const int64_t *at;
  Py_ssize_t count;
} Pieces;

typedef struct {
  const char *bytes;
  size_t size;
} Piece;

// Where a span begins (row: its number in the batch) or ends (row: -1), 16 bytes
//   0         8      12      16
//   | time_ns | row  | track |
typedef struct {
  int64_t time_ns;
  int32_t row;
  int32_t track;
} Turn;

_Static_assert(sizeof(Turn) == 16, "the Python twin reads turns by these offsets");

// ---- arguments -----------------------------------------------------------------------------

static void release(Buffers *buffers) {
  while (buffers->held > 0) {
    PyBuffer_Release(&buffers->views[--buffers->held]);
  }
}

static bool has_kind(const Py_buffer *view, Kind kind) {
  const char *format = view->format ? view->format : "B";
  // '<' is foreign on a big-endian machine; numpy writes native int64 as "l" or "q" without it.
  if (*format == '@' || *format == '=') {
    format++;
  }
  if (view->ndim != 1 || strlen(format) != 1) {
    return false;
  }
  if (kind == kBytes || kind == kOut) {
    return view->itemsize == 1;
  }
  bool narrow = kind == kInt32 || kind == kOut32;
  return view->itemsize == (narrow ? 4 : 8) && strchr("ilq", *format) != NULL;
}

static bool acquire(const char *function, const Argument *expected, int count,
                    PyObject *const *args, Buffers *buffers) {
  static const char *const kNames[] = {"bytes", "writable bytes", "int32",
                                       "int64", "writable int32", "writable int64"};
  buffers->held = 0;
  for (int i = 0; i < count; i++) {
    Kind kind = expected[i].kind;
    int flags = PyBUF_ND | PyBUF_FORMAT | (kind == kOut || kind >= kOut32 ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(args[i], &buffers->views[i], flags) < 0) {
      release(buffers);
      return false;
    }
    buffers->held++;
    if (!has_kind(&buffers->views[i], kind)) {
      PyErr_Format(PyExc_ValueError, "%s(%s=...): %s must be a one-dimensional buffer of %s",
                   function, expected[i].name, expected[i].name, kNames[kind]);
      release(buffers);
      return false;
    }
  }
  return true;
}

static Pieces pieces_of(const Py_buffer *bytes, const Py_buffer *at) {
  Py_ssize_t offsets = at->shape[0];
  return (Pieces){bytes->buf, bytes->len, at->buf, offsets > 0 ? offsets - 1 : 0};
}

// Fills in piece number i; false if there is none or it lies outside of the bytes.
static inline bool take_piece(const Pieces *pieces, int64_t i, Piece *piece) {
  if (i < 0 || i >= pieces->count) {
    return false;
  }
  int64_t from = pieces->at[i];
  int64_t to = pieces->at[i + 1];
  if (from < 0 || to < from || to > pieces->size) {
    return false;
  }
  *piece = (Piece){pieces->bytes + from, (size_t)(to - from)};
  return true;
}

// memcpy for pieces that are mostly short: a call would take longer than the copy. Two moves that
// overlap cover every size in their range.
static inline char *put(char *out, const char *bytes, size_t size) {
  if (size > 32) {
    memcpy(out, bytes, size);
  } else if (size >= 16) {
    memcpy(out, bytes, 16);
    memcpy(out + size - 16, bytes + size - 16, 16);
  } else if (size >= 8) {
    memcpy(out, bytes, 8);
    memcpy(out + size - 8, bytes + size - 8, 8);
  } else if (size >= 4) {
    memcpy(out, bytes, 4);
    memcpy(out + size - 4, bytes + size - 4, 4);
  } else if (size > 0) {
    out[0] = bytes[0];
    out[size / 2] = bytes[size / 2];
    out[size - 1] = bytes[size - 1];
  }
  return out + size;
}

#define PUT_TEXT(out, text) put(out, text, sizeof(text) - 1)

// A row that could not be written for lack of room ends a call; one that is wrong is an error.
typedef struct {
  Py_ssize_t next;
  Py_ssize_t used;
  bool wrong;
} Progress;

static PyObject *conclude(const char *function, Progress done) {
  if (done.wrong) {
    return PyErr_Format(PyExc_ValueError, "%s(): row %zd names a piece that does not exist",
                        function, done.next);
  }
  return Py_BuildValue("nn", done.next, done.used);
}

static bool check_rows(const char *function, const char *name, Py_ssize_t given, Py_ssize_t rows) {
  if (given != rows) {
    PyErr_Format(PyExc_ValueError, "%s(%s=...): %s has %zd rows, not %zd", function, name, name,
                 given, rows);
    return false;
  }
  return true;
}

static bool check_count(const char *function, Py_ssize_t given, Py_ssize_t expected) {
  if (given != expected) {
    PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, %zd were given", function, expected,
                 given);
    return false;
  }
  return true;
}

// ---- Chrome JSON ---------------------------------------------------------------------------

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
  const int32_t *track;
  Pieces tracks;
  Pieces arguments;  // one per row, "" for none; no pieces at all: no row has any
} ChromeRows;

// HEAD ts [,"dur": dur] TRACK [,"args": ARGUMENTS] },\n
static Progress put_chrome_rows(const ChromeRows *rows, Py_ssize_t first, char *out,
                                Py_ssize_t size) {
  enum { kGlue = 2 * kMicrosecondsSize + sizeof(",\"dur\":,\"args\":},\n") };
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
    if ((size_t)(size - (at - out)) < head.size + track.size + arguments.size + kGlue) {
      return (Progress){i, at - out, false};
    }
    at = put(at, head.bytes, head.size);
    at = put_microseconds(at, rows->start_ns[i]);
    if (rows->dur_ns != NULL) {
      at = PUT_TEXT(at, ",\"dur\":");
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

static PyObject *chrome_events(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  static const Argument kArguments[] = {
      {"out", kOut},         {"head", kInt32},      {"heads", kBytes},        {"heads_at", kInt64},
      {"start_ns", kInt64},  {"dur_ns", kInt64},    {"track", kInt32},        {"tracks", kBytes},
      {"tracks_at", kInt64}, {"arguments", kBytes}, {"arguments_at", kInt64},
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
  if (!acquire("chrome_events", kArguments, kCount, args, &buffers)) {
    return NULL;
  }
  Py_buffer *views = buffers.views;
  ChromeRows rows = {
      .rows = views[1].shape[0],
      .head = views[1].buf,
      .heads = pieces_of(&views[2], &views[3]),
      .start_ns = views[4].buf,
      .dur_ns = views[5].shape[0] > 0 ? views[5].buf : NULL,
      .track = views[6].buf,
      .tracks = pieces_of(&views[7], &views[8]),
      .arguments = pieces_of(&views[9], &views[10]),
  };
  if (!check_rows("chrome_events", "start_ns", views[4].shape[0], rows.rows) ||
      !check_rows("chrome_events", "track", views[6].shape[0], rows.rows) ||
      (rows.dur_ns && !check_rows("chrome_events", "dur_ns", views[5].shape[0], rows.rows)) ||
      (rows.arguments.count > 0 &&
       !check_rows("chrome_events", "arguments_at", rows.arguments.count, rows.rows))) {
    release(&buffers);
    return NULL;
  }
  PyThreadState *state = PyEval_SaveThread();
  Progress done = put_chrome_rows(&rows, first < 0 ? 0 : first, views[0].buf, views[0].len);
  PyEval_RestoreThread(state);
  release(&buffers);
  return conclude("chrome_events", done);
}

PyDoc_STRVAR(
    chrome_events_doc,
    "chrome_events(out, head, heads, heads_at, start_ns, dur_ns, track, tracks, tracks_at, "
    "arguments, arguments_at, first, /)\n--\n\n"
    "Write rows from `first` on while they fit; return the next row and the bytes used.");

// ---- Perfetto packets ----------------------------------------------------------------------

enum { kVarintSize = 10 };  // of the longest one

static inline size_t varint_size(uint64_t value) {
  size_t bits = 64 - (size_t)__builtin_clzll(value | 1);
  return (bits + 6) / 7;
}

static inline char *put_varint(char *out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    *out++ = (char)(value | 0x80);
  }
  *out++ = (char)value;
  return out;
}

typedef struct {
  Py_ssize_t count;
  const char *turns;
  Py_ssize_t rows;
  const int32_t *head;  // of a row; heads 0 is that of an end
  Pieces heads;
  Pieces tracks;
  Pieces bodies;  // one per row; no pieces at all: no row has any
  Piece tail;     // what follows the event in each packet
} PerfettoRows;

// Trace.packet (1) = { timestamp (8), track_event (11) = { HEAD TRACK BODY }, TAIL }
//
//   0a size  40 time  5a size HEAD TRACK BODY  TAIL
static Progress put_packets(const PerfettoRows *rows, Py_ssize_t first, char *out,
                            Py_ssize_t size) {
  enum { kGlue = 3 + 3 * kVarintSize };
  char *at = out;
  for (Py_ssize_t i = first; i < rows->count; i++) {
    Turn turn;
    memcpy(&turn, rows->turns + i * (Py_ssize_t)sizeof turn, sizeof turn);  // of any alignment
    Piece head;
    Piece track;
    Piece body = {NULL, 0};
    if (turn.row < -1 || turn.row >= rows->rows ||
        !take_piece(&rows->heads, turn.row < 0 ? 0 : rows->head[turn.row], &head) ||
        !take_piece(&rows->tracks, turn.track, &track) ||
        (turn.row >= 0 && rows->bodies.count > 0 && !take_piece(&rows->bodies, turn.row, &body))) {
      return (Progress){i, 0, true};
    }
    size_t event_size = head.size + track.size + body.size;
    if ((size_t)(size - (at - out)) < event_size + rows->tail.size + kGlue) {
      return (Progress){i, at - out, false};
    }
    uint64_t time_ns = (uint64_t)turn.time_ns;
    *at++ = 0x0a;
    at = put_varint(
        at, 2 + varint_size(time_ns) + varint_size(event_size) + event_size + rows->tail.size);
    *at++ = 0x40;
    at = put_varint(at, time_ns);
    *at++ = 0x5a;
    at = put_varint(at, event_size);
    at = put(at, head.bytes, head.size);
    at = put(at, track.bytes, track.size);
    if (body.size > 0) {
      at = put(at, body.bytes, body.size);
    }
    at = put(at, rows->tail.bytes, rows->tail.size);
  }
  return (Progress){rows->count, at - out, false};
}

static PyObject *perfetto_packets(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  static const Argument kArguments[] = {
      {"out", kOut},         {"turns", kBytes},  {"head", kInt32},      {"heads", kBytes},
      {"heads_at", kInt64},  {"tracks", kBytes}, {"tracks_at", kInt64}, {"bodies", kBytes},
      {"bodies_at", kInt64}, {"tail", kBytes},
  };
  enum { kCount = sizeof kArguments / sizeof *kArguments };
  Buffers buffers;
  if (!check_count("perfetto_packets", nargs, kCount + 1)) {
    return NULL;
  }
  Py_ssize_t first = PyLong_AsSsize_t(args[kCount]);
  if (first == -1 && PyErr_Occurred()) {
    return NULL;
  }
  if (!acquire("perfetto_packets", kArguments, kCount, args, &buffers)) {
    return NULL;
  }
  Py_buffer *views = buffers.views;
  PerfettoRows rows = {
      .count = views[1].len / (Py_ssize_t)sizeof(Turn),
      .turns = views[1].buf,
      .rows = views[2].shape[0],
      .head = views[2].buf,
      .heads = pieces_of(&views[3], &views[4]),
      .tracks = pieces_of(&views[5], &views[6]),
      .bodies = pieces_of(&views[7], &views[8]),
      .tail = {views[9].buf, (size_t)views[9].len},
  };
  if (rows.bodies.count > 0 &&
      !check_rows("perfetto_packets", "bodies_at", rows.bodies.count, rows.rows)) {
    release(&buffers);
    return NULL;
  }
  PyThreadState *state = PyEval_SaveThread();
  Progress done = put_packets(&rows, first < 0 ? 0 : first, views[0].buf, views[0].len);
  PyEval_RestoreThread(state);
  release(&buffers);
  return conclude("perfetto_packets", done);
}

PyDoc_STRVAR(
    perfetto_packets_doc,
    "perfetto_packets(out, turns, head, heads, heads_at, tracks, tracks_at, bodies, "
    "bodies_at, tail, first, /)\n--\n\n"
    "Write turns from `first` on while they fit; return the next turn and the bytes used.");

// ---- Perfetto annotations ------------------------------------------------------------------

// Bytes that grow. After a failed allocation nothing is added and `failed` stays.
typedef struct {
  char *bytes;
  size_t size;
  size_t room;
  bool failed;
} Output;

static bool reserve(Output *out, size_t more) {
  if (out->failed) {
    return false;
  }
  if (out->room - out->size < more) {
    size_t room = out->room + out->room / 2 + more;
    char *bytes = realloc(out->bytes, room);
    if (bytes == NULL) {
      out->failed = true;
      return false;
    }
    out->bytes = bytes;
    out->room = room;
  }
  return true;
}

static void add(Output *out, const void *bytes, size_t size) {
  if (size > 0 && reserve(out, size)) {
    memcpy(out->bytes + out->size, bytes, size);
    out->size += size;
  }
}

static void add_byte(Output *out, unsigned char byte) {
  add(out, &byte, 1);
}

static void add_varint(Output *out, uint64_t value) {
  if (reserve(out, kVarintSize)) {
    out->size = (size_t)(put_varint(out->bytes + out->size, value) - out->bytes);
  }
}

// Puts the size of what was added since `from` in front of it.
static void close_message(Output *out, size_t from) {
  size_t size = out->size - from;
  size_t prefix = varint_size(size);
  if (reserve(out, prefix)) {
    memmove(out->bytes + from + prefix, out->bytes + from, size);
    put_varint(out->bytes + from, size);
    out->size += prefix;
  }
}

// JSON as our recorder writes it; anything that reads as JSON will do.
typedef struct {
  const char *at;
  const char *end;
} Reader;

enum { kMaxDepth = 32, kMaxNumber = 63 };
// Fields of DebugAnnotation, with their wire types.
enum {
  kBoolValue = 2 << 3,
  kIntValue = 4 << 3,
  kDoubleValue = 5 << 3 | 1,
  kStringValue = 6 << 3 | 2,
  kName = 10 << 3 | 2,
  kDictEntries = 11 << 3 | 2,
  kArrayValues = 12 << 3 | 2,
  kDebugAnnotations = 4 << 3 | 2,  // of TrackEvent
};

static void skip_space(Reader *in) {
  while (in->at < in->end && strchr(" \t\n\r", *in->at) != NULL && *in->at != '\0') {
    in->at++;
  }
}

static bool skip(Reader *in, char expected) {
  skip_space(in);
  if (in->at >= in->end || *in->at != expected) {
    return false;
  }
  in->at++;
  return true;
}

static bool read_unit(Reader *in, uint32_t *unit) {
  *unit = 0;
  if (in->end - in->at < 4) {
    return false;
  }
  for (int i = 0; i < 4; i++) {
    char c = *in->at++;
    uint32_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = (uint32_t)(c - '0');
    } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
      digit = (uint32_t)((c | 0x20) - 'a') + 10;
    } else {
      return false;
    }
    *unit = *unit << 4 | digit;
  }
  return true;
}

static void add_character(Output *out, uint32_t c) {
  char utf8[8];
  size_t size = 0;
  if (c < 0x80) {
    utf8[size++] = (char)c;
  } else if (c < 0x800) {
    utf8[size++] = (char)(0xc0 | c >> 6);
    utf8[size++] = (char)(0x80 | (c & 0x3f));
  } else if (c >= 0xd800 && c < 0xe000) {
    // A lone surrogate has no UTF-8: it is written out, as everywhere in our tables.
    static const char kHex[] = "0123456789abcdef";
    utf8[size++] = '\\';
    utf8[size++] = 'u';
    for (int shift = 12; shift >= 0; shift -= 4) {
      utf8[size++] = kHex[c >> shift & 15];
    }
  } else if (c < 0x10000) {
    utf8[size++] = (char)(0xe0 | c >> 12);
    utf8[size++] = (char)(0x80 | (c >> 6 & 0x3f));
    utf8[size++] = (char)(0x80 | (c & 0x3f));
  } else {
    utf8[size++] = (char)(0xf0 | c >> 18);
    utf8[size++] = (char)(0x80 | (c >> 12 & 0x3f));
    utf8[size++] = (char)(0x80 | (c >> 6 & 0x3f));
    utf8[size++] = (char)(0x80 | (c & 0x3f));
  }
  add(out, utf8, size);
}

// What follows a backslash.
static bool read_escape(Reader *in, Output *out) {
  if (in->at >= in->end) {
    return false;
  }
  char c = *in->at++;
  if (c == 'u') {
    uint32_t unit;
    if (!read_unit(in, &unit)) {
      return false;
    }
    Reader ahead = *in;
    uint32_t low;
    if (unit >= 0xd800 && unit < 0xdc00 && ahead.end - ahead.at >= 6 && *ahead.at++ == '\\' &&
        *ahead.at++ == 'u' && read_unit(&ahead, &low) && low >= 0xdc00 && low < 0xe000) {
      unit = 0x10000 + ((unit - 0xd800) << 10 | (low - 0xdc00));
      *in = ahead;
    }
    add_character(out, unit);
    return true;
  }
  static const char kEscapes[] = "\"\\/bfnrt";
  static const char kMeanings[] = "\"\\/\b\f\n\r\t";
  const char *found = c ? strchr(kEscapes, c) : NULL;
  if (found == NULL) {
    return false;
  }
  add_byte(out, (unsigned char)kMeanings[found - kEscapes]);
  return true;
}

// The string's text with its size before it; `in` stands at the opening quote.
static bool read_string(Reader *in, Output *out) {
  size_t from = out->size;
  in->at++;
  while (in->at < in->end && *in->at != '"') {
    const char *plain = in->at;
    while (in->at < in->end && *in->at != '"' && *in->at != '\\') {
      in->at++;
    }
    add(out, plain, (size_t)(in->at - plain));
    if (in->at < in->end && *in->at == '\\') {
      in->at++;
      if (!read_escape(in, out)) {
        return false;
      }
    }
  }
  if (in->at >= in->end) {
    return false;
  }
  in->at++;
  close_message(out, from);
  return true;
}

static void add_text(Output *out, const char *text, size_t size) {
  add_byte(out, kStringValue);
  add_varint(out, size);
  add(out, text, size);
}

static bool read_integer(const char *text, size_t size, int64_t *value) {
  bool negative = size > 0 && *text == '-';
  size_t i = negative ? 1 : 0;
  uint64_t limit = (uint64_t)INT64_MAX + (negative ? 1 : 0);
  uint64_t sum = 0;
  for (; i < size; i++) {
    uint64_t digit = (uint64_t)(text[i] - '0');
    if (sum > (limit - digit) / 10) {
      return false;
    }
    sum = sum * 10 + digit;
  }
  *value = (int64_t)(negative ? 0 - sum : sum);
  return true;
}

static bool read_number(Reader *in, Output *out) {
  const char *text = in->at;
  bool whole = true;
  size_t digits = 0;
  while (in->at < in->end && *in->at != '\0' && strchr("+-.0123456789Ee", *in->at) != NULL) {
    bool is_digit = *in->at >= '0' && *in->at <= '9';
    digits += is_digit;
    whole = whole && (is_digit || (*in->at == '-' && in->at == text));
    in->at++;
  }
  size_t size = (size_t)(in->at - text);
  int64_t integer;
  if (whole && digits > 0 && read_integer(text, size, &integer)) {
    add_byte(out, kIntValue);
    add_varint(out, (uint64_t)integer);
    return true;
  }
  if ((whole && digits > 0) || size > kMaxNumber) {
    add_text(out, text, size);
    return size > 0;
  }
  char number[kMaxNumber + 1];
  memcpy(number, text, size);
  number[size] = '\0';
  char *end = number;
  double value = PyOS_string_to_double(number, &end, NULL);
  if (size == 0 || end != number + size) {
    PyErr_Clear();
    return false;
  }
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  add_byte(out, kDoubleValue);
  for (int i = 0; i < 8; i++) {
    add_byte(out, (unsigned char)(bits >> 8 * i));
  }
  return true;
}

static bool read_word(Reader *in, const char *word) {
  size_t size = strlen(word);
  if ((size_t)(in->end - in->at) < size || memcmp(in->at, word, size) != 0) {
    return false;
  }
  in->at += size;
  return true;
}

// Passes over an object or array that is nested too deep to be taken apart.
static bool skip_nested(Reader *in) {
  size_t open = 0;
  while (in->at < in->end) {
    char c = *in->at++;
    if (c == '"') {
      while (in->at < in->end && *in->at != '"') {
        in->at += *in->at == '\\' && in->end - in->at > 1 ? 2 : 1;
      }
      if (in->at >= in->end) {
        return false;
      }
      in->at++;
    } else if (c == '{' || c == '[') {
      open++;
    } else if ((c == '}' || c == ']') && --open == 0) {
      return true;
    }
  }
  return false;
}

static bool read_value(Reader *in, Output *out, int depth);

// The members of an object or the items of an array, each a DebugAnnotation in `field`.
static bool read_members(Reader *in, Output *out, unsigned char field, char close, int depth) {
  in->at++;
  do {
    skip_space(in);
    add_byte(out, field);
    size_t from = out->size;
    if (close == '}') {
      add_byte(out, kName);
      if (in->at >= in->end || *in->at != '"' || !read_string(in, out) || !skip(in, ':')) {
        return false;
      }
      skip_space(in);
    }
    if (!read_value(in, out, depth)) {
      return false;
    }
    close_message(out, from);
  } while (skip(in, ','));
  return skip(in, close);
}

static bool is_empty(const Reader *in, char close) {
  Reader ahead = *in;
  ahead.at++;
  return skip(&ahead, close);
}

static bool read_value(Reader *in, Output *out, int depth) {
  if (in->at >= in->end) {
    return false;
  }
  char c = *in->at;
  if (c == '"') {
    add_byte(out, kStringValue);
    return read_string(in, out);
  }
  if (c == '{' || c == '[') {
    char close = c == '{' ? '}' : ']';
    // An annotation without entries would have no value: such a one is kept as text.
    if (depth < kMaxDepth && !is_empty(in, close)) {
      return read_members(in, out, c == '{' ? kDictEntries : kArrayValues, close, depth + 1);
    }
    const char *text = in->at;
    if (!skip_nested(in)) {
      return false;
    }
    add_text(out, text, (size_t)(in->at - text));
    return true;
  }
  if (c == 't' || c == 'f') {
    add_byte(out, kBoolValue);
    add_byte(out, c == 't');
    return read_word(in, c == 't' ? "true" : "false");
  }
  if (c == 'n') {
    add_text(out, "null", 4);
    return read_word(in, "null");
  }
  return read_number(in, out);
}

static void add_annotations(Output *out, Piece text) {
  if (text.size == 0) {
    return;
  }
  size_t from = out->size;
  Reader in = {text.bytes, text.bytes + text.size};
  skip_space(&in);
  bool read = in.at < in.end && *in.at == '{';
  if (read && is_empty(&in, '}')) {
    in.at++;
    read = skip(&in, '}');
  } else if (read) {
    read = read_members(&in, out, kDebugAnnotations, '}', 1);
  }
  skip_space(&in);
  if (!read || in.at != in.end) {
    out->size = from;
    add_byte(out, kDebugAnnotations);
    from = out->size;
    add(out,
        "\x52\x0a"
        "attributes",
        12);
    add_text(out, text.bytes, text.size);
    close_message(out, from);
  }
}

static PyObject *annotate(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  static const Argument kArguments[] = {{"texts", kBytes}, {"texts_at", kInt64}};
  Buffers buffers;
  if (!check_count("annotate", nargs, 2) || !acquire("annotate", kArguments, 2, args, &buffers)) {
    return NULL;
  }
  Pieces texts = pieces_of(&buffers.views[0], &buffers.views[1]);
  Output out = {NULL, 0, 0, false};
  PyObject *offsets = PyBytes_FromStringAndSize(NULL, (texts.count + 1) * 8);
  PyObject *result = NULL;
  bool wrong = false;
  if (offsets != NULL) {
    int64_t *at = (int64_t *)(void *)PyBytes_AS_STRING(offsets);
    at[0] = 0;
    // With the GIL: a decimal number is made a double by Python's own function.
    for (Py_ssize_t i = 0; i < texts.count && !wrong && !out.failed; i++) {
      Piece text;
      wrong = !take_piece(&texts, i, &text);
      if (!wrong) {
        add_annotations(&out, text);
      }
      at[i + 1] = (int64_t)out.size;
    }
    if (wrong) {
      PyErr_SetString(PyExc_ValueError, "annotate(): texts_at points outside of texts");
    } else if (out.failed) {
      PyErr_NoMemory();
    } else {
      result = Py_BuildValue("y#O", out.size ? out.bytes : "", (Py_ssize_t)out.size, offsets);
    }
  }
  Py_XDECREF(offsets);
  free(out.bytes);
  release(&buffers);
  return result;
}

PyDoc_STRVAR(annotate_doc,
             "annotate(texts, texts_at, /)\n--\n\n"
             "Return JSON objects as the debug_annotations of TrackEvents: bytes and offsets.");

// ---- distinct hashes -----------------------------------------------------------------------

static inline size_t mix(uint64_t hash) {
  return (size_t)((hash ^ hash >> 32) * UINT64_C(0x9e3779b97f4a7c15) >> 32);
}

// Open addressing; the table grows before it is half full. A slot holds a number + 1.
static Py_ssize_t number_rows(const uint64_t *hashes, Py_ssize_t rows, int32_t *code,
                              int64_t *first) {
  size_t mask = 1023;
  int32_t *slots = calloc(mask + 1, sizeof *slots);
  Py_ssize_t count = 0;
  for (Py_ssize_t i = 0; slots != NULL && i < rows; i++) {
    size_t at = mix(hashes[i]) & mask;
    while (slots[at] != 0 && hashes[first[slots[at] - 1]] != hashes[i]) {
      at = (at + 1) & mask;
    }
    if (slots[at] == 0) {
      first[count++] = i;
      slots[at] = (int32_t)count;
      if ((size_t)count * 2 > mask) {
        free(slots);
        mask = mask * 4 + 3;
        slots = calloc(mask + 1, sizeof *slots);
        for (Py_ssize_t k = 0; slots != NULL && k < count; k++) {
          size_t to = mix(hashes[first[k]]) & mask;
          while (slots[to] != 0) {
            to = (to + 1) & mask;
          }
          slots[to] = (int32_t)(k + 1);
        }
      }
      code[i] = (int32_t)(count - 1);
    } else {
      code[i] = slots[at] - 1;
    }
  }
  bool failed = slots == NULL;
  free(slots);
  return failed ? -1 : count;
}

static PyObject *number_hashes(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  static const Argument kArguments[] = {{"hashes", kInt64}, {"code", kOut32}, {"first", kOut64}};
  Buffers buffers;
  if (!check_count("number_hashes", nargs, 3) ||
      !acquire("number_hashes", kArguments, 3, args, &buffers)) {
    return NULL;
  }
  Py_buffer *views = buffers.views;
  Py_ssize_t rows = views[0].shape[0];
  Py_ssize_t count = -1;
  if (rows >= INT32_MAX) {
    PyErr_SetString(PyExc_ValueError, "number_hashes(): too many rows for one call");
  } else if (check_rows("number_hashes", "code", views[1].shape[0], rows) &&
             check_rows("number_hashes", "first", views[2].shape[0], rows)) {
    PyThreadState *state = PyEval_SaveThread();
    count = number_rows(views[0].buf, rows, views[1].buf, views[2].buf);
    PyEval_RestoreThread(state);
    if (count < 0) {
      PyErr_NoMemory();
    }
  }
  release(&buffers);
  return count < 0 ? NULL : PyLong_FromSsize_t(count);
}

PyDoc_STRVAR(
    number_hashes_doc,
    "number_hashes(hashes, code, first, /)\n--\n\n"
    "Number distinct hashes as they come: write each row's number, and each number's first "
    "row; return how many there are.");

// ---- tracks --------------------------------------------------------------------------------

// Ends of the spans that are open on a track, the innermost last: they only shrink.
typedef struct {
  int64_t *ends;
  size_t open;
  size_t room;
  int64_t free_ns;  // when the outermost one ends
} Track;

typedef struct {
  int64_t end_ns;
  int32_t track;
} Span;

// A lane begins with one track and gets another when a span crosses all that are open.
typedef struct {
  Span *spans;  // those that may contain a later row, the latest-started last (see kernels.c)
  size_t open;
  size_t room;
  int32_t *heap;  // its further tracks, the one that is free first on top
  size_t more;
  size_t heap_room;
  int32_t first;  // its first track + 1; 0: none yet
} Lane;

// clang-format off
typedef struct {
  PyObject_HEAD
  Lane *lanes;
  size_t lane_count;
  Track *tracks;
  size_t track_count;
  size_t track_room;
  Turn *turns;
  size_t turn_count;
  size_t turn_room;
  bool wants_turns;
} Tracks;
// clang-format on

enum { kMaxAncestors = 8, kMaxLane = 1 << 28 };

static bool grow(void *array, size_t *room, size_t needed, size_t item) {
  if (needed <= *room) {
    return true;
  }
  size_t wanted = *room * 2 > needed ? *room * 2 : needed + 3;
  void *old;
  memcpy(&old, array, sizeof old);
  void *bigger = realloc(old, wanted * item);
  if (bigger == NULL) {
    return false;
  }
  memcpy(array, &bigger, sizeof bigger);
  *room = wanted;
  return true;
}

static bool add_turn(Tracks *self, int64_t time_ns, int64_t row, int32_t track) {
  if (!self->wants_turns) {
    return true;
  }
  if (!grow(&self->turns, &self->turn_room, self->turn_count + 1, sizeof *self->turns)) {
    return false;
  }
  self->turns[self->turn_count++] = (Turn){time_ns, (int32_t)row, track};
  return true;
}

// Ends what is over when a span from start_ns to end_ns begins. One without duration at the very
// end of another belongs into it, as its parent is that one.
static bool end_before(Tracks *self, int32_t number, int64_t start_ns, int64_t end_ns) {
  Track *track = &self->tracks[number];
  while (track->open > 0) {
    int64_t last_ns = track->ends[track->open - 1];
    if (last_ns > start_ns || (last_ns == start_ns && end_ns == start_ns)) {
      break;
    }
    track->open--;
    if (!add_turn(self, last_ns, -1, number)) {
      return false;
    }
  }
  return true;
}

static bool fits(const Tracks *self, int32_t number, int64_t end_ns) {
  const Track *track = &self->tracks[number];
  return track->open == 0 || track->ends[track->open - 1] >= end_ns;
}

// Which of two tracks is free first; the older one where both are.
static bool frees_before(const Tracks *self, int32_t a, int32_t b) {
  int64_t a_ns = self->tracks[a].free_ns;
  int64_t b_ns = self->tracks[b].free_ns;
  return a_ns < b_ns || (a_ns == b_ns && a < b);
}

static void sift_down(const Tracks *self, int32_t *heap, size_t count) {
  for (size_t i = 0;;) {
    size_t child = 2 * i + 1;
    if (child >= count) {
      return;
    }
    if (child + 1 < count && frees_before(self, heap[child + 1], heap[child])) {
      child++;
    }
    if (!frees_before(self, heap[child], heap[i])) {
      return;
    }
    int32_t swapped = heap[i];
    heap[i] = heap[child];
    heap[child] = swapped;
    i = child;
  }
}

static void sift_up(const Tracks *self, int32_t *heap, size_t i) {
  while (i > 0) {
    size_t parent = (i - 1) / 2;
    if (!frees_before(self, heap[i], heap[parent])) {
      return;
    }
    int32_t swapped = heap[i];
    heap[i] = heap[parent];
    heap[parent] = swapped;
    i = parent;
  }
}

static int32_t new_track(Tracks *self) {
  if (self->track_count >= INT32_MAX - 1 ||
      !grow(&self->tracks, &self->track_room, self->track_count + 1, sizeof *self->tracks)) {
    return -1;
  }
  self->tracks[self->track_count] = (Track){NULL, 0, 0, INT64_MIN};
  return (int32_t)self->track_count++;
}

// The track on which a span nests: that of its parent or of another ancestor, else one of the lane
// with nothing open, else a new one. -1: no memory.
static int32_t choose_track(Tracks *self, Lane *lane, int64_t start_ns, int64_t end_ns) {
  for (size_t i = lane->open; i > 0 && lane->open - i < kMaxAncestors; i--) {
    int32_t number = lane->spans[i - 1].track;
    if (!end_before(self, number, start_ns, end_ns)) {
      return -1;
    }
    if (fits(self, number, end_ns)) {
      return number;
    }
  }
  if (lane->first == 0) {
    int32_t number = new_track(self);
    lane->first = number + 1;
    return number;
  }
  int32_t first = lane->first - 1;
  if (!end_before(self, first, start_ns, end_ns)) {
    return -1;
  }
  if (fits(self, first, end_ns)) {
    return first;
  }
  if (lane->more > 0) {
    int32_t top = lane->heap[0];
    if (!end_before(self, top, start_ns, end_ns)) {
      return -1;
    }
    if (fits(self, top, end_ns)) {
      if (self->tracks[top].open == 0) {
        self->tracks[top].free_ns = end_ns;
        sift_down(self, lane->heap, lane->more);
      }
      return top;
    }
  }
  int32_t number = new_track(self);
  if (number < 0 || !grow(&lane->heap, &lane->heap_room, lane->more + 1, sizeof *lane->heap)) {
    return -1;
  }
  self->tracks[number].free_ns = end_ns;
  lane->heap[lane->more] = number;
  sift_up(self, lane->heap, lane->more++);
  return number;
}

static bool push_end(Tracks *self, int32_t number, int64_t end_ns) {
  Track *track = &self->tracks[number];
  if (!grow(&track->ends, &track->room, track->open + 1, sizeof *track->ends)) {
    return false;
  }
  track->ends[track->open++] = end_ns;
  return true;
}

// A lane with one track has all its open spans there; `spans` repeats them once there are more.
static bool begin_to_cross(Tracks *self, Lane *lane, int32_t number) {
  const Track *track = &self->tracks[number];
  if (!grow(&lane->spans, &lane->room, track->open + 1, sizeof *lane->spans)) {
    return false;
  }
  for (lane->open = 0; lane->open < track->open; lane->open++) {
    lane->spans[lane->open] = (Span){track->ends[lane->open], number};
  }
  return true;
}

static bool place_row(Tracks *self, Lane *lane, int64_t row, int64_t start_ns, int64_t end_ns,
                      int32_t *chosen) {
  if (lane->first > 0 && lane->more == 0) {
    int32_t only = lane->first - 1;
    if (!end_before(self, only, start_ns, end_ns)) {
      return false;
    }
    if (fits(self, only, end_ns)) {
      *chosen = only;
      return push_end(self, only, end_ns) && add_turn(self, start_ns, row, only);
    }
    if (!begin_to_cross(self, lane, only)) {
      return false;
    }
  }
  while (lane->open > 0 && lane->spans[lane->open - 1].end_ns < end_ns) {
    lane->open--;
  }
  int32_t number = choose_track(self, lane, start_ns, end_ns);
  if (number < 0 || !grow(&lane->spans, &lane->room, lane->open + 1, sizeof *lane->spans)) {
    return false;
  }
  lane->spans[lane->open++] = (Span){end_ns, number};
  *chosen = number;
  return push_end(self, number, end_ns) && add_turn(self, start_ns, row, number);
}

typedef struct {
  Py_ssize_t row;
  const char *fault;  // NULL: fine; "": no memory
} Outcome;

static bool make_lanes(Tracks *self, size_t count) {
  if (count > self->lane_count) {
    Lane *lanes = realloc(self->lanes, count * sizeof *lanes);
    if (lanes == NULL) {
      return false;
    }
    memset(lanes + self->lane_count, 0, (count - self->lane_count) * sizeof *lanes);
    self->lanes = lanes;
    self->lane_count = count;
  }
  return true;
}

static Outcome place_rows(Tracks *self, Py_ssize_t rows, const int32_t *lane,
                          const int64_t *start_ns, const int64_t *dur_ns, int32_t *track,
                          int32_t *lane_of_new) {
  size_t before = self->track_count;
  int32_t last_lane = -1;
  for (Py_ssize_t i = 0; i < rows; i++) {
    last_lane = lane[i] > last_lane ? lane[i] : last_lane;
    if (lane[i] < 0 || lane[i] > kMaxLane) {
      return (Outcome){i, "has a lane that is negative or too large"};
    }
    if (dur_ns[i] < 0 || start_ns[i] > INT64_MAX - dur_ns[i]) {
      return (Outcome){i, "has a duration that is negative or too long"};
    }
    if (i > 0 && start_ns[i] < start_ns[i - 1]) {
      return (Outcome){i, "starts before the row above it; sort by start_ns"};
    }
  }
  if (!make_lanes(self, (size_t)last_lane + 1)) {
    return (Outcome){0, ""};
  }
  for (Py_ssize_t i = 0; i < rows; i++) {
    size_t known = self->track_count;
    if (!place_row(self, &self->lanes[lane[i]], i, start_ns[i], start_ns[i] + dur_ns[i],
                   &track[i])) {
      return (Outcome){i, ""};
    }
    if (self->track_count > known) {
      lane_of_new[known - before] = lane[i];
    }
  }
  return (Outcome){0, NULL};
}

static PyObject *turns_as_bytes(Tracks *self) {
  return PyBytes_FromStringAndSize((const char *)self->turns,
                                   (Py_ssize_t)(self->turn_count * sizeof *self->turns));
}

static PyObject *tracks_place(PyObject *object, PyObject *const *args, Py_ssize_t nargs) {
  Tracks *self = (Tracks *)object;
  static const Argument kArguments[] = {
      {"lane", kInt32}, {"start_ns", kInt64}, {"dur_ns", kInt64}, {"track", kOut32}};
  Buffers buffers;
  if (!check_count("place", nargs, 5) || !acquire("place", kArguments, 4, args, &buffers)) {
    return NULL;
  }
  Py_buffer *views = buffers.views;
  Py_ssize_t rows = views[0].shape[0];
  PyObject *result = NULL;
  int32_t *lane_of_new = malloc((size_t)(rows + 1) * sizeof *lane_of_new);
  if (lane_of_new == NULL) {
    PyErr_NoMemory();
  } else if (rows >= INT32_MAX) {
    PyErr_SetString(PyExc_ValueError, "place(): too many rows for one call");
  } else if (check_rows("place", "start_ns", views[1].shape[0], rows) &&
             check_rows("place", "dur_ns", views[2].shape[0], rows) &&
             check_rows("place", "track", views[3].shape[0], rows)) {
    size_t before = self->track_count;
    self->turn_count = 0;
    self->wants_turns = PyObject_IsTrue(args[4]) > 0;
    // The GIL also keeps other threads from this object, so it is held here: 10 ns per row.
    Outcome outcome =
        place_rows(self, rows, views[0].buf, views[1].buf, views[2].buf, views[3].buf, lane_of_new);
    if (outcome.fault == NULL) {
      PyObject *turns = turns_as_bytes(self);
      size_t size = (self->track_count - before) * sizeof *lane_of_new;
      result =
          turns ? Py_BuildValue("Ny#", turns, (const char *)lane_of_new, (Py_ssize_t)size) : NULL;
    } else if (*outcome.fault == '\0') {
      PyErr_NoMemory();
    } else {
      PyErr_Format(PyExc_ValueError, "place(): row %zd %s", outcome.row, outcome.fault);
    }
  }
  free(lane_of_new);
  release(&buffers);
  return result;
}

PyDoc_STRVAR(tracks_place_doc,
             "place(lane, start_ns, dur_ns, track, wants_turns, /)\n--\n\n"
             "Write each row's track. Return the turns, if wanted, and the lanes of the tracks "
             "made (int32).");

static PyObject *tracks_finish(PyObject *object, PyObject *unused) {
  (void)unused;
  Tracks *self = (Tracks *)object;
  self->turn_count = 0;
  self->wants_turns = true;
  for (size_t i = 0; i < self->track_count; i++) {
    if (!end_before(self, (int32_t)i, INT64_MAX, INT64_MIN)) {
      return PyErr_NoMemory();
    }
  }
  return turns_as_bytes(self);
}

PyDoc_STRVAR(tracks_finish_doc, "finish()\n--\n\nReturn the ends of all spans that are open.");

static void tracks_dealloc(PyObject *object) {
  Tracks *self = (Tracks *)object;
  PyTypeObject *type = Py_TYPE(object);
  for (size_t i = 0; i < self->lane_count; i++) {
    free(self->lanes[i].spans);
    free(self->lanes[i].heap);
  }
  for (size_t i = 0; i < self->track_count; i++) {
    free(self->tracks[i].ends);
  }
  free(self->lanes);
  free(self->tracks);
  free(self->turns);
  type->tp_free(object);
  Py_DECREF(type);
}

static PyMethodDef kTracksMethods[] = {
    {"place", (PyCFunction)(void (*)(void))tracks_place, METH_FASTCALL, tracks_place_doc},
    {"finish", tracks_finish, METH_NOARGS, tracks_finish_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot kTracksSlots[] = {
    {Py_tp_doc, "Tracks on which spans nest, whatever they do on their lane; rows come by start."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, tracks_dealloc},
    {Py_tp_methods, kTracksMethods},
    {0, NULL},
};

static PyType_Spec kTracksSpec = {
    .name = "strobe.exporters._writers.Tracks",
    .basicsize = sizeof(Tracks),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = kTracksSlots,
};

// ---- module --------------------------------------------------------------------------------

// Cast twice, as METH_FASTCALL takes another signature than PyCFunction says.
static PyMethodDef kMethods[] = {
    {"chrome_events", (PyCFunction)(void (*)(void))chrome_events, METH_FASTCALL, chrome_events_doc},
    {"perfetto_packets", (PyCFunction)(void (*)(void))perfetto_packets, METH_FASTCALL,
     perfetto_packets_doc},
    {"number_hashes", (PyCFunction)(void (*)(void))number_hashes, METH_FASTCALL, number_hashes_doc},
    {"annotate", (PyCFunction)(void (*)(void))annotate, METH_FASTCALL, annotate_doc},
    {NULL, NULL, 0, NULL},
};

static int add_types(PyObject *module) {
  PyObject *type = PyType_FromSpec(&kTracksSpec);
  if (type == NULL) {
    return -1;
  }
  int failed = PyModule_AddObjectRef(module, "Tracks", type);
  Py_DECREF(type);
  return failed;
}

static PyModuleDef_Slot kSlots[] = {
    {Py_mod_exec, (void *)add_types},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef kModule = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_writers",
    .m_doc = "Rows of pieces -> bytes; the Python twin is strobe.exporters._writers_python.",
    .m_size = 0,
    .m_methods = kMethods,
    .m_slots = kSlots,
};

PyMODINIT_FUNC PyInit__writers(void) {
  return PyModuleDef_Init(&kModule);
}
