// SPDX-License-Identifier: Apache-2.0
// Full disks, limits and missing directories: the program survives and every loss is counted.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "support.h"

enum { kProducer = 1 };

static void limit_file_size(rlim_t bytes) {
  struct rlimit limit;
  CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  limit.rlim_cur = bytes;
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  CHECK(signal(SIGXFSZ, SIG_DFL) != SIG_ERR);
}

static bool is_pending(int number) {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, number);
}

static bool is_blocked(int number) {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, NULL, &mask);
  return sigismember(&mask, number);
}

// What was put is in the recording or counted as dropped; what is there is right.
static void check_accounted(const char *directory, uint64_t put) {
  Recording recording = {0};
  read_recording(&recording, directory);
  CHECK_EQUAL(recording.missing, recording.dropped);
  CHECK_EQUAL(recording.records.count + recording.dropped, put);
  for (size_t i = 0; i < recording.records.count; i++) {
    const ReadRecord *read = &recording.records.items[i];
    CHECK_EQUAL(read->dur_ns, numbered_record(kProducer, read->start_ns - 1).dur_ns);
  }
  free_recording(&recording);
}

static void file_size_limit(const char *scratch) {
  Path directory = start_recording(scratch);
  limit_file_size(2 << 20);
  uint64_t count = 6 * kRingRecords;
  record_numbers(kProducer, 0, count);
  CHECK(!is_pending(SIGXFSZ) && !is_blocked(SIGXFSZ));
  RecorderStats stats = recorder_stats();
  CHECK_EQUAL(stats.failed_errno, EFBIG);
  CHECK(stats.dropped > 0 && stats.dropped < count);
  CHECK_EQUAL(recorder_stop(), 0);
  check_accounted(directory.text, count);
}

static void pending_signal_kept(const char *scratch) {
  start_recording(scratch);
  sigset_t ours;
  sigemptyset(&ours);
  sigaddset(&ours, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &ours, NULL);
  raise(SIGXFSZ);
  limit_file_size(2 << 20);
  record_numbers(kProducer, 0, 6 * kRingRecords);
  CHECK(is_pending(SIGXFSZ) && is_blocked(SIGXFSZ));
  CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
}

static void limit_below_a_ring(const char *scratch) {
  setenv("TMPDIR", scratch, 1);
  limit_file_size(256 << 10);
  Path directory = start_recording(scratch);
  CHECK_EQUAL(recorder_stats().anonymous_rings, 1);
  record_numbers(kProducer, 0, 1000);
  CHECK_EQUAL(recorder_stop(), 0);
  Recording recording = {0};
  read_recording(&recording, directory.text);
  check_undamaged(&recording);
  check_numbers(&recording, kProducer, 1000);
  CHECK_EQUAL(recording.ring_files, 0);
  free_recording(&recording);
}

typedef struct {
  int go[2], done[2];
} Pipes;

static void record_when_told(void *argument) {
  Pipes *pipes = argument;
  char byte;
  for (uint32_t round = 1; round <= 2; round++) {
    CHECK(read(pipes->go[0], &byte, 1) == 1);
    record_numbers(round, 0, 1000);
    CHECK(write(pipes->done[1], "!", 1) == 1);
  }
}

static void let_child_record(Pipes *pipes) {
  char byte;
  CHECK(write(pipes->go[1], "!", 1) == 1);
  CHECK(read(pipes->done[0], &byte, 1) == 1);
}

static void anonymous_in_a_follower(const char *scratch) {
  setenv("TMPDIR", scratch, 1);
  limit_file_size(256 << 10);
  Path first = start_recording(scratch);
  Path second = make_directory(scratch, "second");
  Pipes pipes;
  CHECK(pipe(pipes.go) == 0 && pipe(pipes.done) == 0);
  pid_t child = start_child(record_when_told, &pipes);
  let_child_record(&pipes);
  CHECK_EQUAL(recorder_stop(), 0);
  CHECK_EQUAL(recorder_start(second.text, (RecorderOptions){0}), 0);
  let_child_record(&pipes);
  expect_success(child);
  Recording recording = {0};
  read_recording(&recording, first.text);
  check_numbers(&recording, 1, 1000);
  free_recording(&recording);
}

