// SPDX-License-Identifier: Apache-2.0
// A log and its rings without a recorder around them.
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "support.h"

enum { kProducer = 3 };

// A log in the directory with one ring and no drain thread.
static Ring *make_ring(const char *directory) {
  Log *log = log_open(directory, 1, 1);
  CHECK(log);
  log_hold_drainer(log);
  pthread_mutex_lock(&log->write_lock);
  Ring *ring = ring_create(log);
  pthread_mutex_unlock(&log->write_lock);
  CHECK(ring && !ring->anonymous);
  return ring;
}

static void write_chunk(Ring *ring) {
  pthread_mutex_lock(&ring->log->write_lock);
  log_write_chunk(ring->log, ring);
  pthread_mutex_unlock(&ring->log->write_lock);
}

static void close_ring(Ring *ring) {
  Log *log = ring->log;
  log_hold_drainer(log);
  ring_free(ring);
  log_free(log);
}

static void put_without_chunk(const char *scratch) {
  Ring *ring = make_ring(scratch);
  put_numbers(ring, kProducer, 0, 100);
  Recording recording = {0};
  read_recording(&recording, scratch);
  check_undamaged(&recording);
  check_numbers(&recording, kProducer, 100);
  CHECK_EQUAL(recording.chunks, 0);
  free_recording(&recording);
  close_ring(ring);
}

static long page_faults(void) {
  struct rusage usage;
  CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  return usage.ru_minflt;
}

