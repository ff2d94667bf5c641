// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "clock.h"
#include "crc32.h"
#include "guard.h"
#include "ring.h"
#include "usage.h"

// File systems on which a shared mapping is slow, incoherent or lost with the network.
static const unsigned long kNetworkFileSystems[] = {
    0x6969,      // NFS
    0xff534d42,  // CIFS
    0xfe534d42,  // SMB2
    0x0bd00bd0,  // Lustre
    0x00c36400,  // Ceph
    0x01021997,  // 9p
    0x65735546,  // FUSE
    0x47504653,  // GPFS
    0x19830326,  // BeeGFS
    0x73757245,  // Coda
    0x5346414f,  // AFS
};

bool log_is_network(const char *directory) {
  struct statfs info;
  if (statfs(directory, &info) != 0) return false;
  for (size_t i = 0; i < sizeof kNetworkFileSystems / sizeof *kNetworkFileSystems; i++) {
    if ((unsigned long)info.f_type == kNetworkFileSystems[i]) return true;
  }
  return false;
}

// Clock ticks between boot and this process's start: a pid that is used again differs here.
static unsigned long long process_start(void) {
  char text[1024];
  int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0) return 0;
  text[length] = 0;
  // The second field is the program's name in parentheses and may contain anything.
  const char *field = strrchr(text, ')');
  for (int number = 2; field && number < 22; number++) field = strchr(field + 1, ' ');
  return field ? strtoull(field + 1, NULL, 10) : 0;
}

static int open_append(const Log *log, const char *ending) {
  char path[sizeof log->prefix + 32];
  snprintf(path, sizeof path, "%s.%s", log->prefix, ending);
  return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
}

typedef struct {
  char host[65];
  int pid;
  unsigned long long start;
} Identity;

