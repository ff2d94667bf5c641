// SPDX-License-Identifier: Apache-2.0
// Children: they record too, follow the control page, and never harm the parent's recording.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "support.h"

#ifdef UNDER_QEMU
enum { kChildRecords = 10000 };  // qemu fails when a child of many threads starts a thread
#else
enum { kChildRecords = 20000 };  // enough for a drain thread in the child
#endif
enum { kProducers = 8, kForks = 12, kFirstChild = 100 };

static void record_as_child(void *producer) {
  record_numbers(*(uint32_t *)producer, 0, kChildRecords);
}

static void fork_and_wait(uint32_t producer) {
  expect_success(start_child(record_as_child, &producer));
}

// The first producer forks too, in the middle of its own work.
static void *produce(void *argument) {
  uint32_t producer = *(uint32_t *)argument;
  record_numbers(producer, 0, RECORDS_PER_THREAD / 2);
  if (producer == 0) fork_and_wait(kFirstChild + kForks);
  record_numbers(producer, RECORDS_PER_THREAD / 2, RECORDS_PER_THREAD);
  return NULL;
}

static void forks_amid_threads(const char *scratch) {
  Path directory = start_recording(scratch);
  pthread_t threads[kProducers];
  uint32_t producers[kProducers];
  for (uint32_t i = 0; i < kProducers; i++) {
    producers[i] = i;
    CHECK_EQUAL(pthread_create(&threads[i], NULL, produce, &producers[i]), 0);
  }
  for (uint32_t i = 0; i < kForks; i++) fork_and_wait(kFirstChild + i);
  for (int i = 0; i < kProducers; i++) pthread_join(threads[i], NULL);
  CHECK_EQUAL(recorder_stop(), 0);
  Recording recording = {0};
  read_recording(&recording, directory.text);
  CHECK_EQUAL(recording.missing, 0);
  CHECK_EQUAL(recording.dropped, 0);
  CHECK_EQUAL(recording.processes, 1 + kForks + 1);
  for (uint32_t i = 0; i < kProducers; i++) check_numbers(&recording, i, RECORDS_PER_THREAD);
  for (uint32_t i = 0; i <= kForks; i++) {
    check_numbers(&recording, kFirstChild + i, kChildRecords);
  }
  free_recording(&recording);
}

static void record_and_fork(void *argument) {
  uint32_t generation = *(uint32_t *)argument;
  uint32_t deeper = generation + 1;
  record_numbers(generation, 0, 100);
  if (deeper < 5) expect_success(start_child(record_and_fork, &deeper));
  record_numbers(generation, 100, 200);
}

static void children_of_children(const char *scratch) {
  Path directory = start_recording(scratch);
  uint32_t first = 0;
  record_and_fork(&first);
  Recording recording = {0};
  read_recording(&recording, directory.text);
  check_undamaged(&recording);
  CHECK_EQUAL(recording.processes, 5);
  for (uint32_t producer = 0; producer < 5; producer++) check_numbers(&recording, producer, 200);
  free_recording(&recording);
}

static int drainers_while_forking = -1;

// The kernel may list a joined thread for a moment.
static void count_drainers(void) {
  for (int tries = 0; tries < 1000 && !has_no_drainer(NULL); tries++) usleep(1000);
  drainers_while_forking = threads_named("strobe-drain");
}

static void do_nothing(void *nothing) {
  (void)nothing;
}

static void no_drainer_at_fork(const char *scratch) {
  // Registered before the recorder's, so it runs after the recorder's.
  pthread_atfork(count_drainers, NULL, NULL);
  Path directory = start_recording(scratch);
  uint64_t count = kRingRecords / 2 + 1;
  record_numbers(1, 0, count);
  wait_until(has_drainer, NULL);
  expect_success(start_child(do_nothing, NULL));
  CHECK_EQUAL(drainers_while_forking, 0);
  CHECK(has_no_drainer(NULL));
  record_numbers(1, count, count + kRingRecords);
  wait_until(has_drainer, NULL);
  CHECK_EQUAL(recorder_stop(), 0);
  wait_until(has_no_drainer, NULL);
  Recording recording = {0};
  read_recording(&recording, directory.text);
  check_undamaged(&recording);
  check_numbers(&recording, 1, count + kRingRecords);
  free_recording(&recording);
}

// Two pipes to take turns with a child.
typedef struct {
  int to_child[2], to_parent[2];
  const char *control;  // the page to map; NULL: the inherited one
} Turns;

static Turns make_turns(const char *control) {
  Turns turns = {.control = control};
  CHECK(pipe(turns.to_child) == 0 && pipe(turns.to_parent) == 0);
  return turns;
}

static void await_turn(const int *pipe_ends) {
  char byte;
  CHECK(read(pipe_ends[0], &byte, 1) == 1);
}

static void give_turn(const int *pipe_ends) {
  CHECK(write(pipe_ends[1], "!", 1) == 1);
}

static void child_turn(Turns *turns) {
  give_turn(turns->to_child);
  await_turn(turns->to_parent);
}