static void put_without_page_faults(const char *scratch) {
#if defined(UNDER_VALGRIND) || defined(UNDER_QEMU) || defined(__SANITIZE_THREAD__)
  skip("the tool that watches this program has page faults of its own");
#endif
#ifdef MADV_POPULATE_WRITE
  char *page = mmap(NULL, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(page != MAP_FAILED);
  if (madvise(page, kPageBytes, MADV_POPULATE_WRITE) != 0) skip("Linux is older than 5.14");
#endif
  Ring *ring = make_ring(scratch);
  put_numbers(ring, kProducer, 0, 1);
  enum { kPages = kRingRecords / 4 * kRecordBytes / kPageBytes };
  long before = page_faults();
  put_numbers(ring, kProducer, 1, kRingRecords / 4);
  CHECK(page_faults() - before < kPages / 2);
  close_ring(ring);
}

static void put_more_than_fits(const char *scratch) {
  Ring *ring = make_ring(scratch);
  uint64_t count = 3 * kRingRecords + 123;
  put_numbers(ring, kProducer, 0, count);
  CHECK(atomic_load(&ring->shared->own_ns) > 0);
  CHECK_EQUAL(atomic_load(&ring->shared->drain_ns), 0);
  close_ring(ring);
  Recording recording = {0};
  read_recording(&recording, scratch);
  check_undamaged(&recording);
  check_numbers(&recording, kProducer, count);
  CHECK_EQUAL(recording.chunks, 3);
  CHECK_EQUAL(recording.largest_chunk, kRingRecords);
  free_recording(&recording);
}

static void chunk_over_the_end(const char *scratch) {
  Ring *ring = make_ring(scratch);
  put_numbers(ring, kProducer, 0, 1000);
  write_chunk(ring);
  write_chunk(ring);  // nothing to write: no chunk
  put_numbers(ring, kProducer, 1000, 1000 + kRingRecords);
  write_chunk(ring);
  close_ring(ring);
  Recording recording = {0};
  read_recording(&recording, scratch);
  check_undamaged(&recording);
  check_numbers(&recording, kProducer, 1000 + kRingRecords);
  CHECK_EQUAL(recording.chunks, 2);
  free_recording(&recording);
}

static void order_kept(const char *scratch) {
  Ring *ring = make_ring(scratch);
  uint64_t count = 2 * kRingRecords + 5;
  put_numbers(ring, kProducer, 0, count);
  close_ring(ring);
  Recording recording = {0};
  read_recording(&recording, scratch);
  CHECK_EQUAL(recording.records.count, count);
  for (uint64_t i = 0; i < count; i++) CHECK_EQUAL(recording.records.items[i].start_ns, i + 1);
  free_recording(&recording);
}

static bool has_drained(void *ring) {
  return atomic_load(&((Ring *)ring)->shared->tail) > 0;
}

static void drain_thread(const char *scratch) {
  Ring *ring = make_ring(scratch);
  log_release_drainer(ring->log);
  put_numbers(ring, kProducer, 0, kRingRecords / 2);
  CHECK(has_no_drainer(NULL));
  put_numbers(ring, kProducer, kRingRecords / 2, kRingRecords / 2 + 1);
  wait_until(has_drained, ring);
  CHECK(has_drainer(NULL));
  log_hold_drainer(ring->log);
  wait_until(has_no_drainer, NULL);
  close_ring(ring);
  Recording recording = {0};
  read_recording(&recording, scratch);
  check_undamaged(&recording);
  check_numbers(&recording, kProducer, kRingRecords / 2 + 1);
  CHECK_EQUAL(recording.chunks, 1);
  free_recording(&recording);
}

static void hold_and_release(const char *scratch) {
  Ring *ring = make_ring(scratch);
  uint64_t next = 0;
  for (int round = 0; round < 20; round++) {
    log_release_drainer(ring->log);
    put_numbers(ring, kProducer, next, next + kRingRecords);
    log_hold_drainer(ring->log);
    put_numbers(ring, kProducer, next + kRingRecords, next + kRingRecords + 77);
    next += kRingRecords + 77;
  }
  wait_until(has_no_drainer, NULL);
  close_ring(ring);
  Recording recording = {0};
  read_recording(&recording, scratch);
  check_undamaged(&recording);
  check_numbers(&recording, kProducer, next);
  free_recording(&recording);
}

static void definitions(const char *scratch) {
  Ring *ring = make_ring(scratch);
  char text[5000];
  memset(text, 'x', sizeof text);
  CHECK(log_define(ring->log, kDefineString, 1, "forward", 7));
  CHECK(log_define(ring->log, kDefineString, 2, "", 0));
  CHECK(log_define(ring->log, kDefineLane, 0, text, sizeof text));
  close_ring(ring);
  Recording recording = {0};
  read_recording(&recording, scratch);
  check_undamaged(&recording);
  CHECK_EQUAL(recording.definitions, 3 + 2);  // the process and its ring come first
  free_recording(&recording);
}

static void scratch_ring(const char *scratch) {
  Ring *ring = make_ring(scratch);
  put_numbers(ring, kProducer, 0, 10);
  Ring *copy = ring_scratch(ring, 2000);
  CHECK(copy);
  Record record = numbered_record(kProducer, 5);
  for (int i = 0; i < 1000; i++) ring_close(copy, copy, ring_open(copy, &record));
  put_numbers(copy, kProducer, 10, 2010);
  free(copy);
  close_ring(ring);
  Recording recording = {0};
  read_recording(&recording, scratch);
  check_undamaged(&recording);
  check_numbers(&recording, kProducer, 10);
  CHECK_EQUAL(recording.open.count, 0);
  free_recording(&recording);
}

// Opens spans numbered from .. to and keeps their slots.
static void open_spans(Ring *ring, uint32_t *slots, uint64_t from, uint64_t to) {
  for (uint64_t number = from; number < to; number++) {
    Record record = numbered_record(kProducer, number);
    slots[number] = ring_open(ring, &record);
  }
}

static void close_spans(Ring *ring, Ring *owner, const uint32_t *slots, uint64_t from,
                        uint64_t to) {
  for (uint64_t number = from; number < to; number++) {
    put_numbers(ring, kProducer, number, number + 1);
    ring_close(ring, owner, slots[number]);
  }
}

static size_t count_kind(const Recording *recording, uint8_t kind) {
  size_t count = 0;
  for (size_t i = 0; i < recording->records.count; i++) {
    count += recording->records.items[i].kind == kind;
  }
  return count;
}

static void open_and_spill(const char *scratch) {
  enum { kSpans = kOpenSlots + 44 };
  Ring *ring = make_ring(scratch);
  uint32_t slots[kSpans];
  bool used[kOpenSlots] = {false};
  open_spans(ring, slots, 0, kSpans);
  for (int i = 0; i < kOpenSlots; i++) {
    CHECK(slots[i] < kOpenSlots && !used[slots[i]]);
    used[slots[i]] = true;
  }
  for (int i = kOpenSlots; i < kSpans; i++) CHECK_EQUAL(slots[i], kNoSlot);
  Recording begun = {0};
  read_recording(&begun, scratch);
  CHECK_EQUAL(begun.open.count, kOpenSlots);
  CHECK_EQUAL(count_kind(&begun, kKindOpen), kSpans - kOpenSlots);
  for (int i = 0; i < kOpenSlots; i++) {
    const ReadRecord *open = &begun.open.items[i];
    Record written = numbered_record(kProducer, open->start_ns - 1);
    CHECK(open->name == kProducer && open->attributes == written.attributes);
    CHECK_EQUAL(open->lane, written.lane);
  }
  free_recording(&begun);

  close_spans(ring, ring, slots, 0, kSpans);
  CHECK_EQUAL(ring->free_count, kOpenSlots);
  close_ring(ring);
  Recording ended = {0};
  read_recording(&ended, scratch);
  CHECK_EQUAL(ended.open.count, 0);
  check_numbers(&ended, kProducer, kSpans);
  free_recording(&ended);
}

typedef struct {
  Ring *owner;
  const uint32_t *slots;
} Foreign;

// As under the GIL, the owner does nothing meanwhile.
static void *close_ten(void *argument) {
  Foreign *foreign = argument;
  Ring *own = ring_scratch(foreign->owner, 10);
  CHECK(own);
  close_spans(own, foreign->owner, foreign->slots, 100, 110);
  free(own);
  return NULL;
}

static void foreign_close(const char *scratch) {
  enum { kSpans = kOpenSlots + 11 };
  Ring *ring = make_ring(scratch);
  uint32_t slots[kSpans];
  open_spans(ring, slots, 0, kOpenSlots);
  Foreign foreign = {ring, slots};
  in_thread(close_ten, &foreign);
  CHECK_EQUAL(ring->free_count, 0);
  open_spans(ring, slots, kOpenSlots, kSpans);
  bool again[kOpenSlots] = {false};
  for (int i = 100; i < 110; i++) again[slots[i]] = true;
  for (int i = kOpenSlots; i < kSpans - 1; i++) {
    CHECK(slots[i] < kOpenSlots && again[slots[i]]);
    again[slots[i]] = false;
  }
  CHECK_EQUAL(slots[kSpans - 1], kNoSlot);
  close_ring(ring);
}

const Test kRingTests[] = {
    {"Records that fit the ring are read from the ring file alone", put_without_chunk},
    {"Writing to a new ring causes no page faults", put_without_page_faults},
    {"A producer whose ring is full writes its own chunk", put_more_than_fits},
    {"A chunk may run over the end of the ring", chunk_over_the_end},
    {"Records come back in the order in which they were put", order_kept},
    {"A half full ring starts the drain thread, and holding ends it", drain_thread},
    {"Holding and releasing the drain thread again and again loses nothing", hold_and_release},
    {"Definitions of any length are read back whole", definitions},
    {"A scratch ring leaves nothing in the recording", scratch_ring},
    {"Spans beyond the 256 of the open table go to the ring", open_and_spill},
    {"Slots that another thread cleared are found again", foreign_close},
    {NULL, NULL},
};
