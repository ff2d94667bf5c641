// SPDX-License-Identifier: Apache-2.0
// spawn_detached starts this program again with --describe, which writes down how it finds itself.
#define _GNU_SOURCE
#include "spawn.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "support.h"

extern char **environ;

// Descriptors but the one that lists them, as "0 1 2 ".
static void describe_files(FILE *out) {
  DIR *files = opendir("/proc/self/fd");
  for (int fd = 0; fd < 1024; fd++) {
    if (fd != dirfd(files) && fd != fileno(out) && fcntl(fd, F_GETFD) >= 0) fprintf(out, "%d ", fd);
  }
  closedir(files);
}

int describe_self(const char *output) {
  char unfinished[4096], directory[4096];
  snprintf(unfinished, sizeof unfinished, "%s.unfinished", output);
  FILE *out = fopen(unfinished, "w");
  if (out == NULL || getcwd(directory, sizeof directory) == NULL) return 1;
  sigset_t mask;
  sigprocmask(SIG_SETMASK, NULL, &mask);
  fprintf(out, "pid %d\nparent %d\nsession %d\n", getpid(), getppid(), getsid(0));
  fprintf(out, "niceness %d\ndirectory %s\n", getpriority(PRIO_PROCESS, 0), directory);
  fprintf(out, "usr1 %s\n", sigismember(&mask, SIGUSR1) ? "blocked" : "open");
  fprintf(out, "files ");
  describe_files(out);
  fprintf(out, "\nenvironment");
  for (char **entry = environ; *entry; entry++) fprintf(out, " [%s]", *entry);
  fprintf(out, "\n");
  fclose(out);
  fprintf(stderr, "to standard error\n");
  fprintf(stdout, "to nobody\n");
  fflush(stdout);
  return rename(unfinished, output) != 0;
}

static bool exists(void *path) {
  return access(path, F_OK) == 0;
}

typedef struct {
  char text[8192];
} Text;

static Text read_text(const char *path) {
  Text read = {""};
  FILE *file = fopen(path, "r");
  CHECK(file);
  read.text[fread(read.text, 1, sizeof read.text - 1, file)] = 0;
  fclose(file);
  return read;
}

// The line of the description that begins with the word, without it.
static Text line_of(const char *description, const char *word) {
  Text line = {""};
  char start[64];
  snprintf(start, sizeof start, "\n%s ", word);
  const char *found = strstr(description, start);
  CHECK(found);
  found += strlen(start);
  memcpy(line.text, found, strcspn(found, "\n"));
  return line;
}

static int number_of(const char *description, const char *word) {
  return atoi(line_of(description, word).text);
}

#ifdef UNDER_QEMU
static const char *const kCannotSpawn = "qemu's clone() refuses a child without an exit signal";
#else
static const char *const kCannotSpawn = NULL;
#endif

// Starts the program and waits for its description, which begins with an empty line.
static Text spawn_description(const char *scratch) {
  static char *environment[] = {"ONE=1", "TWO=two words", "EMPTY=", NULL};
  if (kCannotSpawn) skip(kCannotSpawn);
  Path output = below(scratch, "description"), errors = below(scratch, "errors");
  char *argv[] = {program_path, "--describe", output.text, NULL};
  CHECK_EQUAL(spawn_detached(argv, environment, errors.text), 0);
  wait_until(exists, output.text);
  Text description = {"\n"};
  strncat(description.text, read_text(output.text).text, sizeof description.text - 2);
  return description;
}

static atomic_int children_ended;

static void count_child(int number) {
  (void)number;
  children_ended++;
}

static void nobodys_child(const char *scratch) {
  signal(SIGCHLD, count_child);
  Text found = spawn_description(scratch);
  CHECK(number_of(found.text, "parent") != getpid());
  CHECK(waitpid(-1, NULL, __WALL | WNOHANG) == -1 && errno == ECHILD);
  CHECK(wait(NULL) == -1 && errno == ECHILD);
  CHECK_EQUAL(children_ended, 0);
}

static void own_session(const char *scratch) {
  Text found = spawn_description(scratch);
  int session = number_of(found.text, "session");
  CHECK(session != getsid(0) && session != 0);
  CHECK(session != number_of(found.text, "pid"));  // no leader: no terminal can become its own
  CHECK_EQUAL(number_of(found.text, "niceness"), getpriority(PRIO_PROCESS, 0));
  CHECK(strcmp(line_of(found.text, "directory").text, "/") == 0);
}

