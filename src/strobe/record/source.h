// SPDX-License-Identifier: Apache-2.0
// What a source that is compiled elsewhere (the callback for the installed PyTorch) uses of the
// recorder. strobe.record._core hands the table out as a capsule. C and C++; needs nothing of ours.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STROBE_SOURCE_CAPSULE "strobe.record._core.source"

enum { STROBE_SOURCE_VERSION = 3 };

// Places in strobe.model.tables.CATEGORIES.
enum {
  STROBE_OPERATOR = 1,
  STROBE_BACKWARD = 2,
  STROBE_ANNOTATION = 3,
  STROBE_COMMUNICATION = 6,
};

// Places in strobe.model.tables.SOURCES, as a record's category has them besides.
enum { STROBE_TORCH = 1 << 4 };

// Where the calling thread records now. `serial` tells whose numbers texts have: those of the log
// that is being written.
typedef struct {
  void *ring;  // NULL while recording is off
  uint32_t serial;
} StrobePlace;

// A span that has begun; the first four are the recorder's.
typedef struct {
  void *ring;
  uint64_t start_ns;
  uint32_t serial;
  uint32_t slot;
  uint32_t name;
  uint32_t attributes;
  uint32_t lane;
  uint32_t category;
} StrobeSpan;

// Every function may be called from any thread, with or without the GIL, and never fails: what
// cannot be recorded is dropped and counted.
typedef struct {
  uint32_t version;
  StrobePlace (*place)(void);
  // The number of a UTF-8 text; 0 when it cannot be had.
  uint32_t (*text)(const char *bytes, size_t length);
  // Begins the span whose name, attributes and category are set, in the place that this thread has
  // asked for; span->ring is NULL afterwards if that is gone.
  void (*begin)(StrobePlace place, StrobeSpan *span);
  // Ends it, in this or another thread. sequence -1: none; else `thread` is the framework's number
  // of the thread whose forward operator has this sequence number.
  void (*end)(StrobeSpan *span, int64_t sequence, uint32_t thread);
  // `bytes` were allocated at an address, or freed where negative; device -1: the host.
  void (*memory)(int64_t bytes, uint64_t address, int device, uint32_t source);
  // To measure what recording costs: until end_trial(), at most so many records of this thread go
  // nowhere. Runs no Python code, and none may run in between. False if that is impossible now.
  bool (*begin_trial)(size_t records);
  void (*end_trial)(void);
  uint64_t (*clock_ns)(void);
} StrobeSource;
