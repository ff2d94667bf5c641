// SPDX-License-Identifier: Apache-2.0
#include "hooks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "clock.h"
#include "holders.h"
#include "source.h"
#include "texts.h"

static StrobePlace source_place(void) {
  Ring *ring = recorder_ring();
  return (StrobePlace){.ring = ring, .serial = ring ? ring->serial : 0};
}

static uint32_t source_text(const char *bytes, size_t length) {
  Ring *ring = recorder_ring();
  return ring ? text_id(ring, bytes, length) : 0;
}

static void source_begin(StrobePlace place, StrobeSpan *span) {
  Ring *ring = place.ring;
  span->ring = NULL;
  // A text that was new in between may have led this thread to another log.
  if (!recorder_owns(ring, place.serial)) return;
  span->ring = ring;
  span->serial = place.serial;
  span->lane = lane_without_gil(ring);
  Record record = {.name = span->name,
                   .attributes = span->attributes,
                   .lane = span->lane,
                   .category = (uint8_t)span->category};
  record.start_ns = span->start_ns = clock_quick_ns(&ring->quick);
  span->slot = ring_open(ring, &record);
}

// The lane under another number, which stands for 65536 sequence numbers too: so a record of an
// operator has no need of a second one. 0 where there can be none.
static uint32_t numbered_lane(Ring *ring, uint32_t lane, uint64_t block, uint32_t thread) {
  uint32_t place = (lane * 31u + (uint32_t)block * 7u + thread) % kNumberedLanes;
  NumberedLane *known = &ring->numbered[place];
  if (known->id && known->lane == lane && known->block == block && known->thread == thread) {
    return known->id;
  }
  char text[128];
  int length = snprintf(text, sizeof text,
                        "{\"of\": %" PRIu32 ", \"sequence\": %" PRIu64 ", \"thread\": %" PRIu32 "}",
                        lane, block << 16, thread);
  uint32_t id = atomic_fetch_add(&ring->log->next_lane, 1);
  if (id == 0 || !log_define(ring->log, kDefineLane, id, text, (size_t)length)) return 0;
  *known = (NumberedLane){.block = block, .lane = lane, .thread = thread, .id = id};
  return id;
}

static void source_end(StrobeSpan *span, int64_t sequence, uint32_t thread) {
  if (span->ring == NULL) return;
  Ring *ring = recorder_ring();
  // Recording was stopped in between: the recording it was begun in shows it as unfinished.
  if (ring == NULL || ring->serial != span->serial) return;
  uint64_t now_ns = clock_quick_ns(&ring->quick);
  Record record = {.start_ns = span->start_ns,
                   .name = span->name,
                   .attributes = span->attributes,
                   .lane = span->lane,
                   .kind = kKindSpan,
                   .category = (uint8_t)span->category};
  if (sequence >= 0) {
    uint32_t numbered = numbered_lane(ring, span->lane, (uint64_t)sequence >> 16, thread);
    if (numbered) {
      record.lane = numbered;
      record.window = (uint16_t)sequence;
    }
  }
  record.dur_ns = now_ns - span->start_ns;
  ring_put(ring, &record);
  ring_close(ring, span->ring, span->slot);
}

static void source_memory(int64_t bytes, uint64_t address, int device, uint32_t source) {
  Ring *ring = recorder_ring();
  if (ring == NULL) return;
  Record record = {.start_ns = clock_quick_ns(&ring->quick),
                   .dur_ns = (uint64_t)bytes,
                   .name = (uint32_t)address,
                   .attributes = (uint32_t)(address >> 32),
                   .lane = lane_without_gil(ring),
                   .kind = kKindMemory,
                   .category = (uint8_t)(source | (device >= 0)),
                   .window = (uint16_t)(device >= 0 ? device : 0)};
  ring_put(ring, &record);
  holders_change(ring, bytes, address, device < 0 ? -1 : device);
}

static _Thread_local Ring *ring_before_trial;

static bool source_begin_trial(size_t records) {
  Ring *ring = recorder_ring();
  if (ring) lane_without_gil(ring);
  Ring *scratch = ring && ring == recorder_ring() ? ring_scratch(ring, records) : NULL;
  if (scratch == NULL) return false;
  ring_before_trial = ring;
  recorder_thread_ring = scratch;
  return true;
}

static void source_end_trial(void) {
  free(recorder_thread_ring);
  recorder_thread_ring = ring_before_trial;
}

static const StrobeSource source_table = {
    .version = STROBE_SOURCE_VERSION,
    .place = source_place,
    .text = source_text,
    .begin = source_begin,
    .end = source_end,
    .memory = source_memory,
    .begin_trial = source_begin_trial,
    .end_trial = source_end_trial,
    .clock_ns = clock_ns,
};

PyObject *source_capsule(void) {
  return PyCapsule_New((void *)&source_table, STROBE_SOURCE_CAPSULE, NULL);
}
