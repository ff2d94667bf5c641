// SPDX-License-Identifier: Apache-2.0
#include "holders.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum {
  kFirstBlocks = 1024,
  kMostBlocks = 1 << 20,  // more than this are not kept: 48 MB
};

typedef struct {
  uint64_t address;
  int64_t bytes;  // 0: a free place
  uint32_t owner;
  int32_t device;
} Block;

static struct {
  atomic_bool lock;
  uint32_t serial;  // of the log that the owners' numbers belong to
  Block *blocks;    // open addressing, never more than half full
  uint32_t mask, count;
} holders;

// Held for some nanoseconds, for each block that is allocated or freed: half as dear as a mutex.
void holders_lock(void) {
  while (atomic_exchange_explicit(&holders.lock, true, memory_order_acquire)) sched_yield();
}

void holders_unlock(void) {
  atomic_store_explicit(&holders.lock, false, memory_order_release);
}

static void forget(void) {
  free(holders.blocks);
  holders.blocks = NULL;
  holders.mask = holders.count = 0;
}

static uint32_t home(uint64_t address, int device) {
  return (uint32_t)((address >> 4 ^ (uint64_t)(device + 1) << 40) * 0x9e3779b97f4a7c15u >> 32);
}

// Where it is, or the free place where it would be.
static Block *find(Block *blocks, uint32_t mask, uint64_t address, int device) {
  for (uint32_t place = home(address, device);; place++) {
    Block *block = &blocks[place & mask];
    if (block->bytes == 0 || (block->address == address && block->device == device)) return block;
  }
}

static bool reserve(void) {
  if (holders.blocks && holders.count * 2 <= holders.mask) return true;
  if (holders.count >= kMostBlocks) return false;
  uint32_t mask = holders.blocks ? holders.mask * 2 + 1 : kFirstBlocks - 1;
  Block *grown = calloc((size_t)mask + 1, sizeof *grown);
  if (grown == NULL) return false;
  for (uint32_t i = 0; holders.blocks && i <= holders.mask; i++) {
    const Block *block = &holders.blocks[i];
    if (block->bytes) *find(grown, mask, block->address, block->device) = *block;
  }
  free(holders.blocks);
  holders.blocks = grown;
  holders.mask = mask;
  return true;
}

static void put(Block block) {
  if (!reserve()) return;
  Block *place = find(holders.blocks, holders.mask, block.address, block.device);
  holders.count += place->bytes == 0;
  *place = block;
}

// The blocks behind it move up, as far as that takes none of them before its home.
static void take(uint64_t address, int device) {
  if (holders.blocks == NULL) return;
  Block *blocks = holders.blocks, *found = find(blocks, holders.mask, address, device);
  if (found->bytes == 0) return;
  uint32_t hole = (uint32_t)(found - blocks), mask = holders.mask;
  for (uint32_t next = (hole + 1) & mask; blocks[next].bytes; next = (next + 1) & mask) {
    uint32_t first = home(blocks[next].address, blocks[next].device);
    if (((next - first) & mask) < ((next - hole) & mask)) continue;
    blocks[hole] = blocks[next];
    hole = next;
  }
  blocks[hole].bytes = 0;
  holders.count--;
}

static uint32_t innermost(const Ring *ring) {
  if (ring->free_count == kOpenSlots) return HOLDERS_NOBODY;
  // The slot that was taken last is the one above those that are free, unless spans overlap.
  const OpenSlot *newest = &ring->open[ring->free_slots[ring->free_count]];
  if (newest->start_ns) return newest->name;
  uint64_t latest_ns = 0;
  uint32_t name = HOLDERS_NOBODY;
  for (uint32_t slot = 0; slot < kOpenSlots; slot++) {
    if (ring->open[slot].start_ns <= latest_ns) continue;
    latest_ns = ring->open[slot].start_ns;
    name = ring->open[slot].name;
  }
  return name;
}

static void belong_to(uint32_t serial) {
  if (holders.serial != serial) forget();
  holders.serial = serial;
}

void holders_change(const Ring *ring, int64_t bytes, uint64_t address, int device) {
  holders_lock();
  belong_to(ring->serial);
  if (bytes > 0) {
    put((Block){address, bytes, innermost(ring), device});
  } else {
    take(address, device);
  }
  holders_unlock();
}

void holders_before(const Ring *ring, int64_t bytes, uint64_t address, int device) {
  holders_lock();
  belong_to(ring->serial);
  bool is_known = holders.blocks && find(holders.blocks, holders.mask, address, device)->bytes;
  if (bytes > 0 && !is_known) put((Block){address, bytes, kHoldersBefore, device});
  holders_unlock();
}

void holders_forget(void) {
  holders_lock();
  forget();
  holders_unlock();
}

static Holder *find_holder(Holder *found, uint32_t *count, uint32_t owner, int32_t device) {
  for (uint32_t place = owner * 31 + (uint32_t)device;; place++) {
    Holder *holder = &found[place & (kMostHolders - 1)];
    if (holder->blocks && holder->owner == owner && holder->device == device) return holder;
    if (holder->blocks) continue;
    // Room is left for nobody's blocks on each device.
    if (++*count > kMostHolders / 2 && owner != HOLDERS_NOBODY) {
      return find_holder(found, count, HOLDERS_NOBODY, device);
    }
    holder->owner = owner;
    holder->device = device;
    return holder;
  }
}

uint32_t holders_sum(Holder *found) {
  memset(found, 0, kMostHolders * sizeof *found);
  uint32_t count = 0;
  holders_lock();
  for (uint32_t i = 0; holders.blocks && i <= holders.mask; i++) {
    const Block *block = &holders.blocks[i];
    if (block->bytes == 0) continue;
    Holder *holder = find_holder(found, &count, block->owner, block->device);
    holder->blocks++;
    holder->bytes += block->bytes;
  }
  uint32_t serial = holders.serial;
  holders_unlock();
  return serial;
}
