// SPDX-License-Identifier: Apache-2.0
//
// Protobuf's wire format, read into columns. Whatever the bytes are, nothing outside of them is
// touched and nothing is allocated.

#pragma once

#include <stdbool.h>
#include <stdint.h>

// What one column holds of a field. The numbers are those of src/strobe/importers/wire.py.
typedef enum {
  kVarint,
  kZigzag,
  kFixed32,
  kFixed64,
  kFloat,  // as the bits of a double, as is kDouble
  kDouble,
  kBegin,  // of the bytes of a string, a message or a packed list; -1 where there is none
  kEnd,
  kCount,  // how often it is there
  kKinds,
} Kind;

typedef enum {
  kFine,
  kRangeOutside,
  kCutOff,
  kLongVarint,
  kFieldZero,
  kUnknownType,
  kBeyondEnd,
} Fault;

// What was wrong, and at which byte; `count` of what was found where nothing was.
typedef struct {
  Fault fault;
  int64_t at;
  int64_t count;
} Outcome;

typedef struct {
  const uint8_t *bytes;
  int64_t size;
  // Where each message begins and ends.
  int64_t messages;
  const int64_t *begin;
  const int64_t *end;
} Messages;

// Finds all submessages (or strings) with this field number and writes as many as there is `room`.
Outcome wire_find(const Messages *in, uint64_t number, int64_t room, int64_t *parent,
                  int64_t *begin, int64_t *end);

// Finds all varints of a repeated field, packed or not, and writes as many as there is `room`.
Outcome wire_numbers(const Messages *in, uint64_t number, int64_t room, int64_t *parent,
                     int64_t *value);

// Numbers texts, the same ones alike, from 0 on: `code` of each, and in `first` the row in which each
// number is first. `table` has a power of two cells, twice as many as there are texts or more. A
// text that is not there, which begins at -1, is empty.
Outcome wire_number(const Messages *in, int64_t cells, int64_t *table, int64_t *first,
                    int64_t *code);

// Writes columns one after the other, each with one row per message. The last one of a field counts.
Outcome wire_columns(const Messages *in, int64_t columns, const int64_t *number,
                     const int64_t *kind, int64_t *out);
