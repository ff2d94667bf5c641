// SPDX-License-Identifier: Apache-2.0
// Start, stop, threads that come and go.
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "support.h"

static void start_and_stop(const char *scratch) {
  Path directory = start_recording(scratch);
  record_numbers(1, 0, 10);
  CHECK_EQUAL(recorder_stats().records, 10);
  CHECK_EQUAL(recorder_stats().anonymous_rings, 0);
  CHECK_EQUAL(recorder_start(directory.text, (RecorderOptions){0}), EBUSY);
  CHECK_EQUAL(recorder_stop(), 0);
  CHECK(recorder_ring() == NULL);
  CHECK_EQUAL(recorder_stop(), EINVAL);
  CHECK_EQUAL(recorder_stats().records, 0);
  Recording recording = {0};
  read_recording(&recording, directory.text);
  check_undamaged(&recording);
  check_numbers(&recording, 1, 10);
  free_recording(&recording);
}

static void off_without_control(const char *scratch) {
  CHECK_EQUAL(recorder_initialize(), 0);
  CHECK_EQUAL(recorder_initialize(), 0);
  CHECK(recorder_ring() == NULL);
  CHECK_EQUAL(recorder_start(scratch, (RecorderOptions){0}), EBUSY);
  CHECK_EQUAL(recorder_stop(), EINVAL);
}

static void directory_while_on(const char *scratch) {
  char found[kPathBytes];
  prepare_recorder();
  CHECK(!recorder_directory(found));
  CHECK_EQUAL(recorder_start(scratch, (RecorderOptions){0}), 0);
  CHECK(recorder_directory(found) && strcmp(found, scratch) == 0);
  CHECK_EQUAL(recorder_stop(), 0);
  CHECK(!recorder_directory(found));
}

// The same directory under a name of this length.
static const char *long_name(const char *directory, size_t length) {
  static char name[kPathBytes + 1];
  snprintf(name, sizeof name, "%s", directory);
  size_t from = strlen(name);
  if ((length - from) % 2) name[from++] = '/';
  for (; from < length; from += 2) memcpy(name + from, "/.", 2);
  name[length] = 0;
  return name;
}

static void longest_directory(const char *scratch) {
  char found[kPathBytes];
  prepare_recorder();
  CHECK_EQUAL(recorder_start(long_name(scratch, kPathBytes), (RecorderOptions){0}), ENAMETOOLONG);
  const char *longest = long_name(scratch, kPathBytes - 1);
  CHECK_EQUAL(recorder_start(longest, (RecorderOptions){0}), 0);
  CHECK(recorder_directory(found) && strcmp(found, longest) == 0);
  record_numbers(1, 0, 10);
  CHECK_EQUAL(recorder_stop(), 0);
  Recording recording = {0};
  read_recording(&recording, scratch);
  check_numbers(&recording, 1, 10);
  free_recording(&recording);
}

typedef struct {
  uint32_t producer;
  uint64_t from, to;
} Range;

static void *record_range(void *argument) {
  Range *range = argument;
  record_numbers(range->producer, range->from, range->to);
  return NULL;
}

static void threads_in_turn(const char *scratch) {
  enum { kThreads = 100, kEach = 1000 };
  Path directory = start_recording(scratch);
  for (uint64_t i = 0; i < kThreads; i++) {
    Range range = {1, i * kEach, (i + 1) * kEach};
    in_thread(record_range, &range);
  }
  CHECK_EQUAL(recorder_stop(), 0);
  Recording recording = {0};
  read_recording(&recording, directory.text);
  check_undamaged(&recording);
  check_numbers(&recording, 1, kThreads * kEach);
  CHECK_EQUAL(recording.ring_files, 2);  // this thread's, and one that served them all
  free_recording(&recording);
}

static void *open_one_span(void *number) {
  Record record = numbered_record(1, *(uint64_t *)number);
  CHECK(ring_open(recorder_ring(), &record) != kNoSlot);
  return NULL;
}

static void unfinished_in_ended_threads(const char *scratch) {
  Path directory = start_recording(scratch);
  for (uint64_t number = 0; number < 5; number++) in_thread(open_one_span, &number);
  Recording recording = {0};
  read_recording(&recording, directory.text);
  CHECK_EQUAL(recording.ring_files, 2);
  CHECK_EQUAL(recording.open.count, 5);
  free_recording(&recording);
}

enum { kProducers = 8 };

static void run_producers(const char *scratch, bool hold) {
  Path directory = start_recording(scratch);
  pthread_t threads[kProducers];
  Range ranges[kProducers];
  if (hold) log_hold_drainer(recorder_ring()->log);
  for (uint32_t i = 0; i < kProducers; i++) {
    ranges[i] = (Range){i, 0, RECORDS_PER_THREAD};
    CHECK_EQUAL(pthread_create(&threads[i], NULL, record_range, &ranges[i]), 0);
  }
  for (int i = 0; i < kProducers; i++) pthread_join(threads[i], NULL);
  RecorderStats stats = recorder_stats();
  CHECK_EQUAL(stats.records, (uint64_t)kProducers * RECORDS_PER_THREAD);
  CHECK(stats.own_ns > 0 && (stats.drain_ns == 0 || !hold));
  CHECK_EQUAL(recorder_stop(), 0);
  Recording recording = {0};
  read_recording(&recording, directory.text);
  check_undamaged(&recording);
  for (uint32_t i = 0; i < kProducers; i++) check_numbers(&recording, i, RECORDS_PER_THREAD);
  free_recording(&recording);
}

