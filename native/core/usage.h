// SPDX-License-Identifier: Apache-2.0
// Memory and threads of this process as the system counts them, as counters of its log. Needs no
// GIL: a program that keeps it for long is seen all the same.
#pragma once

#include "log.h"

// Twice a second: under load, when a thread has to wait for its turn, that is still once.
#define USAGE_INTERVAL_NS 500000000u

// Defines the counters' names, and records the first values.
void usage_open(Log *log);

// Records the values of now, if usage_open has been called.
void usage_put(Log *log);
