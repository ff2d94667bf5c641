// SPDX-License-Identifier: Apache-2.0
#include "texts.h"

#include <stdlib.h>
#include <string.h>

enum {
  // Past these the table is emptied and texts get new numbers, as in strings.c.
  kMostTexts = 131072,
  kMostBytes = 16 << 20,
  kFirstCapacity = 1024,
};

typedef struct {
  char *bytes;  // NULL: free
  uint32_t length;
  uint32_t id;
} Text;

static struct {
  pthread_mutex_t lock;  // taken before a log's define_lock
  uint32_t serial;       // of the log that the numbers belong to
  Text *table;           // open addressing, never more than half full
  uint32_t capacity, count;
  size_t bytes;
} texts = {.lock = PTHREAD_MUTEX_INITIALIZER};

void texts_lock(void) {
  pthread_mutex_lock(&texts.lock);
}

void texts_unlock(void) {
  pthread_mutex_unlock(&texts.lock);
}

static void start_over(uint32_t serial) {
  for (uint32_t i = 0; i < texts.capacity; i++) free(texts.table[i].bytes);
  if (texts.capacity) memset(texts.table, 0, texts.capacity * sizeof *texts.table);
  texts.count = 0;
  texts.bytes = 0;
  texts.serial = serial;
}

static uint32_t hash(const char *bytes, size_t length) {
  uint32_t value = 2166136261u;
  for (size_t i = 0; i < length; i++) value = (value ^ (uint8_t)bytes[i]) * 16777619u;
  return value;
}

static Text *probe(Text *table, uint32_t capacity, const char *bytes, size_t length) {
  for (uint32_t place = hash(bytes, length);; place++) {
    Text *text = &table[place & (capacity - 1)];
    if (text->bytes == NULL) return text;
    if (text->length == length && memcmp(text->bytes, bytes, length) == 0) return text;
  }
}

static bool grow(void) {
  uint32_t capacity = texts.capacity ? texts.capacity * 2 : kFirstCapacity;
  Text *table = calloc(capacity, sizeof *table);
  if (table == NULL) return false;
  for (uint32_t i = 0; i < texts.capacity; i++) {
    Text *old = &texts.table[i];
    if (old->bytes) *probe(table, capacity, old->bytes, old->length) = *old;
  }
  free(texts.table);
  texts.table = table;
  texts.capacity = capacity;
  return true;
}

static uint32_t intern(Ring *ring, const char *bytes, size_t length) {
  bool full = texts.count >= kMostTexts || texts.bytes >= kMostBytes;
  if (texts.serial != ring->serial || full) start_over(ring->serial);
  if (texts.count * 2 >= texts.capacity && !grow()) return 0;
  Text *text = probe(texts.table, texts.capacity, bytes, length);
  if (text->bytes) return text->id;
  uint32_t id = atomic_fetch_add(&ring->log->next_string, 1);
  // One that could not be written is not kept, so that its next use tries again.
  if (!log_define(ring->log, kDefineString, id, bytes, length)) return id;
  char *copy = malloc(length ? length : 1);
  if (copy == NULL) return id;
  memcpy(copy, bytes, length);
  *text = (Text){.bytes = copy, .length = (uint32_t)length, .id = id};
  texts.count++;
  texts.bytes += length;
  return id;
}

uint32_t text_id(Ring *ring, const char *bytes, size_t length) {
  texts_lock();
  uint32_t id = intern(ring, bytes, length);
  texts_unlock();
  return id;
}

bool text_copy(uint32_t serial, uint32_t id, char *into, size_t size) {
  bool found = false;
  texts_lock();
  for (uint32_t i = 0; texts.serial == serial && i < texts.capacity && !found; i++) {
    const Text *text = &texts.table[i];
    if (text->bytes == NULL || text->id != id) continue;
    size_t length = text->length < size ? text->length : size - 1;
    memcpy(into, text->bytes, length);
    into[length] = 0;
    found = true;
  }
  texts_unlock();
  return found;
}
