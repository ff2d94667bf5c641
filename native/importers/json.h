// SPDX-License-Identifier: Apache-2.0
//
// A JSON text, read once from front to back: where the values lie that are asked for. Whatever the
// bytes are, nothing outside of them is touched and nothing is allocated. Only UTF-8 is not checked.

#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef enum {
  kJsonFine,
  kJsonWrong,  // no JSON, or not of the form that is asked for
  kJsonTooDeep,
  kJsonOutside,  // asked for what is outside of the text
} JsonFault;

// Where it went wrong, or where to go on; whether there is more; how many whole rows were found, and
// where the last of them ends.
typedef struct {
  JsonFault fault;
  int64_t at;
  bool more;
  int64_t rows;
  int64_t end;
} JsonOutcome;

typedef struct {
  const uint8_t *bytes;
  int64_t size;
} JsonText;

// Names of members: number i lies in texts[at[i]] to texts[at[i + 1]].
typedef struct {
  const uint8_t *texts;
  const int64_t *at;
  int64_t count;
} JsonKeys;

// Reads the members of the object that the text is, from its beginning or from where the last call
// stopped: `begin` and `end` of each key's value. Stops behind the bracket of the array that the last
// key has; there is more then.
JsonOutcome json_members(JsonText text, int64_t at, JsonKeys keys, int64_t *begin, int64_t *end);

// Reads as many objects of an array as there is `room`, from behind its bracket or from where the last
// call stopped. A key has `room` cells of `begin` and of `end`, one for each object, -1 where it is
// absent. From number `outer` on keys are of the object that the last one before them has. Of a key
// that is there several times the last one counts.
JsonOutcome json_rows(JsonText text, int64_t at, JsonKeys keys, int64_t outer, int64_t room,
                      int64_t *begin, int64_t *end);

// What json_decimals() writes for a value that is not there, and for one that it cannot read.
#define JSON_ABSENT INT64_MIN
#define JSON_ODD (INT64_MIN + 1)

// Writes numbers times 10 to the power of `places`, which have no more decimals, as far as they fit.
// With a suffix they are in strings that end with it.
JsonFault json_decimals(JsonText text, int64_t rows, const int64_t *begin, const int64_t *end,
                        int places, const uint8_t *suffix, int64_t suffix_size, int64_t *out);

// Makes "name[12 us]" with its quotes to what is before the last bracket, and other strings to what is
// between their quotes. What is no string is an error.
JsonOutcome json_shorten(JsonText text, int64_t rows, int64_t *begin, int64_t *end);
