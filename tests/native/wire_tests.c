// SPDX-License-Identifier: Apache-2.0
// The reader of protobuf: whatever the bytes are, it touches nothing outside of them and of the
// arrays that it is given, and ends. All of these end where a page does that nobody may touch.
#define _GNU_SOURCE
#include "wire.h"

#include <string.h>
#include <sys/mman.h>

#include "check.h"

enum { kMost = 200, kRows = 4, kRoom = 8, kColumns = 12, kCells = 8, kRounds = 20000 };

static uint32_t state = 1;

static uint32_t draw(uint32_t below) {
  state = state * 1664525 + 1013904223;
  return (uint32_t)(((uint64_t)(state >> 8) * below) >> 24);
}

// So many bytes, of which the last one is followed by a page that cannot be touched.
static void *at_an_edge(size_t length) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  size_t pages = (length + page - 1) / page + 1;
  uint8_t *all =
      mmap(NULL, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(all != MAP_FAILED);
  CHECK(mprotect(all + (pages - 1) * page, page, PROT_NONE) == 0);
  return all + (pages - 1) * page - length;
}

// Fields as they are written, of all types and also of wrong lengths, and then some bytes changed.
static int64_t write_message(uint8_t *bytes) {
  int64_t length = draw(kMost + 1), at = 0;
  while (at < length) {
    uint8_t type = (uint8_t)draw(8);
    bytes[at++] = (uint8_t)((draw(3) + 1) << 3 | type);
    for (uint32_t more = draw(12); more > 0 && at < length; more--) {
      bytes[at++] = type == 2 ? (uint8_t)draw(20) : (uint8_t)draw(256);
    }
  }
  for (uint32_t changes = draw(4); changes > 0 && length > 0; changes--) {
    bytes[draw((uint32_t)length)] = (uint8_t)draw(256);
  }
  return length;
}

// Some lie outside: before the bytes, behind them, or backwards.
static void choose_ranges(int64_t size, int64_t *begin, int64_t *end) {
  for (int row = 0; row < kRows; row++) {
    begin[row] = draw((uint32_t)size + 1);
    end[row] = begin[row] + draw((uint32_t)(size - begin[row]) + 1);
    if (draw(20) == 0) begin[row] = (int64_t)draw(3) - 2;
    if (draw(20) == 0) end[row] = draw(2) ? size + 1 + draw(9) : INT64_MAX - draw(2);
  }
}

static void hostile_bytes_are_read_within_bounds(const char *scratch) {
  (void)scratch;
  uint8_t *room = at_an_edge(kMost);
  int64_t *begin = at_an_edge(kRows * 8), *end = at_an_edge(kRows * 8);
  int64_t *first = at_an_edge(kRoom * 8), *second = at_an_edge(kRoom * 8);
  int64_t *third = at_an_edge(kRoom * 8), *cells = at_an_edge(kColumns * kRows * 8);
  int64_t *numbers = at_an_edge(kColumns * 8), *kinds = at_an_edge(kColumns * 8);
  int64_t *table = at_an_edge(kCells * 8), *code = at_an_edge(kRows * 8);
  int64_t fine = 0, refused = 0;
  for (int round = 0; round < kRounds; round++) {
    uint8_t message[kMost];
    int64_t size = write_message(message);
    uint8_t *bytes = room + kMost - size;
    memcpy(bytes, message, (size_t)size);
    choose_ranges(size, begin, end);
    Messages in = {bytes, size, kRows, begin, end};
    for (int column = 0; column < kColumns; column++) {
      numbers[column] = draw(4) ? draw(5) : INT64_MIN;
      kinds[column] = draw(kKinds + 2);
    }
    Outcome outcomes[] = {
        wire_find(&in, draw(4), kRoom, first, second, third),
        wire_numbers(&in, draw(4), kRoom, first, second),
        wire_columns(&in, kColumns, numbers, kinds, cells),
        wire_number(&in, kCells, table, first, code),
    };
    for (int each = 0; each < 4; each++) {
      Outcome outcome = outcomes[each];
      CHECK(outcome.fault >= kFine && outcome.fault <= kBeyondEnd);
      CHECK(outcome.at >= 0 && outcome.at <= size + kRows);
      CHECK(outcome.count >= 0 && outcome.count <= size * kRows + kRows);
      outcome.fault == kFine ? fine++ : refused++;
    }
  }
  CHECK(fine > kRounds / 4 && refused > kRounds / 4);  // both are met
}

static void the_same_texts_have_the_same_number(const char *scratch) {
  (void)scratch;
  const char text[] = "relu add relu  add";
  int64_t begin[] = {0, 5, 9, -1, 15, 14}, end[] = {4, 8, 13, -1, 18, 14};
  int64_t table[16], first[6], code[6];
  Messages in = {(const uint8_t *)text, sizeof text - 1, 6, begin, end};
  Outcome outcome = wire_number(&in, 16, table, first, code);
  CHECK_EQUAL(outcome.fault, kFine);
  CHECK_EQUAL(outcome.count, 3);
  int64_t codes[] = {0, 1, 0, 2, 1, 2}, firsts[] = {0, 1, 3};
  CHECK(memcmp(code, codes, sizeof codes) == 0);
  CHECK(memcmp(first, firsts, sizeof firsts) == 0);
}

const Test kWireTests[] = {
    {"Hostile messages are read within bounds", hostile_bytes_are_read_within_bounds},
    {"The same texts have the same number", the_same_texts_have_the_same_number},
    {NULL, NULL},
};
