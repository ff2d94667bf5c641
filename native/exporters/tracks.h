// SPDX-License-Identifier: Apache-2.0
// Tracks on which spans nest, whatever they do on their lane.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "turn.h"

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
  // Those that may contain a later row, the latest-started last (see native/kernels.c).
  Span *spans;
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

typedef struct {
  Py_ssize_t row;
  const char *fault;  // NULL: fine; "": no memory
} Outcome;

// Writes each row's track, and to `lane_of_new` the lane of each track that is made; adds the turns
// if they are wanted. Rows come by start.
Outcome place_rows(Tracks *self, Py_ssize_t rows, const int32_t *lane, const int64_t *start_ns,
                   const int64_t *dur_ns, int32_t *track, int32_t *lane_of_new);

// Ends all spans that are open; false: no memory.
bool end_all(Tracks *self);
