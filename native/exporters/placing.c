// SPDX-License-Identifier: Apache-2.0
// Which track a span goes to. Touches no Python object but the Tracks it is given.
#include "tracks.h"

#include <stdlib.h>
#include <string.h>

enum { kMaxAncestors = 8, kMaxLane = 1 << 28 };

static bool grow(void *array, size_t *room, size_t needed, size_t item) {
  if (needed <= *room) {
    return true;
  }
  size_t wanted = *room * 2 > needed ? *room * 2 : needed + 3;
  void *old;
  memcpy(&old, array, sizeof old);
  void *bigger = realloc(old, wanted * item);
  if (bigger == NULL) {
    return false;
  }
  memcpy(array, &bigger, sizeof bigger);
  *room = wanted;
  return true;
}

static bool add_turn(Tracks *self, int64_t time_ns, int64_t row, int32_t track) {
  if (!self->wants_turns) {
    return true;
  }
  if (!grow(&self->turns, &self->turn_room, self->turn_count + 1, sizeof *self->turns)) {
    return false;
  }
  self->turns[self->turn_count++] = (Turn){time_ns, (int32_t)row, track};
  return true;
}

// Ends what is over when a span from start_ns to end_ns begins. One without duration at the very
// end of another belongs into it, as its parent is that one.
static bool end_before(Tracks *self, int32_t number, int64_t start_ns, int64_t end_ns) {
  Track *track = &self->tracks[number];
  while (track->open > 0) {
    int64_t last_ns = track->ends[track->open - 1];
    if (last_ns > start_ns || (last_ns == start_ns && end_ns == start_ns)) {
      break;
    }
    track->open--;
    if (!add_turn(self, last_ns, -1, number)) {
      return false;
    }
  }
  return true;
}

static bool fits(const Tracks *self, int32_t number, int64_t end_ns) {
  const Track *track = &self->tracks[number];
  return track->open == 0 || track->ends[track->open - 1] >= end_ns;
}

// Which of two tracks is free first; the older one where both are.
static bool frees_before(const Tracks *self, int32_t a, int32_t b) {
  int64_t a_ns = self->tracks[a].free_ns;
  int64_t b_ns = self->tracks[b].free_ns;
  return a_ns < b_ns || (a_ns == b_ns && a < b);
}

static void sift_down(const Tracks *self, int32_t *heap, size_t count) {
  for (size_t i = 0;;) {
    size_t child = 2 * i + 1;
    if (child >= count) {
      return;
    }
    if (child + 1 < count && frees_before(self, heap[child + 1], heap[child])) {
      child++;
    }
    if (!frees_before(self, heap[child], heap[i])) {
      return;
    }
    int32_t swapped = heap[i];
    heap[i] = heap[child];
    heap[child] = swapped;
    i = child;
  }
}

static void sift_up(const Tracks *self, int32_t *heap, size_t i) {
  while (i > 0) {
    size_t parent = (i - 1) / 2;
    if (!frees_before(self, heap[i], heap[parent])) {
      return;
    }
    int32_t swapped = heap[i];
    heap[i] = heap[parent];
    heap[parent] = swapped;
    i = parent;
  }
}

static int32_t new_track(Tracks *self) {
  if (self->track_count >= INT32_MAX - 1 ||
      !grow(&self->tracks, &self->track_room, self->track_count + 1, sizeof *self->tracks)) {
    return -1;
  }
  self->tracks[self->track_count] = (Track){NULL, 0, 0, INT64_MIN};
  return (int32_t)self->track_count++;
}

// The track on which a span nests: that of its parent or of another ancestor, else one of the lane
// with nothing open, else a new one. -1: no memory.
static int32_t choose_track(Tracks *self, Lane *lane, int64_t start_ns, int64_t end_ns) {
  for (size_t i = lane->open; i > 0 && lane->open - i < kMaxAncestors; i--) {
    int32_t number = lane->spans[i - 1].track;
    if (!end_before(self, number, start_ns, end_ns)) {
      return -1;
    }
    if (fits(self, number, end_ns)) {
      return number;
    }
  }
  if (lane->first == 0) {
    int32_t number = new_track(self);
    lane->first = number + 1;
    return number;
  }
  int32_t first = lane->first - 1;
  if (!end_before(self, first, start_ns, end_ns)) {
    return -1;
  }
  if (fits(self, first, end_ns)) {
    return first;
  }
  if (lane->more > 0) {
    int32_t top = lane->heap[0];
    if (!end_before(self, top, start_ns, end_ns)) {
      return -1;
    }
    if (fits(self, top, end_ns)) {
      if (self->tracks[top].open == 0) {
        self->tracks[top].free_ns = end_ns;
        sift_down(self, lane->heap, lane->more);
      }
      return top;
    }
  }
  int32_t number = new_track(self);
  if (number < 0 || !grow(&lane->heap, &lane->heap_room, lane->more + 1, sizeof *lane->heap)) {
    return -1;
  }
  self->tracks[number].free_ns = end_ns;
  lane->heap[lane->more] = number;
  sift_up(self, lane->heap, lane->more++);
  return number;
}

