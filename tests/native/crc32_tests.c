// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "check.h"
#include "crc32.h"
#include "reader.h"

static void known_vectors(const char *scratch) {
  (void)scratch;
  uint8_t ones[32];
  memset(ones, 0xff, sizeof ones);
  CHECK_EQUAL(crc32_update(0, "", 0), 0);
  CHECK_EQUAL(crc32_update(0, "a", 1), 0xe8b7be43u);
  CHECK_EQUAL(crc32_update(0, "123456789", 9), 0xcbf43926u);
  CHECK_EQUAL(crc32_update(0, "The quick brown fox jumps over the lazy dog", 43), 0x414fa339u);
  CHECK_EQUAL(crc32_update(0, ones, sizeof ones), 0xff6cab0bu);
}

static void fill(uint8_t *bytes, size_t length) {
  uint32_t state = 1;
  for (size_t i = 0; i < length; i++)
    bytes[i] = (uint8_t)((state = state * 1664525 + 1013904223) >> 24);
}

static void every_length_and_alignment(const char *scratch) {
  (void)scratch;
  uint8_t bytes[480];
  fill(bytes, sizeof bytes);
  for (size_t start = 0; start < 16; start++) {
    for (size_t length = 0; length <= 460; length++) {
      CHECK_EQUAL(crc32_update(0, bytes + start, length), slow_crc32(bytes + start, length));
    }
  }
}

static void any_split(const char *scratch) {
  (void)scratch;
  uint8_t bytes[100];
  fill(bytes, sizeof bytes);
  uint32_t whole = crc32_update(0, bytes, sizeof bytes);
  for (size_t first = 0; first <= sizeof bytes; first++) {
    uint32_t crc = crc32_update(0, bytes, first);
    CHECK_EQUAL(crc32_update(crc, bytes + first, sizeof bytes - first), whole);
  }
}

const Test kCrc32Tests[] = {
    {"CRC-32 of known texts is the published one", known_vectors},
    {"CRC-32 agrees with the bitwise one at every length and alignment",
     every_length_and_alignment},
    {"CRC-32 of two parts in turn is that of the whole", any_split},
    {NULL, NULL},
};
