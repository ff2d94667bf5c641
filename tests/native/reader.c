// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "reader.h"

#include <dirent.h>
#include <stdbool.h>
#include <string.h>

#include "check.h"

enum {
  kMostRings = 256,
  kChunkHeaderBytes = 32,
  kDefinitionHeaderBytes = 20,
  kOpenOffset = 4096,
  kRecordsOffset = 12288,
  kSlotBytes = 32,
  kReadRecordBytes = 32,
};

typedef struct {
  uint8_t *bytes;
  size_t length;
} Bytes;

static uint32_t word(const uint8_t *bytes) {
  return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
         (uint32_t)bytes[3] << 24;
}

static uint64_t long_word(const uint8_t *bytes) {
  return word(bytes) | (uint64_t)word(bytes + 4) << 32;
}

uint32_t slow_crc32(const void *data, size_t length) {
  const uint8_t *bytes = data;
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < length; i++) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

// The same with a table of 256, for the many bytes of a recording; the 4 bytes at `hole` count as 0.
static uint32_t crc_without(const uint8_t *bytes, size_t length, size_t hole) {
  static uint32_t table[256];
  static bool filled;
  for (uint32_t byte = 0; !filled && byte < 256; byte++) {
    uint8_t one = (uint8_t)byte;
    // From slow_crc32(one byte) = ~(table[byte ^ 0xff] ^ 0x00ffffff).
    table[byte ^ 0xff] = ~slow_crc32(&one, 1) ^ 0x00ffffffu;
  }
  filled = true;
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < length; i++) {
    uint8_t byte = i - hole < 4 ? 0 : bytes[i];
    crc = crc >> 8 ^ table[(crc ^ byte) & 0xff];
  }
  return ~crc;
}

// Of no length when there is no such file.
static Bytes read_file(const char *path) {
  Bytes read = {0};
  FILE *file = fopen(path, "rb");
  if (file == NULL) return read;
  CHECK(fseek(file, 0, SEEK_END) == 0);
  read.length = (size_t)ftell(file);
  rewind(file);
  read.bytes = malloc(read.length + 1);
  CHECK(read.bytes && fread(read.bytes, 1, read.length, file) == read.length);
  fclose(file);
  return read;
}

static void add(ReadRecords *records, ReadRecord record) {
  if (records->count == records->capacity) {
    records->capacity = records->capacity ? records->capacity * 2 : 1024;
    records->items = realloc(records->items, records->capacity * sizeof record);
    CHECK(records->items);
  }
  records->items[records->count++] = record;
}

static ReadRecord parse_record(const uint8_t *bytes) {
  CHECK(bytes[30] == 0 && bytes[31] == 0);
  return (ReadRecord){.start_ns = long_word(bytes),
                      .dur_ns = long_word(bytes + 8),
                      .name = word(bytes + 16),
                      .attributes = word(bytes + 20),
                      .lane = word(bytes + 24),
                      .kind = bytes[28],
                      .category = bytes[29]};
}

// The length of the whole chunk at these bytes; 0 when there is none.
static size_t chunk_length(const uint8_t *bytes, size_t left) {
  if (left < kChunkHeaderBytes || memcmp(bytes, "SCHK", 4) != 0) return 0;
  size_t length = kChunkHeaderBytes + (size_t)word(bytes + 16) * kReadRecordBytes;
  bool whole = length <= left && crc_without(bytes, length, 20) == word(bytes + 20);
  return whole ? length : 0;
}

// next[ring] becomes the number behind the ring's last record.
static void read_chunks(Recording *recording, Bytes file, uint64_t *next) {
  size_t at = 0, length;
  while ((length = chunk_length(file.bytes + at, file.length - at)) != 0) {
    const uint8_t *chunk = file.bytes + at;
    uint32_t ring = word(chunk + 4), count = word(chunk + 16);
    uint64_t first = long_word(chunk + 8);
    CHECK(ring < kMostRings && count > 0 && first >= next[ring]);
    for (uint32_t i = 0; i < count; i++) {
      add(&recording->records, parse_record(chunk + kChunkHeaderBytes + i * kReadRecordBytes));
    }
    recording->missing += first - next[ring];
    next[ring] = first + count;
    recording->chunks++;
    if (count > recording->largest_chunk) recording->largest_chunk = count;
    at += length;
  }
  recording->torn_bytes += file.length - at;
}

