// SPDX-License-Identifier: Apache-2.0
//
// The wire format: a message is a row of fields, a field is a key and a value.
//
//   key: varint of number << 3 | type
//   type 0: varint, 7 bits a byte, low ones first, the top bit says that more follow
//   type 1: 8 bytes      type 5: 4 bytes      type 2: varint of a length, and so many bytes
//
// Types 3 and 4, groups, are not used since proto2 and are refused.

#include "wire.h"

#include <string.h>

enum { kTypeVarint = 0, kTypeFixed64 = 1, kTypeBytes = 2, kTypeFixed32 = 5, kMostVarint = 10 };

typedef struct {
  uint64_t number;
  int type;
  uint64_t value;  // of a varint or fixed field
  int64_t begin;   // of the bytes, or of those of a varint
  int64_t end;
} Field;

static Fault read_varint(const uint8_t *bytes, int64_t *at, int64_t end, uint64_t *value) {
  uint64_t total = 0;
  for (int i = 0; i < kMostVarint; i++) {
    if (*at >= end) {
      return kCutOff;
    }
    uint8_t byte = bytes[(*at)++];
    total |= (uint64_t)(byte & 0x7f) << (7 * i);
    if (byte < 0x80) {
      *value = total;
      return kFine;
    }
  }
  return kLongVarint;
}

static Fault read_fixed(const uint8_t *bytes, int64_t *at, int64_t end, int width,
                        uint64_t *value) {
  if (end - *at < width) {
    return kCutOff;
  }
  *value = 0;
  for (int i = 0; i < width; i++) {
    *value |= (uint64_t)bytes[*at + i] << (8 * i);
  }
  *at += width;
  return kFine;
}

static Fault read_field(const uint8_t *bytes, int64_t *at, int64_t end, Field *field) {
  uint64_t key;
  Fault fault = read_varint(bytes, at, end, &key);
  if (fault != kFine) {
    return fault;
  }
  field->number = key >> 3;
  field->type = (int)(key & 7);
  if (field->number == 0) {
    return kFieldZero;
  }
  switch (field->type) {
    case kTypeVarint:
      field->begin = *at;
      fault = read_varint(bytes, at, end, &field->value);
      field->end = *at;
      return fault;
    case kTypeFixed64:
      return read_fixed(bytes, at, end, 8, &field->value);
    case kTypeFixed32:
      return read_fixed(bytes, at, end, 4, &field->value);
    case kTypeBytes:
      break;
    default:
      return kUnknownType;
  }
  uint64_t length;
  fault = read_varint(bytes, at, end, &length);
  if (fault != kFine) {
    return fault;
  }
  if (length > (uint64_t)(end - *at)) {
    return kBeyondEnd;
  }
  field->begin = *at;
  field->end = *at + (int64_t)length;
  *at = field->end;
  return kFine;
}

static bool is_inside(const Messages *in, int64_t begin, int64_t end) {
  return begin >= 0 && begin <= end && end <= in->size;
}

// A way through all fields of all messages.
typedef struct {
  const Messages *in;
  int64_t row;  // the message that the field was in
  int64_t at;
  int64_t until;
  Outcome fault;
} Walk;

static Walk walk_through(const Messages *in) {
  return (Walk){in, -1, 0, 0, {kFine, 0, 0}};
}

static inline bool stop_at(Walk *walk, Fault fault, int64_t where) {
  walk->fault = (Outcome){fault, where, 0};
  return false;
}

// False at the end of the last message, and at a fault.
static inline bool next_field(Walk *walk, Field *field) {
  const Messages *in = walk->in;
  while (walk->at >= walk->until) {
    if (++walk->row >= in->messages) {
      return false;
    }
    walk->at = in->begin[walk->row];
    walk->until = in->end[walk->row];
    if (!is_inside(in, walk->at, walk->until)) {
      return stop_at(walk, kRangeOutside, walk->row);
    }
  }
  int64_t where = walk->at;
  Fault fault = read_field(in->bytes, &walk->at, walk->until, field);
  return fault == kFine || stop_at(walk, fault, where);
}

static Outcome end_of(const Walk *walk, int64_t found) {
  return walk->fault.fault == kFine ? (Outcome){kFine, 0, found} : walk->fault;
}

Outcome wire_find(const Messages *in, uint64_t number, int64_t room, int64_t *parent,
                  int64_t *begin, int64_t *end) {
  int64_t found = 0;
  Field field;
  Walk walk = walk_through(in);
  while (next_field(&walk, &field)) {
    if (field.number != number || field.type != kTypeBytes) {
      continue;
    }
    if (found < room) {
      parent[found] = walk.row;
      begin[found] = field.begin;
      end[found] = field.end;
    }
    found++;
  }
  return end_of(&walk, found);
}