static void threads_at_once(const char *scratch) {
  run_producers(scratch, false);
}

static void threads_without_drain(const char *scratch) {
  run_producers(scratch, true);
}

static atomic_bool finished;

typedef struct {
  uint32_t producer;
  _Atomic uint64_t count;
} Follower;

// Records whenever recording is on. Now and then it is slow, so that it holds a ring of a log that
// was closed meanwhile.
static void *follow(void *argument) {
  Follower *self = argument;
  while (!atomic_load(&finished)) {
    Ring *ring = recorder_ring();
    if (self->count % 1000 == 0) sched_yield();
    if (ring == NULL) continue;
    put_numbers(ring, self->producer, self->count, self->count + 1);
    self->count++;
  }
  return NULL;
}

typedef struct {
  Follower *followers;
  uint64_t counts[kProducers];
  int number;
} Progress;

static bool all_have_moved(void *argument) {
  Progress *progress = argument;
  for (int i = 0; i < progress->number; i++) {
    if (progress->followers[i].count < progress->counts[i] + 500) return false;
  }
  return true;
}

// Starts into a new directory, and stops once each follower has recorded there.
static Path record_round(const char *scratch, int round, Follower *followers, int number) {
  char name[32];
  snprintf(name, sizeof name, "round-%d", round);
  Path directory = make_directory(scratch, name);
  Progress progress = {.followers = followers, .number = number};
  CHECK_EQUAL(recorder_start(directory.text, (RecorderOptions){0}), 0);
  for (int i = 0; i < number; i++) progress.counts[i] = followers[i].count;
  wait_until(all_have_moved, &progress);
  CHECK_EQUAL(recorder_stop(), 0);
  return directory;
}

static void threads_across_rounds(const char *scratch) {
  enum { kFollowers = 4, kRounds = 8 };
  Follower followers[kFollowers] = {0};
  pthread_t threads[kFollowers];
  Path directories[kRounds];
  prepare_recorder();
  for (uint32_t i = 0; i < kFollowers; i++) {
    followers[i].producer = i;
    CHECK_EQUAL(pthread_create(&threads[i], NULL, follow, &followers[i]), 0);
  }
  for (int round = 0; round < kRounds; round++) {
    directories[round] = record_round(scratch, round, followers, kFollowers);
    // A new control page now and then: its generations begin anew.
    if (round % 3 == 2) CHECK_EQUAL(recorder_use_control(NULL, true), 0);
  }
  atomic_store(&finished, true);
  for (int i = 0; i < kFollowers; i++) pthread_join(threads[i], NULL);
  Recording all = {0};
  for (int round = 0; round < kRounds; round++) read_recording(&all, directories[round].text);
  check_undamaged(&all);
  for (uint32_t i = 0; i < kFollowers; i++) check_numbers(&all, i, followers[i].count);
  CHECK_EQUAL(all.processes, kRounds);
  free_recording(&all);
}

static void same_generation_again(const char *scratch) {
  Path first = start_recording(scratch), second = make_directory(scratch, "second");
  record_numbers(1, 0, 10);
  CHECK_EQUAL(recorder_stop(), 0);
  CHECK_EQUAL(recorder_use_control(NULL, true), 0);
  CHECK_EQUAL(recorder_start(second.text, (RecorderOptions){0}), 0);
  record_numbers(2, 0, 10);
  Recording recording = {0};
  read_recording(&recording, second.text);
  check_numbers(&recording, 2, 10);
  CHECK_EQUAL(recording.records.count, 10);
  read_recording(&recording, first.text);
  CHECK_EQUAL(recording.records.count, 20);
  free_recording(&recording);
}

static void nothing_left_behind(const char *scratch) {
  enum { kRounds = 10 };
  prepare_recorder();
  CHECK_EQUAL(recorder_start(scratch, (RecorderOptions){0}), 0);
  CHECK_EQUAL(recorder_stop(), 0);
  int before = open_files();
  for (uint64_t round = 0; round < kRounds; round++) {
    Range range = {1, round * 10, (round + 1) * 10};
    CHECK_EQUAL(recorder_start(scratch, (RecorderOptions){0}), 0);
    in_thread(record_range, &range);
    CHECK_EQUAL(recorder_stop(), 0);
  }
  CHECK_EQUAL(open_files(), before);
  Recording recording = {0};
  read_recording(&recording, scratch);
  check_numbers(&recording, 1, kRounds * 10);
  free_recording(&recording);
}

const Test kRecorderTests[] = {
    {"Start and stop open and close one recording", start_and_stop},
    {"Without a control page recording is off and cannot start", off_without_control},
    {"recorder_directory says where recording goes, only while it is on", directory_while_on},
    {"A directory's name may be as long as the control page holds", longest_directory},
    {"Threads that come one after another share one ring", threads_in_turn},
    {"A span left open by an ended thread stays in the table", unfinished_in_ended_threads},
    {"Eight threads at once lose nothing", threads_at_once},
    {"Eight threads that must write their own chunks lose nothing", threads_without_drain},
    {"Threads that record across starts, stops and control pages lose nothing",
     threads_across_rounds},
    {"A new control page that comes to the same generation gets a new log", same_generation_again},
    {"Rounds with threads that end leave no file open", nothing_left_behind},
    {NULL, NULL},
};
