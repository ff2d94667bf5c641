// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kStackBytes = 64 * 1024 };

typedef struct {
  char *const *argv;
  char *const *envp;
  const char *error_path;
  char *stacks;
  int failure;
} Spawn;

static void close_from(unsigned first) {
#ifdef SYS_close_range
  if (syscall(SYS_close_range, first, ~0u, 0) == 0) return;
#endif
  struct rlimit most;
  if (getrlimit(RLIMIT_NOFILE, &most) != 0 || most.rlim_cur > 65536) most.rlim_cur = 65536;
  for (unsigned fd = first; fd < most.rlim_cur; fd++) close((int)fd);
}

// Runs on the parent's memory while the parent waits: only system calls.
static int run_program(void *argument) {
  Spawn *spawn = argument;
  int nothing = open("/dev/null", O_RDWR);
  int errors = open(spawn->error_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (nothing < 0) {
    spawn->failure = errno;
    _exit(127);
  }
  // In this order either may already be one of the three: the program may have closed its own.
  dup2(nothing, 0);
  dup2(errors < 0 ? 0 : errors, 2);
  dup2(0, 1);
  close_from(3);
  if (chdir("/") != 0) spawn->failure = errno;
  for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  execve(spawn->argv[0], spawn->argv, spawn->envp);
  spawn->failure = errno;
  _exit(127);
}

// The one between: its end makes the program an orphan, which init adopts.
static int leave_orphan(void *argument) {
  Spawn *spawn = argument;
  setsid();
  if (clone(run_program, spawn->stacks + 2 * kStackBytes, CLONE_VM | CLONE_VFORK, spawn) < 0) {
    spawn->failure = errno;
  }
  _exit(0);
}

int spawn_detached(char *const argv[], char *const envp[], const char *error_path) {
  int adopts = 0;
  prctl(PR_GET_CHILD_SUBREAPER, &adopts);
  if (adopts || getpid() == 1) return ECHILD;
  Spawn spawn = {argv, envp, error_path, NULL, 0};
  spawn.stacks = mmap(NULL, 2 * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (spawn.stacks == MAP_FAILED) return errno;
  // A handler of the program's must not run in a child that shares its memory.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  // No termination signal: the child is waited for only by those who ask for such children.
  int pid = clone(leave_orphan, spawn.stacks + kStackBytes, CLONE_VM | CLONE_VFORK, &spawn);
  if (pid < 0) {
    spawn.failure = errno;
  } else {
    while (waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR) continue;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  munmap(spawn.stacks, 2 * kStackBytes);
  return spawn.failure;
}
