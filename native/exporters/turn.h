// SPDX-License-Identifier: Apache-2.0
// What Tracks.place tells perfetto_packets, as bytes that Python hands on.
#pragma once

#include <stdint.h>

// Where a span begins (row: its number in the batch) or ends (row: -1), 16 bytes
//   0         8      12      16
//   | time_ns | row  | track |
typedef struct {
  int64_t time_ns;
  int32_t row;
  int32_t track;
} Turn;

_Static_assert(sizeof(Turn) == 16, "the Python twin reads turns by these offsets");
