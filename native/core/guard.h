// SPDX-License-Identifier: Apache-2.0
// Writing past RLIMIT_FSIZE raises SIGXFSZ, which kills a program that has not asked to ignore it.
// Our writes must only fail.
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <time.h>

typedef struct {
  sigset_t before;
  bool already_pending;
} FsizeGuard;

static inline void fsize_guard_enter(FsizeGuard *guard) {
  sigset_t pending, ours;
  sigpending(&pending);
  guard->already_pending = sigismember(&pending, SIGXFSZ);
  sigemptyset(&ours);
  sigaddset(&ours, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &ours, &guard->before);
}

static inline void fsize_guard_leave(FsizeGuard *guard, bool too_large) {
  if (too_large && !guard->already_pending) {
    sigset_t ours;
    sigemptyset(&ours);
    sigaddset(&ours, SIGXFSZ);
    struct timespec now = {0, 0};
    sigtimedwait(&ours, NULL, &now);
  }
  pthread_sigmask(SIG_SETMASK, &guard->before, NULL);
}