static Identity identify(void) {
  Identity self = {.pid = getpid(), .start = process_start()};
  gethostname(self.host, sizeof self.host - 1);
  for (char *c = self.host; *c; c++) {
    bool plain = (*c >= '0' && *c <= '9') || (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z');
    if (!plain && *c != '-') *c = '_';
  }
  return self;
}

static void name_files(Log *log, const char *directory, const Identity *self) {
  uint32_t noise = 0;
  if (getrandom(&noise, sizeof noise, GRND_NONBLOCK) != sizeof noise) noise = (uint32_t)clock_ns();
  snprintf(log->prefix, sizeof log->prefix, "%s/%s-%d-%llu-%08x", directory, self->host, self->pid,
           self->start, noise);
}

static void define_process(Log *log, const Identity *self) {
  char text[256];
  int length = snprintf(text, sizeof text,
                        "{\"pid\": %d, \"parent\": %d, \"host\": \"%s\", \"start\": %llu, "
                        "\"recorder\": \"C\", \"version\": %d}",
                        self->pid, getppid(), self->host, self->start, kFormatVersion);
  log_define(log, kDefineProcess, 0, text, (size_t)length);
}

Log *log_open(const char *directory, uint32_t serial, uint32_t generation) {
  Log *log = calloc(1, sizeof *log);
  if (log == NULL) return NULL;
  Identity self = identify();
  name_files(log, directory, &self);
  log->chunks.fd = open_append(log, "chunks");
  log->definitions.fd = log->chunks.fd < 0 ? -1 : open_append(log, "definitions");
  if (log->definitions.fd < 0) {
    int failure = errno;
    if (log->chunks.fd >= 0) {
      close(log->chunks.fd);
      char path[sizeof log->prefix + 32];
      snprintf(path, sizeof path, "%s.chunks", log->prefix);
      unlink(path);
    }
    free(log);
    errno = failure;
    return NULL;
  }
  log->serial = serial;
  log->generation = generation;
  log->references = 1;
  log->keep_rings = !log_is_network(directory);
  struct stat info;
  if (stat(directory, &info) == 0) {
    log->device = info.st_dev;
    log->inode = info.st_ino;
  }
  atomic_init(&log->next_string, 1);
  pthread_mutex_init(&log->write_lock, NULL);
  pthread_mutex_init(&log->define_lock, NULL);
  sem_init(&log->wake, 0, 0);
  define_process(log, &self);
  return log;
}

void log_free(Log *log) {
  close(log->chunks.fd);
  close(log->definitions.fd);
  sem_destroy(&log->wake);
  pthread_mutex_destroy(&log->define_lock);
  pthread_mutex_destroy(&log->write_lock);
  free(log);
}

static bool append(Log *log, AppendFile *file, struct iovec *parts, int count) {
  FsizeGuard guard;
  fsize_guard_enter(&guard);
  uint64_t offset = file->offset;
  int failure = 0;
  while (count > 0) {
    ssize_t written = pwritev(file->fd, parts, count, (off_t)offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      failure = written < 0 ? errno : EIO;
      break;
    }
    offset += (uint64_t)written;
    for (; count > 0 && (size_t)written >= parts->iov_len; parts++, count--) {
      written -= (ssize_t)parts->iov_len;
    }
    if (count > 0) {
      parts->iov_base = (char *)parts->iov_base + written;
      parts->iov_len -= (size_t)written;
    }
  }
  fsize_guard_leave(&guard, failure == EFBIG);
  if (failure == 0) {
    file->offset = offset;
    return true;
  }
  int none = 0;
  atomic_compare_exchange_strong(&log->failed_errno, &none, failure);
  return false;
}

bool log_define(Log *log, DefinitionKind kind, uint32_t id, const void *data, size_t length) {
  DefinitionHeader header = {DEFINITION_MAGIC, kind, id, (uint32_t)length, 0};
  header.crc = crc32_update(crc32_update(0, &header, sizeof header), data, length);
  struct iovec parts[] = {{&header, sizeof header}, {(void *)data, length}};
  pthread_mutex_lock(&log->define_lock);
  bool written = length < UINT32_MAX && append(log, &log->definitions, parts, 2);
  if (!written) log->lost_definitions++;
  pthread_mutex_unlock(&log->define_lock);
  return written;
}

void log_write_chunk(Log *log, Ring *ring) {
  uint64_t tail = atomic_load_explicit(&ring->shared->tail, memory_order_relaxed);
  uint64_t head = atomic_load_explicit(&ring->shared->head, memory_order_acquire);
  uint64_t count = head - tail;
  if (count == 0) return;
  // The user's bound: what came first stays, and what is given up is counted.
  if (log->max_log_bytes && log->chunks.offset + count * kRecordBytes > log->max_log_bytes) {
    atomic_store_explicit(&ring->shared->failed_errno, EDQUOT, memory_order_relaxed);
    atomic_fetch_add_explicit(&ring->shared->dropped, count, memory_order_relaxed);
    atomic_store_explicit(&ring->shared->tail, head, memory_order_release);
    return;
  }
  uint64_t first = tail & (kRingRecords - 1);
  uint64_t before_wrap = count < kRingRecords - first ? count : kRingRecords - first;
  ChunkHeader header = {CHUNK_MAGIC, ring->shared->ring, tail, (uint32_t)count, 0, 0};
  struct iovec parts[] = {
      {&header, sizeof header},
      {ring->records + first, before_wrap * kRecordBytes},
      {ring->records, (count - before_wrap) * kRecordBytes},
  };
  uint32_t crc = crc32_update(0, &header, sizeof header);
  crc = crc32_update(crc, parts[1].iov_base, parts[1].iov_len);
  header.crc = crc32_update(crc, parts[2].iov_base, parts[2].iov_len);
  if (append(log, &log->chunks, parts, 3)) {
    atomic_store_explicit(&ring->shared->tail, head, memory_order_release);
    return;
  }
  atomic_store_explicit(&ring->shared->failed_errno, (uint64_t)log->failed_errno,
                        memory_order_relaxed);
  // There may be room on disk again later. While the ring has room too, nothing need be lost.
  if (count < kRingRecords) return;
  atomic_fetch_add_explicit(&ring->shared->dropped, count / 2, memory_order_relaxed);
  atomic_store_explicit(&ring->shared->tail, tail + count / 2, memory_order_release);
}

bool log_append_chunk(Log *log, uint32_t ring, uint64_t first, const Record *records,
                      uint32_t count) {
  size_t length = count * (size_t)kRecordBytes;
  if (count == 0) return false;
  if (log->max_log_bytes && log->chunks.offset + length > log->max_log_bytes) return false;
  ChunkHeader header = {CHUNK_MAGIC, ring, first, count, 0, 0};
  struct iovec parts[] = {{&header, sizeof header}, {(void *)records, length}};
  header.crc = crc32_update(crc32_update(0, &header, sizeof header), records, length);
  return append(log, &log->chunks, parts, 2);
}

// Waits until there is something to drain, or until a time of CLOCK_MONOTONIC.
static void wait_for_work(Log *log, uint64_t until_ns) {
  uint64_t now_ns = clock_monotonic_ns();
  uint64_t pause_ns = until_ns > now_ns ? until_ns - now_ns : 0;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  pause_ns += (uint64_t)until.tv_nsec;
  until.tv_sec += (time_t)(pause_ns / 1000000000u);
  until.tv_nsec = (long)(pause_ns % 1000000000u);
  while (sem_timedwait(&log->wake, &until) != 0 && errno == EINTR) continue;
}

static void *drain(void *argument) {
  Log *log = argument;
  atomic_store(&log->drainer_tid, (int)syscall(SYS_gettid));
  uint64_t usage_ns = clock_monotonic_ns() + USAGE_INTERVAL_NS;
  for (;;) {
    wait_for_work(log, usage_ns);
    if (atomic_load(&log->stop_draining)) return NULL;
    if (clock_monotonic_ns() >= usage_ns) {
      usage_put(log);
      usage_ns = clock_monotonic_ns() + USAGE_INTERVAL_NS;
    }
    pthread_mutex_lock(&log->write_lock);
    for (Ring *ring = log->rings; ring; ring = ring->next) {
      uint64_t began_ns = clock_ns();
      uint64_t used = atomic_load_explicit(&ring->shared->head, memory_order_acquire) -
                      atomic_load_explicit(&ring->shared->tail, memory_order_relaxed);
      if (used < kRingRecords / 4) continue;
      log_write_chunk(log, ring);
      atomic_fetch_add_explicit(&ring->shared->drain_ns, clock_ns() - began_ns,
                                memory_order_relaxed);
    }
    pthread_mutex_unlock(&log->write_lock);
  }
}

static void start_drainer(Log *log) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 * 1024);
  sigset_t all, before;
  sigfillset(&all);
  // The program's signals belong to the program's threads.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  atomic_store(&log->stop_draining, false);
  log->draining = pthread_create(&log->drainer, &attributes, drain, log) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  if (log->draining) pthread_setname_np(log->drainer, "strobe-drain");
}

