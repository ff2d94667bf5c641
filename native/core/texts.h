// SPDX-License-Identifier: Apache-2.0
// Texts as numbers for callers that hold no GIL. strings.c does the same for Python's str; a text
// that both know has two numbers, which the finalizer merges.
#pragma once

#include "ring.h"

// The number of a UTF-8 text in the ring's log, written there before it is returned; 0 when it
// cannot be had.
uint32_t text_id(Ring *ring, const char *bytes, size_t length);

// Copies a text of the log with this serial, as far as it fits and ended by a 0; false where it is
// not known any more.
bool text_copy(uint32_t serial, uint32_t id, char *into, size_t size);

// Around a fork, so that the child does not inherit the table half changed.
void texts_lock(void);
void texts_unlock(void);
