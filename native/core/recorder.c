// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "guard.h"
#include "holders.h"
#include "texts.h"
#include "usage.h"

static ControlPage off_page;
ControlPage *_Atomic recorder_control = &off_page;
_Thread_local Ring *recorder_thread_ring FAST_TLS;
// The generation, and the page it is of, in which this thread could not get a ring: asked once, not
// at each span.
static _Thread_local uint32_t refused_generation FAST_TLS;
static _Thread_local const ControlPage *refused_page FAST_TLS;

// The one piece of global state: rings belong to the process, whatever sessions come and go.
static struct {
  pthread_mutex_t lock;  // taken before any log's write_lock
  Log *log;              // the current one; NULL while off
  Log *logs;             // it and those before it whose rings have not all been let go
  uint32_t serial;
  pthread_key_t thread_end;
  bool initialized;
  bool watches_usage;
} recorder = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void unreference(Log *log) {
  if (--log->references > 0) return;
  for (Log **link = &recorder.logs; *link; link = &(*link)->next) {
    if (*link != log) continue;
    *link = log->next;
    break;
  }
  log_free(log);
}

// Leaves the ring's bytes to the reader. Needs the recorder's lock.
static void retire_ring(Ring *ring) {
  Log *log = ring->log;
  pthread_mutex_lock(&log->write_lock);
  // A child that follows the control page gets here without anyone having closed its log.
  if (ring->anonymous || ring->elsewhere) log_write_chunk(log, ring);
  for (Ring **link = &log->rings; *link; link = &(*link)->next) {
    if (*link != ring) continue;
    *link = ring->next;
    break;
  }
  pthread_mutex_unlock(&log->write_lock);
  ring_free(ring);
  unreference(log);
}

// No thread will come for the orphans of the logs before. Not at once when a log is closed: a thread
// that is just ending a span of an ended thread may be about to clear its slot.
static void retire_orphans(void) {
  for (Log *log = recorder.logs, *next_log; log; log = next_log) {
    next_log = log->next;
    for (Ring *ring = log->rings, *next; ring; ring = next) {
      next = ring->next;
      bool last = log->references == 1;
      if (ring->orphan) retire_ring(ring);
      if (last) break;
    }
  }
}

// The log gets no more threads' rings; those that have one notice at their next record, because
// only the thread itself knows that it is not writing. Needs the recorder's lock.
static void close_log(void) {
  Log *log = recorder.log;
  if (log == NULL) return;
  recorder.log = NULL;
  log_hold_drainer(log);
  pthread_mutex_lock(&log->write_lock);
  for (Ring *ring = log->rings; ring; ring = ring->next) {
    // Another control page may come to the same generation.
    atomic_store_explicit(&ring->generation, 0, memory_order_relaxed);
    if (ring->anonymous || ring->elsewhere) log_write_chunk(log, ring);
  }
  pthread_mutex_unlock(&log->write_lock);
  unreference(log);
}

// A thread has ended. Its ring keeps its records and unfinished spans and serves the next thread.
static void release_ring(void *value) {
  Ring *ring = value;
  recorder_thread_ring = NULL;
  pthread_mutex_lock(&recorder.lock);
  if (ring->log == recorder.log) {
    ring->orphan = true;
  } else {
    retire_ring(ring);
  }
  pthread_mutex_unlock(&recorder.lock);
}

static Ring *adopt_orphan(Log *log) {
  for (Ring *ring = log->rings; ring; ring = ring->next) {
    if (!ring->orphan) continue;
    ring->orphan = false;
    ring->contexts = 0;
    ring->lane_known = ring->base_lane_known = ring->base_lane_named = false;
    ring_forget_lanes(ring);
    return ring;
  }
  return NULL;
}

// A copy of the control page as of a generation, if that is still the current one.
static bool read_page(uint32_t generation, ControlPage *copy) {
  ControlPage *page = recorder_page();
  memcpy(copy, page, sizeof *copy);
  copy->directory[kPathBytes - 1] = 0;
  atomic_thread_fence(memory_order_acquire);
  return (generation & 1) && atomic_load(&page->generation) == generation;
}

bool recorder_directory(char *directory) {
  ControlPage page;
  if (!read_page(atomic_load(&recorder_page()->generation), &page)) return false;
  memcpy(directory, page.directory, kPathBytes);
  return true;
}

