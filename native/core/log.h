// SPDX-License-Identifier: Apache-2.0
// One process's part of a chunk log: a chunk file, a definitions file and the rings that feed them.
// Nothing here touches a Python object or needs the GIL.
#pragma once

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stddef.h>

#include "format.h"

typedef struct Ring Ring;

// A file that only grows. A failed write leaves the offset where it was, so the next one overwrites
// the torn bytes and the file stays readable.
typedef struct {
  int fd;
  uint64_t offset;
} AppendFile;

enum { kUsageCounters = 3 };

// What usage.c keeps of a log. Its records are chunks of a ring of their own, which has no file.
typedef struct {
  bool is_open;
  uint32_t ring;
  uint32_t names[kUsageCounters];
  uint64_t records;  // so far; under write_lock
} Usage;

typedef struct Log {
  uint32_t serial;         // unique in this process: rings and open spans of another log are stale
  uint32_t generation;     // of the control page that asked for it
  int references;          // rings plus the recorder itself; under the recorder's lock
  bool keep_rings;         // the directory's file system may hold ring files
  uint64_t max_log_bytes;  // 0: no limit, as the next
  uint64_t max_ring_bytes;
  uint64_t recording;      // the id of the recording whose log this is
  uint64_t device, inode;  // of the directory
  struct Log *next;        // in the recorder's list of logs that have rings; under its lock

  pthread_mutex_t write_lock;  // the chunk file, every ring's tail, the list of rings
  AppendFile chunks;
  Ring *rings;
  uint32_t next_ring;

  Usage usage;

  pthread_mutex_t define_lock;  // of its own: a new name need not wait for the drain's write
  AppendFile definitions;
  uint64_t lost_definitions;

  _Atomic int failed_errno;  // of the first write that failed

  _Atomic uint32_t next_string;
  _Atomic uint32_t next_values;  // the number of the next set of attributes
  _Atomic uint32_t next_lane;

  pthread_t drainer;
  _Atomic int drainer_tid;
  bool draining;      // under write_lock, as is the next
  bool hold_drainer;  // while forking, and for good once closed: no thread may be started
  _Atomic bool stop_draining;
  sem_t wake;

  char prefix[kPathBytes + 512];  // directory/host-pid-start-random
} Log;

// Whether this directory is on a network file system; false if that cannot be known.
bool log_is_network(const char *directory);

// NULL with errno when the files cannot be made.
Log *log_open(const char *directory, uint32_t serial, uint32_t generation);
void log_free(Log *log);

// False when it could not be written; the loss is counted.
bool log_define(Log *log, DefinitionKind kind, uint32_t id, const void *data, size_t length);

// Moves the ring's records into the chunk file, or drops the older half where that fails. Needs
// write_lock.
void log_write_chunk(Log *log, Ring *ring);

// Appends records as one chunk of a ring; false where that fails or the log's bound is reached. Needs
// write_lock.
bool log_append_chunk(Log *log, uint32_t ring, uint64_t first, const Record *records,
                      uint32_t count);

// Starts the drain thread, unless it is there or held.
void log_start_drainer(Log *log);
// Any thread may wake it; it is started by the first that does.
void log_wake_drainer(Log *log);
// After this there is no drain thread, and none starts until it is released.
void log_hold_drainer(Log *log);
void log_release_drainer(Log *log);
