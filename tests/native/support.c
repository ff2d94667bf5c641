// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "support.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

Path below(const char *directory, const char *name) {
  Path path;
  CHECK(snprintf(path.text, sizeof path.text, "%s/%s", directory, name) < (int)sizeof path.text);
  return path;
}

Path make_directory(const char *scratch, const char *name) {
  Path path = below(scratch, name);
  CHECK(mkdir(path.text, 0700) == 0);
  return path;
}

void prepare_recorder(void) {
  CHECK_EQUAL(recorder_initialize(), 0);
  CHECK_EQUAL(recorder_use_control(NULL, true), 0);
}

Path start_recording(const char *scratch) {
  Path directory = make_directory(scratch, "recording");
  prepare_recorder();
  CHECK_EQUAL(recorder_start(directory.text, (RecorderOptions){0}), 0);
  return directory;
}

Record numbered_record(uint32_t producer, uint64_t number) {
  return (Record){.start_ns = number + 1,
                  .dur_ns = (number + 1) * 0x9e3779b97f4a7c15u ^ producer,
                  .name = producer,
                  .attributes = (uint32_t)number * 7,
                  .lane = producer + 1,
                  .kind = kKindSpan,
                  .category = (uint8_t)producer};
}

void put_numbers(Ring *ring, uint32_t producer, uint64_t from, uint64_t to) {
  for (uint64_t number = from; number < to; number++) {
    Record record = numbered_record(producer, number);
    ring_put(ring, &record);
  }
}

void record_numbers(uint32_t producer, uint64_t from, uint64_t to) {
  for (uint64_t number = from; number < to; number++) {
    Ring *ring = recorder_ring();
    CHECK(ring);
    put_numbers(ring, producer, number, number + 1);
  }
}

static bool is_as_written(const ReadRecord *read, uint64_t number) {
  Record written = numbered_record(read->name, number);
  return read->dur_ns == written.dur_ns && read->attributes == written.attributes &&
         read->lane == written.lane && read->category == written.category;
}

void check_numbers(const Recording *recording, uint32_t producer, uint64_t count) {
  bool *seen = calloc(count + 1, sizeof *seen);
  uint64_t found = 0;
  CHECK(seen);
  for (size_t i = 0; i < recording->records.count; i++) {
    const ReadRecord *record = &recording->records.items[i];
    if (record->name != producer || record->kind != kKindSpan) continue;
    uint64_t number = record->start_ns - 1;
    CHECK(number < count && !seen[number] && is_as_written(record, number));
    seen[number] = true;
    found++;
  }
  free(seen);
  CHECK_EQUAL(found, count);
}

void check_undamaged(const Recording *recording) {
  CHECK_EQUAL(recording->torn_bytes, 0);
  CHECK_EQUAL(recording->missing, 0);
  CHECK_EQUAL(recording->dropped, 0);
}

void in_thread(void *(*run)(void *), void *argument) {
  pthread_t thread;
  CHECK_EQUAL(pthread_create(&thread, NULL, run, argument), 0);
  CHECK_EQUAL(pthread_join(thread, NULL), 0);
}

pid_t start_child(void (*run)(void *), void *argument) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child > 0) return child;
  run(argument);
  _exit(0);
}

void expect_success(pid_t child) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK_EQUAL(status, 0);
}

void wait_until(bool (*reached)(void *), void *argument) {
  for (int tries = 0; !reached(argument); tries++) {
    CHECK(tries < 30000);
    usleep(1000);
  }
}

// Entries of a directory, but the two dots, for which `counts` is true.
static int count_entries(const char *directory, bool (*counts)(const char *, const char *),
                         const char *argument) {
  int count = 0;
  DIR *entries = opendir(directory);
  CHECK(entries);
  for (struct dirent *entry; (entry = readdir(entries));) {
    if (entry->d_name[0] != '.' && counts(entry->d_name, argument)) count++;
  }
  closedir(entries);
  return count;
}

// A thread may end between being listed and being asked.
static bool thread_has_name(const char *thread, const char *name) {
  char path[512], found[32] = "";
  snprintf(path, sizeof path, "/proc/self/task/%s/comm", thread);
  FILE *file = fopen(path, "r");
  if (file == NULL) return false;
  bool read = fgets(found, sizeof found, file) != NULL;
  fclose(file);
  found[strcspn(found, "\n")] = 0;
  return read && strcmp(found, name) == 0;
}

int threads_named(const char *name) {
  return count_entries("/proc/self/task", thread_has_name, name);
}

static bool any(const char *entry, const char *nothing) {
  (void)entry, (void)nothing;
  return true;
}

int open_files(void) {
  return count_entries("/proc/self/fd", any, NULL);
}

bool has_drainer(void *nothing) {
  (void)nothing;
  return threads_named("strobe-drain") == 1;
}

bool has_no_drainer(void *nothing) {
  (void)nothing;
  return threads_named("strobe-drain") == 0;
}