static Ring *attach_locked(uint32_t generation) {
  ControlPage page;
  // Switched off, or on again elsewhere: the next record asks again.
  if (!read_page(generation, &page)) return NULL;
  refused_generation = generation;
  refused_page = recorder_page();
  if (recorder.log == NULL || recorder.log->generation != generation) {
    close_log();
    retire_orphans();
    recorder.log = log_open(page.directory, ++recorder.serial, generation);
    if (recorder.log == NULL) return NULL;
    recorder.log->max_log_bytes = page.max_log_bytes;
    recorder.log->max_ring_bytes = page.max_ring_bytes;
    recorder.log->recording = page.recording;
    clock_use((ClockScale){page.clock_base, page.clock_base_ns, page.clock_scale});
    recorder.log->next = recorder.logs;
    recorder.logs = recorder.log;
    if (recorder.watches_usage) {
      usage_open(recorder.log);
      log_start_drainer(recorder.log);
    }
  }
  Log *log = recorder.log;
  Ring *ring = adopt_orphan(log);
  if (ring == NULL) {
    pthread_mutex_lock(&log->write_lock);
    ring = ring_create(log);
    pthread_mutex_unlock(&log->write_lock);
    if (ring == NULL) return NULL;
    log->references++;
  }
  refused_generation = 0;
  atomic_store_explicit(&ring->generation, generation, memory_order_relaxed);
  pthread_setspecific(recorder.thread_end, ring);
  return ring;
}

Ring *recorder_attach(uint32_t generation) {
  if (refused_generation == generation && refused_page == recorder_page()) return NULL;
  uint64_t began_ns = clock_ns();
  pthread_mutex_lock(&recorder.lock);
  Ring *stale = recorder_thread_ring;
  recorder_thread_ring = NULL;
  pthread_setspecific(recorder.thread_end, NULL);
  if (stale) retire_ring(stale);
  Ring *ring = attach_locked(generation);
  recorder_thread_ring = ring;
  pthread_mutex_unlock(&recorder.lock);
  if (ring) {
    atomic_fetch_add_explicit(&ring->shared->once_ns, clock_ns() - began_ns, memory_order_relaxed);
  }
  return ring;
}

// The child gets one thread and no drain thread; a thread that lives during a fork makes
// Python 3.12 and later warn, so the parent starts its own again only when a ring fills, or when
// Python says that the fork is over.
static void before_fork(void) {
  pthread_mutex_lock(&recorder.lock);
  texts_lock();
  holders_lock();
  if (recorder.log == NULL) return;
  log_hold_drainer(recorder.log);
  pthread_mutex_lock(&recorder.log->write_lock);
  pthread_mutex_lock(&recorder.log->define_lock);
}

static void after_fork_in_parent(void) {
  if (recorder.log) {
    pthread_mutex_unlock(&recorder.log->define_lock);
    pthread_mutex_unlock(&recorder.log->write_lock);
    log_release_drainer(recorder.log);
  }
  holders_unlock();
  texts_unlock();
  pthread_mutex_unlock(&recorder.lock);
}

// The rings are the parent's. The child follows the control page into the same directory with
// files of its own; a span it inherited open is the parent's to end (its serial is another).
static void after_fork_in_child(void) {
  // The one thread here is the copy of the one that took the locks.
  holders_unlock();
  texts_unlock();
  pthread_mutex_unlock(&recorder.lock);
  if (recorder.log) {
    pthread_mutex_unlock(&recorder.log->define_lock);
    pthread_mutex_unlock(&recorder.log->write_lock);
  }
  recorder.log = NULL;
  recorder.serial++;
  recorder_thread_ring = NULL;
  refused_generation = 0;
  pthread_setspecific(recorder.thread_end, NULL);
  while (recorder.logs) {
    Log *log = recorder.logs;
    recorder.logs = log->next;
    while (log->rings) {
      Ring *ring = log->rings;
      log->rings = ring->next;
      ring_free(ring);
    }
    log_free(log);
  }
}

int recorder_initialize(void) {
  if (recorder.initialized) return 0;
  int failure = pthread_key_create(&recorder.thread_end, release_ring);
  if (failure == 0) {
    failure = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  }
  recorder.initialized = failure == 0;
  return failure;
}

void recorder_watch_usage(void) {
  recorder.watches_usage = true;
}

void recorder_put_usage(void) {
  pthread_mutex_lock(&recorder.lock);
  if (recorder.log) usage_put(recorder.log);
  pthread_mutex_unlock(&recorder.lock);
}

void recorder_go_on(void) {
  pthread_mutex_lock(&recorder.lock);
  if (recorder.log && recorder.watches_usage) log_start_drainer(recorder.log);
  pthread_mutex_unlock(&recorder.lock);
}