static bool push_end(Tracks *self, int32_t number, int64_t end_ns) {
  Track *track = &self->tracks[number];
  if (!grow(&track->ends, &track->room, track->open + 1, sizeof *track->ends)) {
    return false;
  }
  track->ends[track->open++] = end_ns;
  return true;
}

// A lane with one track has all its open spans there; `spans` repeats them once there are more.
static bool begin_to_cross(Tracks *self, Lane *lane, int32_t number) {
  const Track *track = &self->tracks[number];
  if (!grow(&lane->spans, &lane->room, track->open + 1, sizeof *lane->spans)) {
    return false;
  }
  for (lane->open = 0; lane->open < track->open; lane->open++) {
    lane->spans[lane->open] = (Span){track->ends[lane->open], number};
  }
  return true;
}

static bool place_row(Tracks *self, Lane *lane, int64_t row, int64_t start_ns, int64_t end_ns,
                      int32_t *chosen) {
  if (lane->first > 0 && lane->more == 0) {
    int32_t only = lane->first - 1;
    if (!end_before(self, only, start_ns, end_ns)) {
      return false;
    }
    if (fits(self, only, end_ns)) {
      *chosen = only;
      return push_end(self, only, end_ns) && add_turn(self, start_ns, row, only);
    }
    if (!begin_to_cross(self, lane, only)) {
      return false;
    }
  }
  while (lane->open > 0 && lane->spans[lane->open - 1].end_ns < end_ns) {
    lane->open--;
  }
  int32_t number = choose_track(self, lane, start_ns, end_ns);
  if (number < 0 || !grow(&lane->spans, &lane->room, lane->open + 1, sizeof *lane->spans)) {
    return false;
  }
  lane->spans[lane->open++] = (Span){end_ns, number};
  *chosen = number;
  return push_end(self, number, end_ns) && add_turn(self, start_ns, row, number);
}

static bool make_lanes(Tracks *self, size_t count) {
  if (count > self->lane_count) {
    Lane *lanes = realloc(self->lanes, count * sizeof *lanes);
    if (lanes == NULL) {
      return false;
    }
    memset(lanes + self->lane_count, 0, (count - self->lane_count) * sizeof *lanes);
    self->lanes = lanes;
    self->lane_count = count;
  }
  return true;
}

Outcome place_rows(Tracks *self, Py_ssize_t rows, const int32_t *lane, const int64_t *start_ns,
                   const int64_t *dur_ns, int32_t *track, int32_t *lane_of_new) {
  size_t before = self->track_count;
  int32_t last_lane = -1;
  for (Py_ssize_t i = 0; i < rows; i++) {
    last_lane = lane[i] > last_lane ? lane[i] : last_lane;
    if (lane[i] < 0 || lane[i] > kMaxLane) {
      return (Outcome){i, "has a lane that is negative or too large"};
    }
    if (dur_ns[i] < 0 || start_ns[i] > INT64_MAX - dur_ns[i]) {
      return (Outcome){i, "has a duration that is negative or too long"};
    }
    if (i > 0 && start_ns[i] < start_ns[i - 1]) {
      return (Outcome){i, "starts before the row above it; sort by start_ns"};
    }
  }
  if (!make_lanes(self, (size_t)last_lane + 1)) {
    return (Outcome){0, ""};
  }
  for (Py_ssize_t i = 0; i < rows; i++) {
    size_t known = self->track_count;
    if (!place_row(self, &self->lanes[lane[i]], i, start_ns[i], start_ns[i] + dur_ns[i],
                   &track[i])) {
      return (Outcome){i, ""};
    }
    if (self->track_count > known) {
      lane_of_new[known - before] = lane[i];
    }
  }
  return (Outcome){0, NULL};
}

bool end_all(Tracks *self) {
  for (size_t i = 0; i < self->track_count; i++) {
    if (!end_before(self, (int32_t)i, INT64_MAX, INT64_MIN)) {
      return false;
    }
  }
  return true;
}
