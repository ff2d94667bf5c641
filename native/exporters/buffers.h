// SPDX-License-Identifier: Apache-2.0
// What the functions of this module are given: buffers, and in them the pieces that rows choose
// from.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
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

// Takes `count` buffers of the kinds expected; else false, with an exception and none of them held.
bool acquire_buffers(const char *function, const Argument *expected, int count,
                     PyObject *const *args, Buffers *buffers);
void release_buffers(Buffers *buffers);

// False, with an exception, when it is not what was expected.
bool check_count(const char *function, Py_ssize_t given, Py_ssize_t expected);
bool check_rows(const char *function, const char *name, Py_ssize_t given, Py_ssize_t rows);

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

Pieces pieces_of(const Py_buffer *bytes, const Py_buffer *at);

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

// (next, used) as Python sees it, or NULL with an exception.
PyObject *conclude(const char *function, Progress done);