void log_start_drainer(Log *log) {
  pthread_mutex_lock(&log->write_lock);
  if (!log->draining && !log->hold_drainer) start_drainer(log);
  pthread_mutex_unlock(&log->write_lock);
}

void log_wake_drainer(Log *log) {
  // Taken by the drain thread or by a thread that drains itself: no need to wait for it.
  if (pthread_mutex_trylock(&log->write_lock) == 0) {
    if (!log->draining && !log->hold_drainer) start_drainer(log);
    pthread_mutex_unlock(&log->write_lock);
  }
  sem_post(&log->wake);
}

void log_hold_drainer(Log *log) {
  pthread_mutex_lock(&log->write_lock);
  log->hold_drainer = true;
  bool running = log->draining;
  log->draining = false;
  pthread_mutex_unlock(&log->write_lock);
  if (!running) return;
  atomic_store(&log->stop_draining, true);
  sem_post(&log->wake);
  pthread_join(log->drainer, NULL);
  // Joined is not gone: for an instant the system still counts the thread, and so may Python.
  int tid = atomic_load(&log->drainer_tid);
  while (syscall(SYS_tgkill, getpid(), tid, 0) == 0) sched_yield();
}

void log_release_drainer(Log *log) {
  pthread_mutex_lock(&log->write_lock);
  log->hold_drainer = false;
  pthread_mutex_unlock(&log->write_lock);
}
