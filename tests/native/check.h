// SPDX-License-Identifier: Apache-2.0
// A test is a function that returns when all is well. Each runs in a process of its own with an
// empty directory, so it may leave behind threads, limits and files.
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
  const char *name;
  void (*run)(const char *scratch);
} Test;

// Each file's tests, ended by one without a name.
extern const Test kCrc32Tests[], kRingTests[], kRecorderTests[], kForkTests[], kFailureTests[],
    kSpawnTests[], kTextsTests[], kWireTests[], kJsonTests[], kBudgetTests[];

// The threads and children that a test started must not outlive its failure: no exit handlers.
#define CHECK(condition)                                                    \
  do {                                                                      \
    if (condition) break;                                                   \
    fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
    _exit(1);                                                               \
  } while (0)

#define CHECK_EQUAL(left, right)                                                                   \
  do {                                                                                             \
    long long left_ = (long long)(left), right_ = (long long)(right);                              \
    if (left_ == right_) break;                                                                    \
    fprintf(stderr, "%s:%d: %s is %lld, not %s, %lld\n", __FILE__, __LINE__, #left, left_, #right, \
            right_);                                                                               \
    _exit(1);                                                                                      \
  } while (0)

// Ends the test as one that cannot be run here.
_Noreturn void skip(const char *reason);

// This program, which does what spawn_tests.c says when called with --describe.
extern char program_path[4096];
int describe_self(const char *output);