// Rings of this process's log do not know the new page's generations.
static void switch_control(ControlPage *page) {
  close_log();
  // The old page stays mapped: another thread may be looking at it.
  recorder_control = page;
}

static int map_control(const char *path, bool create, ControlPage **page) {
  int flags = MAP_SHARED | (path ? 0 : MAP_ANONYMOUS);
  int fd = -1;
  int failure = 0;
  if (path) {
    fd = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0600);
    if (fd < 0) return errno;
    if (create) {
      FsizeGuard guard;
      fsize_guard_enter(&guard);
      failure = posix_fallocate(fd, 0, kPageBytes);
      fsize_guard_leave(&guard, failure == EFBIG);
    } else if (lseek(fd, 0, SEEK_END) < kPageBytes) {
      failure = EINVAL;
    }
  }
  if (failure == 0) {
    *page = mmap(NULL, kPageBytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (*page == MAP_FAILED) failure = errno;
  }
  if (fd >= 0) close(fd);
  if (failure && create && path) unlink(path);
  return failure;
}

int recorder_use_control(const char *path, bool create) {
  ControlPage *page = NULL;
  int failure = map_control(path, create, &page);
  if (failure) return failure;
  if (create) {
    page->magic = CONTROL_MAGIC;
    page->version = kFormatVersion;
  } else if (page->magic != CONTROL_MAGIC || page->version != kFormatVersion) {
    munmap(page, kPageBytes);
    return EPROTO;
  }
  pthread_mutex_lock(&recorder.lock);
  switch_control(page);
  pthread_mutex_unlock(&recorder.lock);
  return 0;
}

int recorder_start(const char *directory, RecorderOptions options) {
  ControlPage *page = recorder_page();
  size_t length = strlen(directory);
  if (length == 0) return ENOENT;
  if (length >= kPathBytes) return ENAMETOOLONG;
  uint32_t generation = atomic_load(&page->generation);
  if (page == &off_page || generation & 1) return EBUSY;
  ClockScale scale = options.counter ? clock_measure() : (ClockScale){0, 0, 0};
  // A thread that saw the generation before may only now be reading the directory.
  pthread_mutex_lock(&recorder.lock);
  memcpy(page->directory, directory, length + 1);
  page->clock_base = scale.base;
  page->clock_base_ns = scale.base_ns;
  page->clock_scale = scale.scale;
  page->max_log_bytes = options.max_log_bytes;
  page->max_ring_bytes = options.max_ring_bytes;
  page->recording = options.recording;
  atomic_store(&page->generation, generation + 1);
  pthread_mutex_unlock(&recorder.lock);
  // The caller gets the error, if there is one, not the first span.
  errno = 0;
  Ring *ring = recorder_ring();
  if (ring != NULL) {
    // Whoever starts counts how long that took.
    atomic_store(&ring->shared->once_ns, 0);
    return 0;
  }
  int failure = errno ? errno : EIO;
  atomic_store(&page->generation, generation + 2);
  return failure;
}

int recorder_stop(void) {
  ControlPage *page = recorder_page();
  uint32_t generation = atomic_load(&page->generation);
  if (!(generation & 1)) return EINVAL;
  atomic_store(&page->generation, generation + 1);
  pthread_mutex_lock(&recorder.lock);
  close_log();
  pthread_mutex_unlock(&recorder.lock);
  return 0;
}

bool recorder_drains(void) {
  pthread_mutex_lock(&recorder.lock);
  bool drains = recorder.log && recorder.log->draining;
  pthread_mutex_unlock(&recorder.lock);
  return drains;
}

RecorderStats recorder_stats(void) {
  RecorderStats stats = {0};
  pthread_mutex_lock(&recorder.lock);
  Log *log = recorder.log;
  if (log) {
    pthread_mutex_lock(&log->write_lock);
    for (Ring *ring = log->rings; ring; ring = ring->next) {
      stats.records += atomic_load(&ring->shared->head);
      stats.dropped += atomic_load(&ring->shared->dropped);
      stats.own_ns += atomic_load(&ring->shared->own_ns);
      stats.drain_ns += atomic_load(&ring->shared->drain_ns);
      stats.anonymous_rings += ring->anonymous;
    }
    stats.records += log->usage.records;
    stats.lost_definitions = log->lost_definitions;
    stats.failed_errno = log->failed_errno;
    pthread_mutex_unlock(&log->write_lock);
  }
  pthread_mutex_unlock(&recorder.lock);
  return stats;
}
