// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "usage.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

// "host" in SOURCES of model/tables.py, and no category.
enum { kOfHost = 5 << kCategoryBits };

// Fields of /proc/self/status, in the order of their counters.
static const struct {
  const char *name, *field;
  double unit;
} kCounters[kUsageCounters] = {
    {"process peak resident bytes", "\nVmHWM:", 1024},
    {"process resident bytes", "\nVmRSS:", 1024},
    {"process threads", "\nThreads:", 1},
};

void usage_open(Log *log) {
  for (int i = 0; i < kUsageCounters; i++) {
    uint32_t id = atomic_fetch_add(&log->next_string, 1);
    if (!log_define(log, kDefineString, id, kCounters[i].name, strlen(kCounters[i].name))) return;
    log->usage.names[i] = id;
  }
  pthread_mutex_lock(&log->write_lock);
  log->usage.ring = log->next_ring++;
  log->usage.is_open = true;
  pthread_mutex_unlock(&log->write_lock);
  usage_put(log);
}

static bool read_status(char *text, size_t size) {
  int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t length = read(fd, text, size - 1);
  close(fd);
  text[length > 0 ? length : 0] = 0;
  return length > 0;
}

void usage_put(Log *log) {
  char text[4096];
  if (!log->usage.is_open || !read_status(text, sizeof text)) return;
  Record records[kUsageCounters];
  uint32_t count = 0;
  uint64_t now_ns = clock_ns();
  for (int i = 0; i < kUsageCounters; i++) {
    const char *field = strstr(text, kCounters[i].field);
    if (field == NULL) continue;
    double value = (double)strtoull(field + strlen(kCounters[i].field), NULL, 10);
    value *= kCounters[i].unit;
    // Lane 0 is that of the thread that recorded first: these are of the process.
    records[count] = (Record){
        .start_ns = now_ns, .name = log->usage.names[i], .kind = kKindCounter, .category = kOfHost};
    memcpy(&records[count++].dur_ns, &value, sizeof value);
  }
  pthread_mutex_lock(&log->write_lock);
  if (log_append_chunk(log, log->usage.ring, log->usage.records, records, count)) {
    log->usage.records += count;
  }
  pthread_mutex_unlock(&log->write_lock);
}
