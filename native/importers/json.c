// SPDX-License-Identifier: Apache-2.0

#include "json.h"

#include <string.h>

enum { kMostDepth = 500 };

static const int64_t kMostTenth = (INT64_MAX - 9) / 10;

typedef struct {
  const uint8_t *bytes;
  int64_t size;
  int64_t at;
  JsonFault fault;
} Cursor;

static bool fail(Cursor *cursor, JsonFault fault) {
  cursor->fault = fault;
  return false;
}

// Returns the next byte that is no space, -1 at the end.
static inline int peek(Cursor *cursor) {
  while (cursor->at < cursor->size) {
    uint8_t byte = cursor->bytes[cursor->at];
    if (byte != ' ' && byte != '\n' && byte != '\r' && byte != '\t') {
      return byte;
    }
    cursor->at++;
  }
  return -1;
}

static inline bool take(Cursor *cursor, int wanted) {
  if (peek(cursor) != wanted) {
    return fail(cursor, kJsonWrong);
  }
  cursor->at++;
  return true;
}

static bool is_hex(uint8_t byte) {
  return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f') ||
         (byte >= 'A' && byte <= 'F');
}

static bool skip_escape(Cursor *cursor) {
  cursor->at++;
  if (cursor->at >= cursor->size || !memchr("\"\\/bfnrtu", cursor->bytes[cursor->at], 9)) {
    return fail(cursor, kJsonWrong);
  }
  if (cursor->bytes[cursor->at++] != 'u') {
    return true;
  }
  for (int i = 0; i < 4; i++, cursor->at++) {
    if (cursor->at >= cursor->size || !is_hex(cursor->bytes[cursor->at])) {
      return fail(cursor, kJsonWrong);
    }
  }
  return true;
}

// Compilers make one load of it, where bytes are in this order.
static inline uint64_t load_word(const uint8_t *b) {
  return (uint64_t)b[0] | (uint64_t)b[1] << 8 | (uint64_t)b[2] << 16 | (uint64_t)b[3] << 24 |
         (uint64_t)b[4] << 32 | (uint64_t)b[5] << 40 | (uint64_t)b[6] << 48 | (uint64_t)b[7] << 56;
}

// Marks the top bits of bytes that are below `bound`, of which the lowest one is right.
static inline uint64_t mark_below(uint64_t word, uint8_t bound) {
  return (word - bound * 0x0101010101010101u) & ~word & 0x8080808080808080u;
}

// Eight bytes at once, as long as a string has nothing but plain characters in them.
static inline void skip_plain(Cursor *cursor) {
  while (cursor->size - cursor->at >= 8) {
    uint64_t word = load_word(cursor->bytes + cursor->at);
    uint64_t special = mark_below(word, 0x20) | mark_below(word ^ 0x2222222222222222u, 1) |
                       mark_below(word ^ 0x5c5c5c5c5c5c5c5cu, 1);
    if (special) {
      cursor->at += __builtin_ctzll(special) / 8;
      return;
    }
    cursor->at += 8;
  }
}

// From its first quote to behind its last one.
static inline bool skip_string(Cursor *cursor) {
  if (!take(cursor, '"')) {
    return false;
  }
  skip_plain(cursor);
  while (cursor->at < cursor->size) {
    uint8_t byte = cursor->bytes[cursor->at];
    if (byte == '"') {
      cursor->at++;
      return true;
    }
    if (byte == '\\') {
      if (!skip_escape(cursor)) {
        return false;
      }
    } else if (byte < 0x20) {
      break;
    } else {
      cursor->at++;
    }
  }
  return fail(cursor, kJsonWrong);
}

static inline int64_t skip_digits(Cursor *cursor) {
  int64_t first = cursor->at;
  while (cursor->at < cursor->size && cursor->bytes[cursor->at] >= '0' &&
         cursor->bytes[cursor->at] <= '9') {
    cursor->at++;
  }
  return cursor->at - first;
}

// Takes one of two bytes, if it is the next one.
static inline bool is_next(Cursor *cursor, uint8_t one, uint8_t other) {
  if (cursor->at >= cursor->size ||
      (cursor->bytes[cursor->at] != one && cursor->bytes[cursor->at] != other)) {
    return false;
  }
  cursor->at++;
  return true;
}

static inline bool skip_number(Cursor *cursor) {
  is_next(cursor, '-', '-');
  bool zero = is_next(cursor, '0', '0');
  if (!zero && skip_digits(cursor) == 0) {
    return fail(cursor, kJsonWrong);
  }
  if (is_next(cursor, '.', '.') && skip_digits(cursor) == 0) {
    return fail(cursor, kJsonWrong);
  }
  if (is_next(cursor, 'e', 'E')) {
    is_next(cursor, '+', '-');
    if (skip_digits(cursor) == 0) {
      return fail(cursor, kJsonWrong);
    }
  }
  return true;
}

