// SPDX-License-Identifier: Apache-2.0
// Reads a recording back from the bytes as format.h draws them. It shares no code with the recorder,
// not even its structs.
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint64_t start_ns;
  uint64_t dur_ns;
  uint32_t name;
  uint32_t attributes;
  uint32_t lane;
  uint8_t kind;
  uint8_t category;
} ReadRecord;

typedef struct {
  ReadRecord *items;
  size_t count, capacity;
} ReadRecords;

typedef struct {
  ReadRecords records;
  ReadRecords open;  // spans in the open tables
  size_t processes, chunks, ring_files, definitions;
  size_t largest_chunk;  // records
  uint64_t dropped;      // as the rings say
  uint64_t missing;      // numbers that are nowhere
  uint64_t torn_bytes;   // behind the last whole chunk or definition of a file
} Recording;

// Adds what the directory holds. Ends the test when a record number is there twice.
void read_recording(Recording *recording, const char *directory);
void free_recording(Recording *recording);

// CRC-32 a bit at a time, for comparison.
uint32_t slow_crc32(const void *data, size_t length);
