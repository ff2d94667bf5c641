// SPDX-License-Identifier: Apache-2.0
// The reader of JSON: whatever the bytes are, it touches nothing outside of them and of the arrays
// that it is given, and ends. The bytes end where a page does that nobody may touch.
#define _GNU_SOURCE
#include "json.h"

#include <string.h>
#include <sys/mman.h>

#include "check.h"

enum { kMost = 300, kRoom = 4, kKeys = 3, kRounds = 20000 };

static const char kText[] =
    "{\"a\": [1, {\"b\": null}], \"r\": [ {\"name\": \"x[1.5 us]\", \"args\": {\"n\": -7.25}},\n"
    "  {\"args\": \"\\u00e9\", \"more\": [true, 1e-5]}, {} ], \"w\": \"1.250 us\"}";

static uint32_t state = 1;

static uint32_t draw(uint32_t below) {
  state = state * 1664525 + 1013904223;
  return (uint32_t)(((uint64_t)(state >> 8) * below) >> 24);
}

static uint8_t *at_an_edge(size_t length) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  uint8_t *all = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(all != MAP_FAILED && length <= page);
  CHECK(mprotect(all + page, page, PROT_NONE) == 0);
  return all + page - length;
}

static void hostile_texts_are_read_within_bounds(const char *scratch) {
  (void)scratch;
  const int64_t places[] = {0, 4, 8, 9}, top_places[] = {0, 1, 2};
  JsonKeys keys = {(const uint8_t *)"nameargsn", places, kKeys};
  JsonKeys top = {(const uint8_t *)"wr", top_places, 2};
  uint8_t *edge = at_an_edge(kMost);
  int64_t fine = 0, refused = 0;
  for (int round = 0; round < kRounds; round++) {
    int64_t size = draw(3) ? (int64_t)sizeof kText - 1 : draw(sizeof kText);
    uint8_t *bytes = edge + kMost - size;
    memcpy(bytes, kText, (size_t)size);
    for (uint32_t changes = draw(3); changes > 0 && size > 0; changes--) {
      bytes[draw((uint32_t)size)] = draw(2) ? (uint8_t)draw(256) : (uint8_t)kText[draw(100)];
    }
    JsonText text = {bytes, size};
    int64_t begin[kKeys * kRoom], end[kKeys * kRoom], out[kRoom], top_begin[2], top_end[2];
    JsonOutcome head = json_members(text, 0, top, top_begin, top_end);
    CHECK(head.at >= 0 && head.at <= size);
    head.fault == kJsonFine ? fine++ : refused++;
    JsonOutcome rows =
        json_rows(text, head.more ? head.at : draw((uint32_t)size + 2), keys, 2, kRoom, begin, end);
    CHECK(rows.at >= 0 && rows.at <= size + 1 && rows.rows >= 0 && rows.rows <= kRoom);
    for (int64_t row = 0; row < kRoom; row++) {  // what was found, and what lies outside
      bool chosen = row < rows.rows;
      out[row] = chosen ? end[2 * kRoom + row] : (int64_t)draw(400) - 50;
      begin[row] = chosen ? begin[2 * kRoom + row] : (int64_t)draw(400) - 50;
      end[row] = out[row];
    }
    json_decimals(text, kRoom, begin, end, 3, (const uint8_t *)" us", draw(2) ? 3 : 0, out);
    json_shorten(text, kRoom, begin, end);
  }
  CHECK(fine > kRounds / 10 && refused > kRounds / 10);  // both are met
}

static void numbers_that_fit_are_read(const char *scratch) {
  (void)scratch;
  const char text[] = "-1.25 9223372036854775.5 9223372036854775.8 1e3 \"0.125 us\"";
  int64_t begin[] = {0, 6, 25, 44, 48, -1}, end[] = {5, 24, 43, 47, 58, -1}, out[6];
  JsonText all = {(const uint8_t *)text, sizeof text - 1};
  CHECK_EQUAL(json_decimals(all, 6, begin, end, 3, NULL, 0, out), kJsonFine);
  int64_t expected[] = {-1250, 9223372036854775500, JSON_ODD, JSON_ODD, JSON_ODD, JSON_ABSENT};
  CHECK(memcmp(out, expected, sizeof out) == 0);
  CHECK_EQUAL(json_decimals(all, 1, begin + 4, end + 4, 3, (const uint8_t *)" us", 3, out),
              kJsonFine);
  CHECK_EQUAL(out[0], 125);
}

const Test kJsonTests[] = {
    {"Hostile JSON is read within bounds", hostile_texts_are_read_within_bounds},
    {"Numbers that fit are read", numbers_that_fit_are_read},
    {NULL, NULL},
};
