// SPDX-License-Identifier: Apache-2.0
// Turns and rows of pieces -> packets of a Perfetto trace.
#include "writers.h"

#include "buffers.h"
#include "protobuf.h"
#include "turn.h"

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

PyObject *perfetto_packets(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
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
  if (!acquire_buffers("perfetto_packets", kArguments, kCount, args, &buffers)) {
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
    release_buffers(&buffers);
    return NULL;
  }
  PyThreadState *state = PyEval_SaveThread();
  Progress done = put_packets(&rows, first < 0 ? 0 : first, views[0].buf, views[0].len);
  PyEval_RestoreThread(state);
  release_buffers(&buffers);
  return conclude("perfetto_packets", done);
}