static void limit_below_a_control_page(const char *scratch) {
  Path control = below(scratch, "control");
  CHECK_EQUAL(recorder_initialize(), 0);
  limit_file_size(100);
  CHECK_EQUAL(recorder_use_control(control.text, true), EFBIG);
  CHECK(access(control.text, F_OK) != 0);
}

// Puts a device that is always full in the place of the log's chunk file; the file, to put back.
static int fill_disk(Log *log) {
  int file = dup(log->chunks.fd);
  int full = open("/dev/full", O_WRONLY);
  if (full < 0) skip("there is no /dev/full");
  CHECK(file >= 0 && dup2(full, log->chunks.fd) >= 0);
  close(full);
  return file;
}

static void empty_disk(Log *log, int file) {
  CHECK(dup2(file, log->chunks.fd) >= 0);
  close(file);
}

static void disk_full_for_a_while(const char *scratch) {
  Path directory = start_recording(scratch);
  Log *log = recorder_ring()->log;
  record_numbers(kProducer, 0, kRingRecords + 10);
  log_hold_drainer(log);
  int file = fill_disk(log);
  record_numbers(kProducer, kRingRecords + 10, kRingRecords + 20);
  pthread_mutex_lock(&log->write_lock);
  log_write_chunk(log, recorder_ring());
  pthread_mutex_unlock(&log->write_lock);
  empty_disk(log, file);
  log_release_drainer(log);
  record_numbers(kProducer, kRingRecords + 20, 4 * kRingRecords);
  CHECK_EQUAL(recorder_stats().failed_errno, ENOSPC);
  CHECK_EQUAL(recorder_stop(), 0);
  Recording recording = {0};
  read_recording(&recording, directory.text);
  check_undamaged(&recording);
  check_numbers(&recording, kProducer, 4 * kRingRecords);
  free_recording(&recording);
}

static void disk_full_for_long(const char *scratch) {
  Path directory = start_recording(scratch);
  Log *log = recorder_ring()->log;
  record_numbers(kProducer, 0, 100);
  log_hold_drainer(log);
  int file = fill_disk(log);
  record_numbers(kProducer, 100, 4 * kRingRecords);
  empty_disk(log, file);
  log_release_drainer(log);
  record_numbers(kProducer, 4 * kRingRecords, 6 * kRingRecords);
  RecorderStats stats = recorder_stats();
  CHECK_EQUAL(stats.failed_errno, ENOSPC);
  CHECK(stats.dropped >= 2 * kRingRecords && stats.dropped <= 4 * kRingRecords);
  CHECK_EQUAL(recorder_stop(), 0);
  check_accounted(directory.text, 6 * kRingRecords);
}

// A file system of this size that is gone with this process.
static Path mount_small(const char *scratch, const char *options) {
  Path directory = make_directory(scratch, "small");
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) != 0 ||
      mount("tmpfs", directory.text, "tmpfs", 0, options) != 0) {
    skip("mounting a small tmpfs needs root");
  }
  return directory;
}

static void small_file_system(const char *scratch) {
  setenv("TMPDIR", scratch, 1);
  Path directory = mount_small(scratch, "size=512k");
  prepare_recorder();
  CHECK_EQUAL(recorder_start(directory.text, (RecorderOptions){0}), 0);
  CHECK_EQUAL(recorder_stats().anonymous_rings, 0);
  record_numbers(kProducer, 0, 5 * kRingRecords);
  RecorderStats stats = recorder_stats();
  CHECK_EQUAL(stats.failed_errno, ENOSPC);
  CHECK(stats.dropped > 0);
  CHECK(log_define(recorder_ring()->log, kDefineString, 1, "x", 1) ||
        recorder_stats().lost_definitions == 1);
  CHECK_EQUAL(recorder_stop(), 0);
  check_accounted(directory.text, 5 * kRingRecords);
}

