// SPDX-License-Identifier: Apache-2.0
// Who holds what a framework has allocated, known at any time: once memory has run out there is none
// to read the log with.
#pragma once

#include "ring.h"

enum {
  kMostHolders = 2048,  // in an answer; what the others hold goes to nobody
  kHoldersBefore = 0,   // the owner of what was there before
};
#define HOLDERS_NOBODY UINT32_MAX

// What an owner, a text of the log, holds on a device.
typedef struct {
  uint64_t blocks;  // 0: a free place
  int64_t bytes;
  uint32_t owner;
  int32_t device;
} Holder;

// Bytes were allocated at an address, or freed where negative; device -1: the host. The owner is the
// innermost span that is open in the ring's thread.
void holders_change(const Ring *ring, int64_t bytes, uint64_t address, int device);

// A block that was there before, unless it is known.
void holders_before(const Ring *ring, int64_t bytes, uint64_t address, int device);

void holders_forget(void);

// Writes kMostHolders places, in no order, and returns the serial number of the owners' log.
uint32_t holders_sum(Holder *found);

// Around a fork, so that the child does not inherit the table half changed.
void holders_lock(void);
void holders_unlock(void);
