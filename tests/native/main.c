// SPDX-License-Identifier: Apache-2.0
// native_tests DIRECTORY [PART_OF_A_NAME]: runs the tests, prints one line for each.
#define _GNU_SOURCE
#include <ftw.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "check.h"

enum { kSkipped = 77, kMostSeconds = 400 };

char program_path[4096];
static const char *running;

_Noreturn void skip(const char *reason) {
  printf("skip  %s: %s\n", running, reason);
  exit(kSkipped);
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place) {
  (void)info, (void)kind, (void)place;
  return remove(path);
}

// The exit status of a process that runs the test, or minus the signal that ended it.
static int run_apart(const Test *test, const char *directory) {
  char scratch[4096];
  snprintf(scratch, sizeof scratch, "%s/test", directory);
  CHECK(mkdir(scratch, 0700) == 0);
  running = test->name;
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(kMostSeconds);
    test->run(scratch);
    exit(0);
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  nftw(scratch, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "--describe") == 0) return describe_self(argv[2]);
  if (argc < 2 || realpath(argv[0], program_path) == NULL) return 2;
  const Test *files[] = {kCrc32Tests, kRingTests,  kRecorderTests, kForkTests, kFailureTests,
                         kSpawnTests, kTextsTests, kWireTests,     kJsonTests, kBudgetTests};
  int passed = 0, failed = 0, skipped = 0;
  for (size_t file = 0; file < sizeof files / sizeof *files; file++) {
    for (const Test *test = files[file]; test->name; test++) {
      if (argc > 2 && !strstr(test->name, argv[2])) continue;
      int status = run_apart(test, argv[1]);
      passed += status == 0;
      skipped += status == kSkipped;
      if (status == kSkipped) continue;
      if (status == 0) {
        printf("ok    %s\n", test->name);
        continue;
      }
      failed++;
      printf("FAIL  %s (%s %d)\n", test->name, status < 0 ? "signal" : "status", abs(status));
    }
  }
  printf("%d passed, %d failed", passed, failed);
  if (skipped) printf(", %d skipped", skipped);
  printf("\n");
  return failed != 0;
}