static void ring_elsewhere(const char *scratch) {
  Path elsewhere = make_directory(scratch, "elsewhere");
  setenv("TMPDIR", elsewhere.text, 1);
  Path directory = mount_small(scratch, "size=512k");
  prepare_recorder();
  CHECK_EQUAL(recorder_start(directory.text, (RecorderOptions){0}), 0);
  record_numbers(kProducer, 0, 1000);
  CHECK_EQUAL(recorder_stop(), 0);
  Recording recording = {0};
  read_recording(&recording, directory.text);
  check_undamaged(&recording);
  check_numbers(&recording, kProducer, 1000);
  CHECK_EQUAL(recording.ring_files, 1);
  free_recording(&recording);
}

static void missing_directory(const char *scratch) {
  Path missing = below(scratch, "missing"), file = below(scratch, "file");
  CHECK(close(open(file.text, O_WRONLY | O_CREAT, 0600)) == 0);
  prepare_recorder();
  int before = open_files();
  CHECK_EQUAL(recorder_start(missing.text, (RecorderOptions){0}), ENOENT);
  CHECK_EQUAL(recorder_start(file.text, (RecorderOptions){0}), ENOTDIR);
  CHECK(recorder_ring() == NULL);
  CHECK_EQUAL(recorder_stop(), EINVAL);
  CHECK_EQUAL(open_files(), before);
  CHECK_EQUAL(recorder_start(scratch, (RecorderOptions){0}), 0);
  record_numbers(kProducer, 0, 10);
}

static void failure_then_new_control(const char *scratch) {
  Path missing = below(scratch, "missing");
  prepare_recorder();
  CHECK_EQUAL(recorder_start(missing.text, (RecorderOptions){0}), ENOENT);
  CHECK_EQUAL(recorder_use_control(NULL, true), 0);
  CHECK_EQUAL(recorder_start(scratch, (RecorderOptions){0}), 0);
  record_numbers(kProducer, 0, 10);
}

static void too_many_files(const char *scratch) {
  prepare_recorder();
  struct rlimit before, limit;
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  limit = before;
  limit.rlim_cur = 3;
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK_EQUAL(recorder_start(scratch, (RecorderOptions){0}), EMFILE);
  CHECK(recorder_ring() == NULL);
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK_EQUAL(recorder_start(scratch, (RecorderOptions){0}), 0);
}

static void *record_some(void *unused) {
  (void)unused;
  record_numbers(2, 0, kRingRecords + 1000);
  return NULL;
}

static void directory_removed(const char *scratch) {
  Path directory = start_recording(scratch);
  char command[2048];
  record_numbers(kProducer, 0, 10);
  snprintf(command, sizeof command, "rm -r '%s'", directory.text);
  CHECK(system(command) == 0);
  record_numbers(kProducer, 10, 4 * kRingRecords);
  in_thread(record_some, NULL);
  RecorderStats stats = recorder_stats();
  CHECK_EQUAL(stats.anonymous_rings, 1);
  CHECK_EQUAL(stats.dropped, 0);
  CHECK_EQUAL(recorder_stop(), 0);
  CHECK_EQUAL(recorder_start(directory.text, (RecorderOptions){0}), ENOENT);
  CHECK(mkdir(directory.text, 0700) == 0);
  CHECK_EQUAL(recorder_start(directory.text, (RecorderOptions){0}), 0);
}

const Test kFailureTests[] = {
    {"Writing past the file size limit does not kill the program", file_size_limit},
    {"A SIGXFSZ that the program has pending stays pending", pending_signal_kept},
    {"A limit too small for a ring file puts the ring into memory", limit_below_a_ring},
    {"A child with its ring in memory writes it out when it follows into round 2",
     anonymous_in_a_follower},
    {"A limit too small for a control page is an error, not a signal", limit_below_a_control_page},
    {"A disk that is full for a while costs nothing", disk_full_for_a_while},
    {"A disk that is full for long costs what is counted", disk_full_for_long},
    {"A file system that fills up costs what is counted", small_file_system},
    {"A ring that does not fit the directory is made elsewhere, under the recording's id",
     ring_elsewhere},
    {"A missing directory is an errno, and the next start works", missing_directory},
    {"A start that failed does not spoil the next control page", failure_then_new_control},
    {"Too few file descriptors are an errno", too_many_files},
    {"A directory removed while recording harms nobody", directory_removed},
    {NULL, NULL},
};
