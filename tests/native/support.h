// SPDX-License-Identifier: Apache-2.0
// What the tests do again and again.
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "check.h"
#include "reader.h"
#include "recorder.h"

// Fewer where every instruction is watched or emulated, but always more than a ring holds.
#ifndef RECORDS_PER_THREAD
#define RECORDS_PER_THREAD 200000
#endif

typedef struct {
  char text[1024];
} Path;

Path below(const char *directory, const char *name);
Path make_directory(const char *scratch, const char *name);

// Gives this process a recorder with a control page that its children share.
void prepare_recorder(void);
// The same, recording into a new directory.
Path start_recording(const char *scratch);

// Record `number` of a producer; what it holds follows from the two.
Record numbered_record(uint32_t producer, uint64_t number);
void put_numbers(Ring *ring, uint32_t producer, uint64_t from, uint64_t to);
// The same, asking for the thread's ring each time as the hooks do.
void record_numbers(uint32_t producer, uint64_t from, uint64_t to);

// The producer's records 0 .. count are all there, once, and no others of its.
void check_numbers(const Recording *recording, uint32_t producer, uint64_t count);
// No torn bytes, nothing missing, nothing dropped.
void check_undamaged(const Recording *recording);

// Runs the function in a thread until its end.
void in_thread(void *(*run)(void *), void *argument);

// A child that runs the function and exits with 0.
pid_t start_child(void (*run)(void *), void *argument);
void expect_success(pid_t child);

// Waits up to half a minute.
void wait_until(bool (*reached)(void *), void *argument);

// Threads of this process that the kernel knows by this name.
int threads_named(const char *name);
int open_files(void);
bool has_drainer(void *nothing);
bool has_no_drainer(void *nothing);
