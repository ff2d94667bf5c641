// SPDX-License-Identifier: Apache-2.0
// Texts as numbers, from threads that hold no lock of Python's.
#include "texts.h"

#include <string.h>

#include "support.h"

enum { kThreads = 8, kTexts = 3000 };

static uint32_t number_of(uint32_t value) {
  char text[32];
  int length = snprintf(text, sizeof text, "text %u", value);
  Ring *ring = recorder_ring();
  CHECK(ring);
  return text_id(ring, text, (size_t)length);
}

static void same_text_same_number(const char *scratch) {
  start_recording(scratch);
  Ring *ring = recorder_ring();
  uint32_t first = text_id(ring, "forward", 7);
  CHECK(first != 0);
  CHECK_EQUAL(text_id(ring, "forward", 7), first);
  CHECK(text_id(ring, "forwards", 8) != first);
  CHECK(text_id(ring, "", 0) != 0);
  CHECK_EQUAL(text_id(ring, "", 0), text_id(ring, "", 0));
  CHECK_EQUAL(recorder_stop(), 0);
}

static void *ask_for_all(void *numbers) {
  uint32_t *found = numbers;
  for (uint32_t i = 0; i < kTexts; i++) found[i] = number_of(i);
  return NULL;
}

static void threads_agree(const char *scratch) {
  Path directory = start_recording(scratch);
  static uint32_t numbers[kThreads][kTexts];
  pthread_t threads[kThreads];
  for (int i = 0; i < kThreads; i++) {
    CHECK_EQUAL(pthread_create(&threads[i], NULL, ask_for_all, numbers[i]), 0);
  }
  for (int i = 0; i < kThreads; i++) pthread_join(threads[i], NULL);
  for (int i = 1; i < kThreads; i++) {
    CHECK_EQUAL(memcmp(numbers[i], numbers[0], sizeof numbers[0]), 0);
  }
  CHECK_EQUAL(recorder_stop(), 0);
  Recording recording = {0};
  read_recording(&recording, directory.text);
  CHECK_EQUAL(recording.torn_bytes, 0);
  CHECK(recording.definitions >= kTexts && recording.definitions < kTexts + kThreads + 8);
  free_recording(&recording);
}

static void begins_anew_with_each_log(const char *scratch) {
  Path first = start_recording(scratch);
  number_of(1);
  CHECK_EQUAL(recorder_stop(), 0);
  Path second = make_directory(scratch, "second");
  CHECK_EQUAL(recorder_start(second.text, (RecorderOptions){0}), 0);
  number_of(1);
  CHECK_EQUAL(recorder_stop(), 0);
  for (int i = 0; i < 2; i++) {
    Recording recording = {0};
    read_recording(&recording, i ? second.text : first.text);
    CHECK(recording.definitions >= 2);  // the process and the text
    free_recording(&recording);
  }
}

static void ask_in_child(void *number) {
  CHECK(number_of(7) != 0);
  (void)number;
}

static void child_has_a_table_of_its_own(const char *scratch) {
  start_recording(scratch);
  number_of(7);
  expect_success(start_child(ask_in_child, NULL));
  CHECK(number_of(7) != 0);
  CHECK_EQUAL(recorder_stop(), 0);
}

const Test kTextsTests[] = {
    {"A text has one number, however often it is asked for", same_text_same_number},
    {"Threads that ask at once get the same numbers", threads_agree},
    {"Each log has its own numbers", begins_anew_with_each_log},
    {"A forked child numbers texts for itself", child_has_a_table_of_its_own},
    {NULL, NULL},
};
