// SPDX-License-Identifier: Apache-2.0
// Who holds what a framework has allocated, known at any time: once memory has run out there is none
// to read the log with.
#pragma once

#include "ring.h"

// Bytes were allocated at an address, or freed where negative; device -1: the host. The owner is the
// innermost span that is open in the ring's thread.
void holders_change(const Ring *ring, int64_t bytes, uint64_t address, int device);

// Around a fork, so that the child does not inherit the table half changed.
void holders_lock(void);
void holders_unlock(void);