static bool skip_word(Cursor *cursor, const char *word) {
  int64_t length = (int64_t)strlen(word);
  if (cursor->size - cursor->at < length ||
      memcmp(cursor->bytes + cursor->at, word, (size_t)length) != 0) {
    return fail(cursor, kJsonWrong);
  }
  cursor->at += length;
  return true;
}

// After an opening bracket or a value: says whether another one follows, and stands before it.
static inline bool goes_on(Cursor *cursor, bool is_first, int closing) {
  int byte = peek(cursor);
  if (byte == closing) {
    cursor->at++;
    return false;
  }
  if (is_first) {
    return true;
  }
  return take(cursor, ',');
}

static bool skip_value(Cursor *cursor, int depth);

static bool skip_nested(Cursor *cursor, int closing, int depth) {
  if (depth >= kMostDepth) {
    return fail(cursor, kJsonTooDeep);
  }
  cursor->at++;
  for (bool is_first = true; goes_on(cursor, is_first, closing); is_first = false) {
    if (closing == '}' && (!skip_string(cursor) || !take(cursor, ':'))) {
      return false;
    }
    if (!skip_value(cursor, depth + 1)) {
      return false;
    }
  }
  return cursor->fault == kJsonFine;
}

static bool skip_value(Cursor *cursor, int depth) {
  switch (peek(cursor)) {
    case '"':
      return skip_string(cursor);
    case '{':
      return skip_nested(cursor, '}', depth);
    case '[':
      return skip_nested(cursor, ']', depth);
    case 't':
      return skip_word(cursor, "true");
    case 'f':
      return skip_word(cursor, "false");
    case 'n':
      return skip_word(cursor, "null");
    default:
      return skip_number(cursor);
  }
}

// Reads a key and stands before its value; `number` is its place from `first` on and before `last`,
// or -1.
static inline bool read_key(Cursor *cursor, const JsonKeys *keys, int64_t first, int64_t last,
                            int64_t *number) {
  peek(cursor);
  int64_t begin = cursor->at + 1;
  if (!skip_string(cursor)) {
    return false;
  }
  int64_t length = cursor->at - 1 - begin;
  *number = -1;
  for (int64_t i = first; i < last; i++) {
    const uint8_t *key = keys->texts + keys->at[i];
    if (keys->at[i + 1] - keys->at[i] == length &&
        (length == 0 || key[0] == cursor->bytes[begin]) &&  // most often it is another one
        memcmp(key, cursor->bytes + begin, (size_t)length) == 0) {
      *number = i;
      break;
    }
  }
  if (!take(cursor, ':')) {
    return false;
  }
  peek(cursor);
  return true;
}

JsonOutcome json_members(JsonText text, int64_t at, JsonKeys keys, int64_t *begin, int64_t *end) {
  Cursor cursor = {text.bytes, text.size, at, kJsonFine};
  bool is_first = at == 0;
  if (at < 0 || at > text.size || keys.count < 1) {
    return (JsonOutcome){kJsonOutside, at, false, 0, at};
  }
  if (is_first && !take(&cursor, '{')) {
    return (JsonOutcome){cursor.fault, cursor.at, false, 0, at};
  }
  for (; goes_on(&cursor, is_first, '}'); is_first = false) {
    int64_t number;
    if (!read_key(&cursor, &keys, 0, keys.count, &number)) {
      break;
    }
    if (number == keys.count - 1 && peek(&cursor) == '[') {
      return (JsonOutcome){kJsonFine, cursor.at + 1, true, 0, at};
    }
    int64_t first = cursor.at;
    if (!skip_value(&cursor, 1)) {
      break;
    }
    if (number >= 0) {
      begin[number] = first;
      end[number] = cursor.at;
    }
  }
  if (cursor.fault == kJsonFine && peek(&cursor) >= 0) {
    cursor.fault = kJsonWrong;
  }
  return (JsonOutcome){cursor.fault, cursor.at, false, 0, at};
}

typedef struct {
  JsonKeys keys;
  int64_t outer;
  int64_t room;
  int64_t *begin;
  int64_t *end;
} Columns;