Outcome wire_numbers(const Messages *in, uint64_t number, int64_t room, int64_t *parent,
                     int64_t *value) {
  int64_t found = 0;
  Field field;
  Walk walk = walk_through(in);
  while (next_field(&walk, &field)) {
    if (field.number != number || (field.type != kTypeBytes && field.type != kTypeVarint)) {
      continue;
    }
    for (int64_t next = field.begin; next < field.end; found++) {
      uint64_t bits;
      int64_t where = next;
      Fault fault = read_varint(in->bytes, &next, field.end, &bits);
      if (fault != kFine) {
        return (Outcome){fault, where, 0};
      }
      if (found < room) {
        parent[found] = walk.row;
        memcpy(&value[found], &bits, sizeof(bits));
      }
    }
  }
  return end_of(&walk, found);
}

static uint64_t hash_bytes(const uint8_t *bytes, int64_t length) {
  const uint64_t multiplier = 0x9e3779b97f4a7c15u;
  uint64_t hash = (uint64_t)length * multiplier;
  while (length > 0) {
    uint64_t word = 0;
    int64_t taken = length < 8 ? length : 8;
    memcpy(&word, bytes, (size_t)taken);
    hash = (hash ^ word) * multiplier;
    hash ^= hash >> 32;
    bytes += taken;
    length -= taken;
  }
  return hash;
}

static bool is_same(const Messages *in, int64_t row, const uint8_t *bytes, int64_t length) {
  int64_t begin = in->begin[row];
  if (begin < 0) {
    return length == 0;
  }
  return in->end[row] - begin == length && memcmp(in->bytes + begin, bytes, (size_t)length) == 0;
}

Outcome wire_number(const Messages *in, int64_t cells, int64_t *table, int64_t *first,
                    int64_t *code) {
  int64_t found = 0;
  for (int64_t cell = 0; cell < cells; cell++) {
    table[cell] = -1;
  }
  for (int64_t row = 0; row < in->messages; row++) {
    int64_t begin = in->begin[row];
    bool absent = begin == -1;
    if (!absent && !is_inside(in, begin, in->end[row])) {
      return (Outcome){kRangeOutside, row, 0};
    }
    const uint8_t *bytes = absent ? in->bytes : in->bytes + begin;
    int64_t length = absent ? 0 : in->end[row] - begin;
    if (row > 0 && is_same(in, row - 1, bytes, length)) {  // there are columns of one text
      code[row] = code[row - 1];
      continue;
    }
    uint64_t cell = hash_bytes(bytes, length) & (uint64_t)(cells - 1);
    while (table[cell] >= 0 && !is_same(in, first[table[cell]], bytes, length)) {
      cell = (cell + 1) & (uint64_t)(cells - 1);
    }
    if (table[cell] < 0) {
      table[cell] = found;
      first[found++] = row;
    }
    code[row] = table[cell];
  }
  return (Outcome){kFine, 0, found};
}

static int64_t widen(uint64_t bits) {
  uint32_t low = (uint32_t)bits;
  float narrow;
  memcpy(&narrow, &low, sizeof(narrow));
  double wide = narrow;
  int64_t value;
  memcpy(&value, &wide, sizeof(value));
  return value;
}

// Takes a field into a cell. One of another type than asked for is another field: it is passed over.
static void take(const Field *field, Kind kind, int64_t *cell) {
  switch (kind) {
    case kVarint:
      if (field->type == kTypeVarint) {
        memcpy(cell, &field->value, sizeof(*cell));
      }
      break;
    case kZigzag:
      if (field->type == kTypeVarint) {
        uint64_t bits = (field->value >> 1) ^ (0 - (field->value & 1));
        memcpy(cell, &bits, sizeof(*cell));
      }
      break;
    case kFixed32:
      if (field->type == kTypeFixed32) {
        *cell = (int64_t)field->value;
      }
      break;
    case kFloat:
      if (field->type == kTypeFixed32) {
        *cell = widen(field->value);
      }
      break;
    case kFixed64:
    case kDouble:
      if (field->type == kTypeFixed64) {
        memcpy(cell, &field->value, sizeof(*cell));
      }
      break;
    case kBegin:
    case kEnd:
      if (field->type == kTypeBytes) {
        *cell = kind == kBegin ? field->begin : field->end;
      }
      break;
    case kCount:
      *cell += 1;
      break;
    default:
      break;
  }
}

// Where the columns of the low field numbers, which nearly all are, begin to be looked for.
enum { kLow = 32 };

Outcome wire_columns(const Messages *in, int64_t columns, const int64_t *number,
                     const int64_t *kind, int64_t *out) {
  int64_t first[kLow];
  for (int64_t low = 0; low < kLow; low++) {
    first[low] = 0;
    while (first[low] < columns && number[first[low]] != low) {
      first[low]++;
    }
  }
  for (int64_t column = 0; column < columns; column++) {
    int64_t nothing = kind[column] == kBegin || kind[column] == kEnd ? -1 : 0;
    for (int64_t row = 0; row < in->messages; row++) {
      out[column * in->messages + row] = nothing;
    }
  }
  Field field;
  Walk walk = walk_through(in);
  while (next_field(&walk, &field)) {
    int64_t column = field.number < kLow ? first[field.number] : 0;
    for (; column < columns; column++) {
      if ((uint64_t)number[column] == field.number) {
        take(&field, (Kind)kind[column], &out[column * in->messages + walk.row]);
      }
    }
  }
  return end_of(&walk, in->messages);
}
