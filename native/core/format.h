// SPDX-License-Identifier: Apache-2.0
// The bytes that the recorder leaves on disk, all little endian. src/strobe/store/layout.py says the
// same in Python; FORMATS.md says it in words. A change here raises kFormatVersion.
#pragma once

#include <stdatomic.h>
#include <stdint.h>

enum {
  kFormatVersion = 2,
  kRecordBytes = 32,
  kRingRecords = 32768,  // 1 MiB of records per thread
  kOpenSlots = 256,
  kCategoryBits = 4,
  kPageBytes = 4096,
  kPathBytes = 3072,
};

// "SRNG", "SCHK", "SDEF", "SCTL" as they read in a hex dump.
#define RING_MAGIC 0x474e5253u
#define CHUNK_MAGIC 0x4b484353u
#define DEFINITION_MAGIC 0x46454453u
#define CONTROL_MAGIC 0x4c544353u

typedef enum {
  kKindSpan = 1,  // dur_ns is a duration
  kKindOpen = 2,  // begun, and no room in the open table: finished by an equal kKindSpan, if ever
  kKindInstant = 3,  // dur_ns is 0
  kKindCounter = 4,  // dur_ns holds the bits of a float64
  kKindStep = 5,     // a step of the window in `window`: name is its number, attributes its samples
  kKindMemory = 7,   // dur_ns: bytes allocated, negative if freed; name and attributes: the low and
                     // high half of the address; category 1: on the device in `window`
  kKindSample = 8,  // a thread's stack: dur_ns is the time since the samples before, name a text of
                    // three numbers: that of the stack that called it (0: none), name, attributes
  kKindValue = 9,   // one attribute: see VALUE
} Kind;

// RECORD, 32 bytes
//   0          8        16     20     24     28  29  30  32
//   | start_ns | dur_ns | name | attr | lane | k | c | w |
// name, attr: ids of strings in the definitions log (attr 0: none; with kValuesBit, a set of values).
// lane: id of a lane there.
// k: Kind. c: the source of the record above kCategoryBits (its place in SOURCES, model/tables.py; 0:
// the program itself), and below: of a span its category, the place in CATEGORIES, 0 for a user's;
// of a step 1 if it is a request. w: of a step its window; of a span whose lane has sequence numbers
// its own, less the lane's.
typedef struct {
  uint64_t start_ns;
  uint64_t dur_ns;
  uint32_t name;
  uint32_t attributes;
  uint32_t lane;
  uint8_t kind;
  uint8_t category;
  uint16_t window;
} Record;
_Static_assert(sizeof(Record) == kRecordBytes, "RECORD is a file format");

// VALUE: a record of kind 9, one attribute of a set of them. `attributes` is the set's number, with
// kValuesBit set; the spans and instants that have these attributes name it in theirs. `name` is the
// key. A set is in one piece of one ring, and before the first record that names it.
//   0            8            16    20    24     28  29     30       32
//   | value ............... | key | set | string | 9 | type | length |
typedef enum {
  kValueInt = 1,    // dur_ns: an int64
  kValueFloat = 2,  // dur_ns: the bits of a float64
  kValueBool = 3,   // dur_ns: 0 or 1
  kValueNull = 4,   // nothing
  kValueText = 5,   // UTF-8 of `length` bytes in the first 16 bytes, and in the records that follow
  kValueString = 6,  // lane: the id of a string in the definitions log
  kValueMore = 7,    // the next 16 bytes of the text before
} ValueType;
enum { kValuesBit = 0x80000000u };

// OPEN SLOT, 32 bytes: a span that has begun and not ended. start_ns is written last and cleared
// after the span's record is published, so a killed program leaves it in one place or in both,
// never in none.
//   0          8      12     16     20         24        32
//   | start_ns | name | attr | lane | category | 0 ..... |
typedef struct {
  _Atomic uint64_t start_ns;  // 0: free
  uint32_t name;
  uint32_t attributes;
  uint32_t lane;
  uint32_t category;
  uint32_t reserved[2];
} OpenSlot;
_Static_assert(sizeof(OpenSlot) == 32, "OPEN SLOT is a file format");