// Reads an object: its keys are those from `first` on and before `last`.
static bool read_row(Cursor *cursor, const Columns *columns, int64_t row, int64_t first,
                     int64_t last) {
  if (!take(cursor, '{')) {
    return false;
  }
  for (bool is_first = true; goes_on(cursor, is_first, '}'); is_first = false) {
    int64_t number;
    if (!read_key(cursor, &columns->keys, first, last, &number)) {
      return false;
    }
    int64_t begin = cursor->at;
    bool is_inner = number == columns->outer - 1 && peek(cursor) == '{';
    if (is_inner ? !read_row(cursor, columns, row, columns->outer, columns->keys.count)
                 : !skip_value(cursor, 2)) {
      return false;
    }
    if (number >= 0) {
      columns->begin[number * columns->room + row] = begin;
      columns->end[number * columns->room + row] = cursor->at;
    }
  }
  return cursor->fault == kJsonFine;
}

JsonOutcome json_rows(JsonText text, int64_t at, JsonKeys keys, int64_t outer, int64_t room,
                      int64_t *begin, int64_t *end) {
  Cursor cursor = {text.bytes, text.size, at, kJsonFine};
  Columns columns = {keys, outer, room, begin, end};
  if (at < 1 || at > text.size || outer < 1 || outer > keys.count) {
    return (JsonOutcome){kJsonOutside, at, false, 0, at};
  }
  bool is_first = text.bytes[at - 1] == '[';  // a row ends with another bracket
  int64_t whole = at;
  for (int64_t row = 0; row < room; row++, is_first = false) {
    if (!goes_on(&cursor, is_first, ']')) {
      return (JsonOutcome){cursor.fault, cursor.at, false, row, whole};
    }
    for (int64_t key = 0; key < keys.count; key++) {
      begin[key * room + row] = -1;
      end[key * room + row] = -1;
    }
    if (!read_row(&cursor, &columns, row, 0, outer)) {
      return (JsonOutcome){cursor.fault, cursor.at, false, row, whole};
    }
    whole = cursor.at;
  }
  return (JsonOutcome){kJsonFine, whole, true, room, whole};
}

static int64_t read_decimal(const uint8_t *bytes, int64_t size, int places) {
  int64_t at = size > 0 && bytes[0] == '-';
  int64_t sign = at ? -1 : 1;
  int64_t total = 0;
  int64_t first = at;
  int decimals = -1;  // so far; -1 before the point
  for (; at < size; at++) {
    if (bytes[at] == '.' && decimals < 0 && at > first && places > 0) {
      decimals = 0;
      continue;
    }
    if (bytes[at] < '0' || bytes[at] > '9' || total > kMostTenth || decimals >= places) {
      return JSON_ODD;
    }
    total = total * 10 + (bytes[at] - '0');
    decimals += decimals >= 0;
  }
  if (at == first || decimals == 0) {
    return JSON_ODD;
  }
  for (int i = decimals < 0 ? 0 : decimals; i < places; i++) {
    if (total > kMostTenth) {
      return JSON_ODD;
    }
    total *= 10;
  }
  return sign * total;
}

JsonFault json_decimals(JsonText text, int64_t rows, const int64_t *begin, const int64_t *end,
                        int places, const uint8_t *suffix, int64_t suffix_size, int64_t *out) {
  int64_t around = suffix_size ? suffix_size + 2 : 0;
  for (int64_t row = 0; row < rows; row++) {
    if (begin[row] == -1) {
      out[row] = JSON_ABSENT;
      continue;
    }
    if (begin[row] < 0 || end[row] < begin[row] || end[row] > text.size) {
      return kJsonOutside;
    }
    int64_t size = end[row] - begin[row];
    const uint8_t *bytes = text.bytes + begin[row];
    if (around && (size < around || bytes[0] != '"' || bytes[size - 1] != '"' ||
                   memcmp(bytes + size - 1 - suffix_size, suffix, (size_t)suffix_size) != 0)) {
      out[row] = JSON_ODD;
      continue;
    }
    out[row] = read_decimal(bytes + (around ? 1 : 0), size - around, places);
  }
  return kJsonFine;
}

JsonOutcome json_shorten(JsonText text, int64_t rows, int64_t *begin, int64_t *end) {
  for (int64_t row = 0; row < rows; row++) {
    if (begin[row] == -1) {
      continue;
    }
    if (begin[row] < 0 || end[row] < begin[row] || end[row] > text.size) {
      return (JsonOutcome){kJsonOutside, begin[row], false, 0, 0};
    }
    if (end[row] - begin[row] < 2 || text.bytes[begin[row]] != '"') {
      return (JsonOutcome){kJsonWrong, begin[row], false, 0, 0};
    }
    begin[row]++;
    int64_t last = --end[row];
    if (last > begin[row] && text.bytes[last - 1] == ']') {
      while (last > begin[row] && text.bytes[last - 1] != '[') {
        last--;
      }
      end[row] = last > begin[row] ? last - 1 : end[row];
    }
  }
  return (JsonOutcome){kJsonFine, 0, false, rows, 0};
}