static void read_definitions(Recording *recording, Bytes file) {
  size_t at = 0;
  while (file.length - at >= kDefinitionHeaderBytes) {
    const uint8_t *definition = file.bytes + at;
    size_t length = kDefinitionHeaderBytes + (size_t)word(definition + 12);
    if (memcmp(definition, "SDEF", 4) != 0 || length > file.length - at) break;
    if (crc_without(definition, length, 16) != word(definition + 16)) break;
    recording->definitions++;
    at += length;
  }
  recording->torn_bytes += file.length - at;
}

static void read_open_slots(Recording *recording, const uint8_t *slots, uint32_t count) {
  for (const uint8_t *slot = slots; slot < slots + count * kSlotBytes; slot += kSlotBytes) {
    if (long_word(slot) == 0) continue;
    add(&recording->open, (ReadRecord){.start_ns = long_word(slot),
                                       .name = word(slot + 8),
                                       .attributes = word(slot + 12),
                                       .lane = word(slot + 16)});
  }
}

// A program that was killed may have written a chunk and not yet moved the tail.
static void read_ring(Recording *recording, Bytes file, uint32_t number, uint64_t next) {
  const uint8_t *header = file.bytes;
  CHECK(memcmp(header, "SRNG", 4) == 0);
  CHECK_EQUAL(word(header + 8), number);
  uint32_t capacity = word(header + 12), slots = word(header + 16);
  uint64_t head = long_word(header + 64), tail = long_word(header + 128);
  CHECK_EQUAL(slots * kSlotBytes, kRecordsOffset - kOpenOffset);
  CHECK_EQUAL(file.length, kRecordsOffset + (size_t)capacity * kReadRecordBytes);
  CHECK(head >= next && head >= tail && head - tail <= capacity);
  if (tail > next) {
    recording->missing += tail - next;
    next = tail;
  }
  for (; next < head; next++) {
    const uint8_t *record = header + kRecordsOffset + next % capacity * kReadRecordBytes;
    add(&recording->records, parse_record(record));
  }
  recording->dropped += long_word(header + 192);
  recording->ring_files++;
  read_open_slots(recording, header + kOpenOffset, slots);
}

static Bytes read_part(const char *prefix, const char *ending) {
  char path[8192];
  snprintf(path, sizeof path, "%s%s", prefix, ending);
  return read_file(path);
}

// A ring that did not fit: beside those of other recordings, under the id of this one, which is 0.
static Bytes read_elsewhere(const char *prefix, const char *ending) {
  const char *tmp = getenv("TMPDIR");
  char other[8192];
  snprintf(other, sizeof other, "%s/strobe-%016x-%s", tmp ? tmp : "/tmp", 0,
           strrchr(prefix, '/') + 1);
  return read_part(other, ending);
}

static void read_process(Recording *recording, const char *prefix) {
  uint64_t next[kMostRings] = {0};
  recording->processes++;
  Bytes chunks = read_part(prefix, ".chunks"), definitions = read_part(prefix, ".definitions");
  read_chunks(recording, chunks, next);
  read_definitions(recording, definitions);
  free(chunks.bytes);
  free(definitions.bytes);
  for (uint32_t number = 0; number < kMostRings; number++) {
    char ending[32];
    snprintf(ending, sizeof ending, ".%u.ring", number);
    Bytes ring = read_part(prefix, ending);
    if (ring.bytes == NULL) ring = read_elsewhere(prefix, ending);
    if (ring.bytes) read_ring(recording, ring, number, next[number]);
    free(ring.bytes);
  }
}

void read_recording(Recording *recording, const char *directory) {
  DIR *files = opendir(directory);
  CHECK(files);
  for (struct dirent *entry; (entry = readdir(files));) {
    char *ending = strstr(entry->d_name, ".chunks");
    if (ending == NULL) continue;
    char prefix[4096];
    int length = (int)(ending - entry->d_name);
    snprintf(prefix, sizeof prefix, "%s/%.*s", directory, length, entry->d_name);
    read_process(recording, prefix);
  }
  closedir(files);
}

void free_recording(Recording *recording) {
  free(recording->records.items);
  free(recording->open.items);
  *recording = (Recording){0};
}
