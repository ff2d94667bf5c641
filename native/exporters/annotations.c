// SPDX-License-Identifier: Apache-2.0
// Attributes, JSON as it was recorded -> debug annotations of a Perfetto trace.
#include "writers.h"

#include "buffers.h"
#include "protobuf.h"

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

PyObject *annotate(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  static const Argument kArguments[] = {{"texts", kBytes}, {"texts_at", kInt64}};
  Buffers buffers;
  if (!check_count("annotate", nargs, 2) ||
      !acquire_buffers("annotate", kArguments, 2, args, &buffers)) {
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
  release_buffers(&buffers);
  return result;
}