// RING FILE: one page of header, the open table, then kRingRecords records. Record number n sits at
// n % capacity. Numbers below tail are in the chunk file (or counted in dropped), numbers from tail
// to head are here.
//   0        4096          12288          1060864
//   | header | open slots  | records .... |
typedef struct {
  uint32_t magic;
  uint32_t version;
  uint32_t ring;      // the number that chunks name
  uint32_t capacity;  // records
  uint32_t open_slots;
  uint32_t pid;
  // The directory of the log: only its own recording may delete a ring that lies elsewhere.
  uint64_t log_device;
  uint64_t log_inode;
  uint64_t reserved[3];
  // One cache line each: head is the producer's, tail the drain's.
  _Atomic uint64_t head;
  uint64_t head_line[7];
  _Atomic uint64_t tail;
  uint64_t tail_line[7];
  _Atomic uint64_t dropped;   // records given up because they could not be written
  _Atomic uint64_t own_ns;    // time the producing threads spent in the slow paths
  _Atomic uint64_t drain_ns;  // time the drain thread spent on this ring
  _Atomic uint64_t failed_errno;
  _Atomic uint64_t once_ns;  // time the producing threads spent until they had this ring
} RingHeader;
_Static_assert(sizeof(RingHeader) <= kPageBytes, "the header is one page");

// CHUNK, 32 bytes and count records
//   0       4      8           16      20    24         32
//   | magic | ring | first_seq | count | crc | reserved | records ...
// crc: CRC-32 (zlib's) of the header with crc = 0, then of the records.
typedef struct {
  uint32_t magic;
  uint32_t ring;
  uint64_t first_seq;
  uint32_t count;
  uint32_t crc;
  uint64_t reserved;
} ChunkHeader;
_Static_assert(sizeof(ChunkHeader) == 32, "CHUNK is a file format");

typedef enum {
  kDefineString = 1,  // UTF-8, lone surrogates as their three bytes
  kDefineLane = 2,  // JSON: tid, thread, context; or, of a lane that has sequence numbers too: of,
                    // the lane that it is; sequence, the first of them; thread, who counts them
  kDefineProcess = 3,  // JSON: pid, parent, host, start, recorder, ...
  kDefineNote = 4,     // text for people: what limits this process's records
  kDefineRing = 5,     // there is a file of the ring of this number; text for people: the folder
                       // that it is in, nothing if that is the log's directory
} DefinitionKind;

// DEFINITION, 20 bytes and length bytes
//   0       4      8    12       16    20
//   | magic | kind | id | length | crc | bytes ...
// crc: CRC-32 of the header with crc = 0, then of the bytes.
typedef struct {
  uint32_t magic;
  uint32_t kind;
  uint32_t id;
  uint32_t length;
  uint32_t crc;
} DefinitionHeader;
_Static_assert(sizeof(DefinitionHeader) == 20, "DEFINITION is a file format");

// CONTROL PAGE, shared by a process and its children. generation is odd while recording; the rest
// changes only while it is even. The three clock fields are a ClockScale.
//   0       4         8            12  16           40       48         56   64
//   | magic | version | generation | 0 | clock .... | max .. | max .... | id | directory ...
typedef struct {
  uint32_t magic;
  uint32_t version;
  _Atomic uint32_t generation;
  uint32_t reserved;
  uint64_t clock_base;
  uint64_t clock_base_ns;
  uint64_t clock_scale;
  uint64_t max_log_bytes;   // of one process's chunk file; 0: no limit
  uint64_t max_ring_bytes;  // of one process's rings; 0: no limit
  uint64_t recording;       // its id, which names ring files that cannot be in the directory
  char directory[kPathBytes];
} ControlPage;
_Static_assert(sizeof(ControlPage) <= kPageBytes, "the control page is one page");
