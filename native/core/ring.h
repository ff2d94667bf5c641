// SPDX-License-Identifier: Apache-2.0
// A ring per thread, in shared memory, so that what is in it outlives the process.
#pragma once

#include "clock.h"
#include "log.h"

enum {
  kNoSlot = 0xffff,
  kRecordsAhead = 4,  // of the head: fetched before they are written
};

typedef struct {
  const void *context;
  uint32_t lane;
  uint32_t number;  // of the context in its thread
  bool used;
  bool named;
} LaneEntry;

enum { kNumberedLanes = 64 };

// A lane with the sequence numbers of a block, block * 65536 and up, as one thread counts them.
typedef struct {
  uint64_t block;
  uint32_t lane;
  uint32_t thread;
  uint32_t id;  // 0: none
} NumberedLane;

struct Ring {
  // What a span touches comes first.
  _Atomic uint32_t generation;  // 0: stale, whatever the control page says
  uint32_t serial;              // its log's
  uint64_t head;
  uint64_t limit;  // the head at which there is something to do besides writing
  Record *records;
  OpenSlot *open;
  RingHeader *shared;
  QuickClock quick;
  const void *lane_context;
  uint64_t lane_version;
  uint32_t lane;
  uint32_t free_count;
  uint16_t free_slots[kOpenSlots];

  Log *log;
  Ring *next;
  bool orphan;     // its thread has ended: the next new thread takes it
  bool anonymous;  // not in a file: gone with the process
  bool elsewhere;  // in a file outside of the log's directory: lost if that is moved
  bool lane_known;
  bool lane_named;  // by Python, which knows more of a thread than the system does
  bool base_lane_known;
  bool base_lane_named;
  uint32_t base_lane;  // the thread's own, outside all contexts
  LaneEntry *lanes;    // a hash table of the thread's contexts, filled by lane.c
  uint32_t lane_count, lane_capacity, contexts;
  NumberedLane numbered[kNumberedLanes];
};

// NULL when not even anonymous memory is to be had, or the log's bound is reached. Needs the log's
// write_lock.
Ring *ring_create(Log *log);
void ring_free(Ring *ring);

// A copy of the ring with room for `records`, in private memory and in no list; free() releases it.
Ring *ring_scratch(const Ring *ring, size_t records);
void ring_forget_lanes(Ring *ring);

// Called when head reaches limit; afterwards there is room.
void ring_make_room(Ring *ring);
uint32_t ring_reclaim_slot(Ring *ring);

// Gets a record's line ready to be written. It is in no near cache: the ring is larger than those, and
// the drain thread has read the line on another core. For __builtin_prefetch GCC only emits the
// instruction that takes the line from that core if told that the processor has it; those without it
// ignore it.
static inline void ring_fetch(const Record *record) {
#if defined(__x86_64__)
  __asm__ volatile("prefetchw %0" : : "m"(*record));
#else
  __builtin_prefetch(record, 1);
#endif
}

static inline void ring_put(Ring *ring, const Record *record) {
  if (__builtin_expect(ring->head == ring->limit, 0)) ring_make_room(ring);
  // Field by field: the compiler then needs no copy on the stack, whose pieces it would write one by
  // one and wait for before it could read the whole.
  Record *place = &ring->records[ring->head & (kRingRecords - 1)];
  place->start_ns = record->start_ns;
  place->dur_ns = record->dur_ns;
  place->name = record->name;
  place->attributes = record->attributes;
  place->lane = record->lane;
  place->kind = record->kind;
  place->category = record->category;
  place->window = record->window;
  ring->head++;
  atomic_store_explicit(&ring->shared->head, ring->head, memory_order_release);
  ring_fetch(&ring->records[(ring->head + kRecordsAhead) & (kRingRecords - 1)]);
}

// Notes a span as open; kNoSlot when the table is full and the span went to the ring instead.
static inline uint32_t ring_open(Ring *ring, const Record *record) {
  uint32_t slot = ring->free_count ? ring->free_slots[--ring->free_count] : ring_reclaim_slot(ring);
  if (__builtin_expect(slot == kNoSlot, 0)) {
    Record begun = *record;
    begun.kind = kKindOpen;
    ring_put(ring, &begun);
    return kNoSlot;
  }
  OpenSlot *open = &ring->open[slot];
  open->name = record->name;
  open->attributes = record->attributes;
  open->lane = record->lane;
  open->category = record->category;
  atomic_store_explicit(&open->start_ns, record->start_ns, memory_order_release);
  return slot;
}

// `owner` is the ring the span was begun on, `ring` the ending thread's. Another thread only clears
// the slot; the owner finds it again in ring_reclaim_slot.
static inline void ring_close(Ring *ring, Ring *owner, uint32_t slot) {
  if (slot == kNoSlot) return;
  atomic_store_explicit(&owner->open[slot].start_ns, 0, memory_order_release);
  if (ring == owner) owner->free_slots[owner->free_count++] = (uint16_t)slot;
}