static void no_files(const char *scratch) {
  for (int i = 0; i < 20; i++) CHECK(open("/dev/null", O_RDWR) >= 0);
  Text found = spawn_description(scratch);
  CHECK(strcmp(line_of(found.text, "files").text, "0 1 2 ") == 0);
}

static void exact_environment(const char *scratch) {
  setenv("STROBE_SECRET", "1", 1);
  Text found = spawn_description(scratch);
  const char *expected = "[ONE=1] [TWO=two words] [EMPTY=]";
  CHECK(strcmp(line_of(found.text, "environment").text, expected) == 0);
}

static bool has_errors(void *path) {
  struct stat info;
  return stat(path, &info) == 0 && info.st_size > 0;
}

static void check_errors(const char *scratch) {
  Path errors = below(scratch, "errors");
  wait_until(has_errors, errors.text);
  CHECK(strcmp(read_text(errors.text).text, "to standard error\n") == 0);
}

static void standard_error(const char *scratch) {
  spawn_description(scratch);
  check_errors(scratch);
}

static void closed_standard_files(const char *scratch) {
  if (kCannotSpawn) skip(kCannotSpawn);
  close(0);
  close(1);
  Text found = spawn_description(scratch);
  CHECK(strcmp(line_of(found.text, "files").text, "0 1 2 ") == 0);
  check_errors(scratch);
}

static void ignore(int number) {
  (void)number;
}

static void signals_as_before(const char *scratch) {
  sigset_t mask, after;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR1);
  pthread_sigmask(SIG_SETMASK, &mask, NULL);
  signal(SIGUSR2, ignore);
  Text found = spawn_description(scratch);
  CHECK(strcmp(line_of(found.text, "usr1").text, "open") == 0);
  pthread_sigmask(SIG_SETMASK, NULL, &after);
  CHECK(sigismember(&after, SIGUSR1) && !sigismember(&after, SIGUSR2));
#ifndef __SANITIZE_THREAD__  // it keeps a table of handlers in memory, which the child shares
  CHECK(signal(SIGUSR2, SIG_DFL) == ignore);
#endif
}

static void exec_failure(const char *scratch) {
#ifdef UNDER_VALGRIND
  skip("valgrind turns vfork into fork: the child cannot report");
#endif
  if (kCannotSpawn) skip(kCannotSpawn);
  Path nowhere = below(scratch, "nowhere"), plain = below(scratch, "plain");
  Path errors = below(scratch, "errors");
  CHECK(close(open(plain.text, O_WRONLY | O_CREAT, 0600)) == 0);
  char *nothing[] = {NULL};
  CHECK_EQUAL(spawn_detached((char *[]){nowhere.text, NULL}, nothing, errors.text), ENOENT);
  CHECK_EQUAL(spawn_detached((char *[]){plain.text, NULL}, nothing, errors.text), EACCES);
  CHECK(waitpid(-1, NULL, __WALL | WNOHANG) == -1 && errno == ECHILD);
}

static void recording_goes_on(const char *scratch) {
  if (kCannotSpawn) skip(kCannotSpawn);
  Path directory = start_recording(scratch);
  record_numbers(1, 0, kRingRecords);
  wait_until(has_drainer, NULL);
  spawn_description(scratch);
  record_numbers(1, kRingRecords, 3 * kRingRecords);
  CHECK_EQUAL(recorder_stop(), 0);
  Recording recording = {0};
  read_recording(&recording, directory.text);
  check_undamaged(&recording);
  check_numbers(&recording, 1, 3 * kRingRecords);
  CHECK_EQUAL(recording.processes, 1);
  free_recording(&recording);
}

const Test kSpawnTests[] = {
    {"A spawned program is nobody's child and sends no SIGCHLD", nobodys_child},
    {"A spawned program has its own session, our priority and no directory", own_session},
    {"A spawned program has no file of ours", no_files},
    {"A spawned program's environment is exactly the one given", exact_environment},
    {"A spawned program's standard error is the file given", standard_error},
    {"A spawned program's standard files are right where ours are closed", closed_standard_files},
    {"A spawned program blocks no signal, and ours stay as they were", signals_as_before},
    {"A program that cannot be started is an errno", exec_failure},
    {"Recording goes on while a program is spawned", recording_goes_on},
    {NULL, NULL},
};
