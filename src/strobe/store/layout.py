# SPDX-License-Identifier: Apache-2.0
"""The bytes of ring, chunk, definition and control files; the same as native/core/format.h.

Imported by the Python recorder, so it must not need numpy.
"""

from __future__ import annotations

import struct

FORMAT_VERSION = 2

RECORD_BYTES = 32
RING_RECORDS = 32768
OPEN_SLOTS = 256
PAGE_BYTES = 4096
OPEN_OFFSET = PAGE_BYTES
RECORDS_OFFSET = OPEN_OFFSET + OPEN_SLOTS * 32
RING_BYTES = RECORDS_OFFSET + RING_RECORDS * RECORD_BYTES

RING_MAGIC = int.from_bytes(b"SRNG", "little")
CHUNK_MAGIC = int.from_bytes(b"SCHK", "little")
DEFINITION_MAGIC = int.from_bytes(b"SDEF", "little")
CONTROL_MAGIC = int.from_bytes(b"SCTL", "little")

KIND_SPAN = 1
KIND_OPEN = 2
KIND_INSTANT = 3
KIND_COUNTER = 4
KIND_STEP = 5
KIND_MEMORY = 7
KIND_SAMPLE = 8
KIND_VALUE = 9

# Types of values, and the bit that marks the number of a set of them.
VALUE_INT = 1
VALUE_FLOAT = 2
VALUE_BOOL = 3
VALUE_NULL = 4
VALUE_TEXT = 5
VALUE_STRING = 6
VALUE_MORE = 7
VALUES_BIT = 0x80000000
VALUE_BYTES = 16
MOST_VALUES = 4
LONGEST_TEXT = 64

DEFINE_STRING = 1
DEFINE_LANE = 2
DEFINE_PROCESS = 3
DEFINE_NOTE = 4
DEFINE_RING = 5

# start_ns, dur_ns, name, attributes, lane, kind, category, window
RECORD = struct.Struct("<QQIIIBBH")
# start_ns, name, attributes, lane, category
OPEN_SLOT = struct.Struct("<QIIII8x")
# magic, ring, first_seq, count, crc, reserved
CHUNK = struct.Struct("<IIQIIQ")
# magic, kind, id, length, crc
DEFINITION = struct.Struct("<IIIII")
# magic, version, ring, capacity, open_slots, pid
RING_HEAD = struct.Struct("<IIIIII")
# device and inode of the log's directory
RING_LOG = struct.Struct("<QQ")

# Byte offsets of the ring header's 64-bit fields.
LOG_OFFSET = 24
HEAD_OFFSET = 64
TAIL_OFFSET = 128
DROPPED_OFFSET = 192
OWN_NS_OFFSET = 200
DRAIN_NS_OFFSET = 208
FAILED_ERRNO_OFFSET = 216
ONCE_NS_OFFSET = 224

# The control page: magic, version, generation at 8, clock, bounds and id, the directory from 64.
CONTROL_HEAD = struct.Struct("<III")
GENERATION_OFFSET = 8
BOUNDS_OFFSET = 40
BOUNDS = struct.Struct("<QQQ")
DIRECTORY_OFFSET = 64
PATH_BYTES = 3072
