// SPDX-License-Identifier: Apache-2.0
// Sixteen bytes a round from tables; no special instructions, so it is the same everywhere.
#include "crc32.h"

#include <pthread.h>
#include <string.h>

enum { kSlices = 16 };

static uint32_t table[kSlices][256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void fill_table(void) {
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? 0xedb88320u : 0);
    table[0][byte] = crc;
  }
  for (int slice = 1; slice < kSlices; slice++) {
    for (uint32_t byte = 0; byte < 256; byte++) {
      uint32_t crc = table[slice - 1][byte];
      table[slice][byte] = (crc >> 8) ^ table[0][crc & 0xff];
    }
  }
}

// The bytes of a word from the lowest address up, whatever the machine's byte order.
static uint32_t slice_word(const uint8_t *bytes, int slice, uint32_t crc) {
  return table[slice][bytes[0] ^ (crc & 0xff)] ^ table[slice - 1][bytes[1] ^ (crc >> 8 & 0xff)] ^
         table[slice - 2][bytes[2] ^ (crc >> 16 & 0xff)] ^ table[slice - 3][bytes[3] ^ (crc >> 24)];
}

uint32_t crc32_update(uint32_t crc, const void *data, size_t length) {
  pthread_once(&table_once, fill_table);
  const uint8_t *bytes = data;
  crc = ~crc;
  for (; length >= kSlices; bytes += kSlices, length -= kSlices) {
    crc = slice_word(bytes, 15, crc) ^ slice_word(bytes + 4, 11, 0) ^ slice_word(bytes + 8, 7, 0) ^
          slice_word(bytes + 12, 3, 0);
  }
  for (; length > 0; bytes++, length--) crc = (crc >> 8) ^ table[0][(crc ^ *bytes) & 0xff];
  return ~crc;
}
