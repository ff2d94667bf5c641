// SPDX-License-Identifier: Apache-2.0
// Protobuf's wire format, into bytes that are there or that grow. All inline: a call would take
// longer than most of what is added.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { kVarintSize = 10 };  // of the longest one

static inline size_t varint_size(uint64_t value) {
  size_t bits = 64 - (size_t)__builtin_clzll(value | 1);
  return (bits + 6) / 7;
}

static inline char *put_varint(char *out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    *out++ = (char)(value | 0x80);
  }
  *out++ = (char)value;
  return out;
}

// Bytes that grow. After a failed allocation nothing is added and `failed` stays.
typedef struct {
  char *bytes;
  size_t size;
  size_t room;
  bool failed;
} Output;

static inline bool reserve(Output *out, size_t more) {
  if (out->failed) {
    return false;
  }
  if (out->room - out->size < more) {
    size_t room = out->room + out->room / 2 + more;
    char *bytes = realloc(out->bytes, room);
    if (bytes == NULL) {
      out->failed = true;
      return false;
    }
    out->bytes = bytes;
    out->room = room;
  }
  return true;
}

static inline void add(Output *out, const void *bytes, size_t size) {
  if (size > 0 && reserve(out, size)) {
    memcpy(out->bytes + out->size, bytes, size);
    out->size += size;
  }
}

static inline void add_byte(Output *out, unsigned char byte) {
  add(out, &byte, 1);
}

static inline void add_varint(Output *out, uint64_t value) {
  if (reserve(out, kVarintSize)) {
    out->size = (size_t)(put_varint(out->bytes + out->size, value) - out->bytes);
  }
}

// Puts the size of what was added since `from` in front of it.
static inline void close_message(Output *out, size_t from) {
  size_t size = out->size - from;
  size_t prefix = varint_size(size);
  if (reserve(out, prefix)) {
    memmove(out->bytes + from + prefix, out->bytes + from, size);
    put_varint(out->bytes + from, size);
    out->size += prefix;
  }
}
