// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "guard.h"

#ifndef MADV_POPULATE_WRITE  // headers older than Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

enum {
  kRecordsOffset = kPageBytes + kOpenSlots * sizeof(OpenSlot),
  kMapBytes = kRecordsOffset + kRingRecords * kRecordBytes,
  kUnsafeRecords = 256,  // a ring that dies with the process holds no more than this
};

static void note_unsafe(Log *log, uint32_t number) {
  char text[160];
  int length = snprintf(text, sizeof text,
                        "ring %u is in private memory: if the process ends without stop(), up to "
                        "%d of its last records are lost",
                        number, kUnsafeRecords);
  log_define(log, kDefineNote, number, text, (size_t)length);
}

// The first write to each page of a shared file is a fault, which takes some microseconds of the
// program's time, even if MAP_POPULATE has mapped the page. Making all pages writable at once takes a
// tenth of that. Linux before 5.14 refuses; then each page still has its fault.
static void make_writable(void *map) {
  madvise(map, kMapBytes, MADV_POPULATE_WRITE);
}

// A mapped file whose blocks exist: touching a hole on a full disk is SIGBUS.
static void *map_file(const char *path) {
  int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return NULL;
  FsizeGuard guard;
  fsize_guard_enter(&guard);
  int failure;
  do failure = posix_fallocate(fd, 0, kMapBytes);
  while (failure == EINTR);
  fsize_guard_leave(&guard, failure == EFBIG);
  void *map = MAP_FAILED;
  if (failure == 0) {
    map = mmap(NULL, kMapBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  close(fd);
  if (map != MAP_FAILED) {
    make_writable(map);
    return map;
  }
  unlink(path);
  return NULL;
}

// Whether the log's directory is where it was: of one that is gone nobody would look for a ring.
static bool has_directory(const Log *log) {
  char directory[sizeof log->prefix];
  struct stat info;
  memcpy(directory, log->prefix, sizeof directory);
  *strrchr(directory, '/') = 0;
  return stat(directory, &info) == 0 && info.st_dev == log->device && info.st_ino == log->inode;
}

// Elsewhere on this host, under a name that follows from the recording's id: a reader looks for it
// in the folders that it knows, and never where a recording says.
static void *map_elsewhere(Log *log, const char *directory, uint32_t number) {
  const char *name = strrchr(log->prefix, '/') + 1;
  char path[kPathBytes];
  int length = snprintf(path, sizeof path, "%s/strobe-%016llx-%s.%u.ring", directory,
                        (unsigned long long)log->recording, name, number);
  if (length >= (int)sizeof path) return NULL;
  void *map = map_file(path);
  if (map != NULL) log_define(log, kDefineRing, number, directory, strlen(directory));
  return map;
}

static void *map_ring(Log *log, uint32_t number, Ring *ring) {
  char path[sizeof log->prefix + 32];
  snprintf(path, sizeof path, "%s.%u.ring", log->prefix, number);
  const char *tmp = getenv("TMPDIR");
  void *map = log->keep_rings ? map_file(path) : NULL;
  if (map != NULL) {
    log_define(log, kDefineRing, number, "", 0);
    return map;
  }
  if (has_directory(log)) {
    map = map_elsewhere(log, tmp && *tmp == '/' ? tmp : "/tmp", number);
    if (map == NULL) map = map_elsewhere(log, "/dev/shm", number);
  }
  ring->elsewhere = map != NULL;
  if (map != NULL) return map;
  ring->anonymous = true;
  map = mmap(NULL, kMapBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return map == MAP_FAILED ? NULL : map;
}

static void note_refused(Log *log) {
  char text[160];
  int length =
      snprintf(text, sizeof text, "thread %ld was not recorded: max_memory_bytes allows %u rings",
               syscall(SYS_gettid), log->next_ring);
  log_define(log, kDefineNote, 0, text, (size_t)length);
}

Ring *ring_create(Log *log) {
  if (log->max_ring_bytes && (log->next_ring + 1ull) * kMapBytes > log->max_ring_bytes) {
    note_refused(log);
    return NULL;
  }
  Ring *ring = calloc(1, sizeof *ring);
  if (ring == NULL) return NULL;
  uint32_t number = log->next_ring++;
  char *map = map_ring(log, number, ring);
  if (map == NULL) {
    free(ring);
    return NULL;
  }
  ring->shared = (RingHeader *)map;
  ring->open = (OpenSlot *)(map + kPageBytes);
  ring->records = (Record *)(map + kRecordsOffset);
  ring->limit = ring->anonymous ? kUnsafeRecords : kRingRecords / 2;
  if (ring->anonymous) note_unsafe(log, number);
  for (int slot = 0; slot < kOpenSlots; slot++) {
    ring->free_slots[slot] = (uint16_t)(kOpenSlots - 1 - slot);
  }
  ring->free_count = kOpenSlots;
  ring->log = log;
  ring->serial = log->serial;
  ring->shared->version = kFormatVersion;
  ring->shared->ring = number;
  ring->shared->capacity = kRingRecords;
  ring->shared->open_slots = kOpenSlots;
  ring->shared->pid = (uint32_t)getpid();
  ring->shared->log_device = log->device;
  ring->shared->log_inode = log->inode;
  // Last: a reader passes over a ring whose maker was killed before this line.
  atomic_thread_fence(memory_order_release);
  ring->shared->magic = RING_MAGIC;
  ring->next = log->rings;
  log->rings = ring;
  return ring;
}

void ring_free(Ring *ring) {
  munmap(ring->shared, kMapBytes);
  free(ring->lanes);
  free(ring);
}

Ring *ring_scratch(const Ring *ring, size_t records) {
  char *memory = calloc(1, sizeof *ring + kRecordsOffset + records * kRecordBytes);
  if (memory == NULL) return NULL;
  Ring *scratch = (Ring *)memory;
  memcpy(scratch, ring, sizeof *ring);
  memory += sizeof *ring;
  scratch->shared = (RingHeader *)memory;
  scratch->open = (OpenSlot *)(memory + kPageBytes);
  scratch->records = (Record *)(memory + kRecordsOffset);
  scratch->head = 0;
  scratch->limit = UINT64_MAX;
  return scratch;
}

void ring_forget_lanes(Ring *ring) {
  free(ring->lanes);
  ring->lanes = NULL;
  ring->lane_count = ring->lane_capacity = 0;
}

void ring_make_room(Ring *ring) {
  uint64_t began_ns = clock_ns();
  uint64_t half = kRingRecords / 2;
  uint64_t tail = atomic_load_explicit(&ring->shared->tail, memory_order_acquire);
  if (ring->head - tail >= half) log_wake_drainer(ring->log);
  if (ring->head - tail >= kRingRecords || ring->anonymous) {
    // The drain has not kept up: this thread does its share of the work instead of losing records.
    pthread_mutex_lock(&ring->log->write_lock);
    tail = atomic_load_explicit(&ring->shared->tail, memory_order_relaxed);
    if (ring->head - tail >= kRingRecords || ring->anonymous) log_write_chunk(ring->log, ring);
    pthread_mutex_unlock(&ring->log->write_lock);
    tail = atomic_load_explicit(&ring->shared->tail, memory_order_relaxed);
  }
  ring->limit = ring->head - tail < half ? tail + half : tail + kRingRecords;
  if (ring->anonymous && ring->limit > ring->head + kUnsafeRecords) {
    ring->limit = ring->head + kUnsafeRecords;
  }
  atomic_fetch_add_explicit(&ring->shared->own_ns, clock_ns() - began_ns, memory_order_relaxed);
}

uint32_t ring_reclaim_slot(Ring *ring) {
  for (uint32_t slot = 0; slot < kOpenSlots; slot++) {
    if (atomic_load_explicit(&ring->open[slot].start_ns, memory_order_acquire) == 0) {
      ring->free_slots[ring->free_count++] = (uint16_t)slot;
    }
  }
  return ring->free_count ? ring->free_slots[--ring->free_count] : kNoSlot;
}