static void follow_two_rounds(void *argument) {
  Turns *turns = argument;
  if (turns->control) CHECK_EQUAL(recorder_use_control(turns->control, false), 0);
  for (uint32_t round = 1; round <= 2; round++) {
    await_turn(turns->to_child);
    record_numbers(round, 0, 1000);
    give_turn(turns->to_parent);
    await_turn(turns->to_child);
    CHECK(recorder_ring() == NULL);
    give_turn(turns->to_parent);
  }
}

static void check_round(const char *directory, uint32_t round, size_t processes) {
  Recording recording = {0};
  read_recording(&recording, directory);
  check_undamaged(&recording);
  check_numbers(&recording, round, 1000);
  CHECK_EQUAL(recording.records.count, 1000);
  CHECK_EQUAL(recording.processes, processes);
  free_recording(&recording);
}

static void run_two_rounds(const char *scratch, const char *control, bool fork_first) {
  Path first = make_directory(scratch, "first"), second = make_directory(scratch, "second");
  Turns turns = make_turns(control);
  pid_t child = fork_first ? start_child(follow_two_rounds, &turns) : 0;
  CHECK_EQUAL(recorder_start(first.text, (RecorderOptions){0}), 0);
  if (!fork_first) child = start_child(follow_two_rounds, &turns);
  child_turn(&turns);
  CHECK_EQUAL(recorder_stop(), 0);
  child_turn(&turns);
  CHECK_EQUAL(recorder_start(second.text, (RecorderOptions){0}), 0);
  child_turn(&turns);
  CHECK_EQUAL(recorder_stop(), 0);
  child_turn(&turns);
  expect_success(child);
  check_round(first.text, 1, 2);
  check_round(second.text, 2, 2);
}

static void child_of_round_one(const char *scratch) {
  prepare_recorder();
  run_two_rounds(scratch, NULL, false);
}

static void child_from_before(const char *scratch) {
  prepare_recorder();
  run_two_rounds(scratch, NULL, true);
}

static void control_by_path(const char *scratch) {
  Path control = below(scratch, "control");
  CHECK_EQUAL(recorder_initialize(), 0);
  CHECK_EQUAL(recorder_use_control(control.text, true), 0);
  run_two_rounds(scratch, control.text, true);
}

static void write_file(const char *path, const void *bytes, size_t length) {
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  CHECK(file >= 0 && write(file, bytes, length) == (ssize_t)length);
  close(file);
}

static void no_control_page(const char *scratch) {
  Path path = below(scratch, "control");
  uint8_t zeros[kPageBytes] = {0};
  CHECK_EQUAL(recorder_initialize(), 0);
  CHECK_EQUAL(recorder_use_control(path.text, false), ENOENT);
  write_file(path.text, zeros, 10);
  CHECK_EQUAL(recorder_use_control(path.text, false), EINVAL);
  write_file(path.text, zeros, sizeof zeros);
  CHECK_EQUAL(recorder_use_control(path.text, false), EPROTO);
  CHECK_EQUAL(recorder_use_control(path.text, true), EEXIST);
  CHECK(recorder_ring() == NULL);
}

static void record_and_be_killed(void *producer) {
  uint64_t count = 2 * kRingRecords + 1000;
  record_numbers(*(uint32_t *)producer, 0, count);
  Record record = numbered_record(*(uint32_t *)producer, count);
  ring_open(recorder_ring(), &record);
  raise(SIGKILL);
}

static void killed_child(const char *scratch) {
  Path directory = start_recording(scratch);
  uint32_t producer = 1;
  int status = 0;
  CHECK(waitpid(start_child(record_and_be_killed, &producer), &status, 0) > 0);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  Recording recording = {0};
  read_recording(&recording, directory.text);
  CHECK_EQUAL(recording.missing, 0);
  check_numbers(&recording, producer, 2 * kRingRecords + 1000);
  CHECK_EQUAL(recording.open.count, 1);
  CHECK_EQUAL(recording.open.items[0].start_ns, 2 * kRingRecords + 1000 + 1);
  free_recording(&recording);
}

static void check_inherited(void *files) {
  CHECK_EQUAL(open_files(), *(int *)files);
  CHECK_EQUAL(recorder_stats().records, 0);
}

static void files_closed_in_child(const char *scratch) {
  prepare_recorder();
  int before = open_files();
  CHECK_EQUAL(recorder_start(scratch, (RecorderOptions){0}), 0);
  record_numbers(1, 0, 10);
  CHECK_EQUAL(open_files(), before + 2);
  expect_success(start_child(check_inherited, &before));
}

const Test kForkTests[] = {
    {"Eight threads, forks in the middle and the children's records are all whole",
     forks_amid_threads},
    {"Children of children record into files of their own", children_of_children},
    {"No drain thread lives during a fork, and it comes back when needed", no_drainer_at_fork},
    {"A child forked in round 1 follows into round 2", child_of_round_one},
    {"A child forked before round 1 follows into both rounds", child_from_before},
    {"A process that maps the control page by its path follows both rounds", control_by_path},
    {"What is no control page is refused", no_control_page},
    {"A killed child loses nothing it completed and its open span is kept", killed_child},
    {"A child keeps none of the parent's files open", files_closed_in_child},
    {NULL, NULL},
};
