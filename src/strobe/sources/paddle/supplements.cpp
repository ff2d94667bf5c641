// SPDX-License-Identifier: Apache-2.0
//
// What Paddle 3 records of operators and never reads: with its op-info recorder on, each call leaves
// the shapes of its inputs and its attributes in a recorder of libphi, while Paddle's profiler looks
// for them in another one, of libpaddle. Here they are taken out, and given back to the allocator.
//
// The file: JSON objects, one per line, one for each distinct call; an empty line; then for each
// call 24 bytes, as the machine has them:
//
//   0        8         16      24
//   | thread | time_ns | place of its object |

#include <cinttypes>
#include <cstdio>
#include <string>
#include <unordered_map>
#include <vector>

#include "paddle/phi/core/ddim.h"

#include "paddle/phi/api/profiler/common_event.h"
#include "paddle/phi/api/profiler/host_event_recorder.h"
#include "paddle/phi/core/os_info.h"

namespace {

using Event = phi::OperatorSupplementOriginEvent;
using Container = phi::EventContainer<Event>;

struct Call {
  uint64_t thread;
  uint64_t time_ns;
  uint64_t place;
};
static_assert(sizeof(Call) == 24, "a call is a file format: importers/_paddle_shapes.py reads it");

// What decides how much an operator computes.
constexpr const char *kAttributes[] = {"transpose_x", "transpose_y",       "strides",    "paddings",
                                       "dilations",   "padding_algorithm", "data_format"};

void add_text(std::string *to, const std::string &text) {
  to->push_back('"');
  for (unsigned char letter : text) {
    if (letter >= ' ' && letter < 127 && letter != '"' && letter != '\\') {
      to->push_back(static_cast<char>(letter));
    }
  }
  to->push_back('"');
}

template <typename Numbers>
void add_numbers(std::string *to, const Numbers &numbers, int count) {
  to->push_back('[');
  for (int i = 0; i < count; i++) {
    to->append(i ? "," : "").append(std::to_string(numbers[i]));
  }
  to->push_back(']');
}

bool add_value(std::string *to, const phi::Attribute &value) {
  if (auto *flag = paddle::get_if<bool>(&value)) {
    to->append(*flag ? "true" : "false");
  } else if (auto *text = paddle::get_if<std::string>(&value)) {
    add_text(to, *text);
  } else if (auto *narrow = paddle::get_if<std::vector<int>>(&value)) {
    add_numbers(to, *narrow, static_cast<int>(narrow->size()));
  } else if (auto *wide = paddle::get_if<std::vector<int64_t>>(&value)) {
    add_numbers(to, *wide, static_cast<int>(wide->size()));
  } else {
    return false;
  }
  return true;
}

void describe(const Event &event, std::string *to) {
  to->assign("{\"op\":");
  add_text(to, event.op_type);
  to->append(",\"inputs\":{");
  const char *between = "";
  for (const auto &input : event.input_shapes) {
    to->append(between);
    add_text(to, input.first);
    to->append(":[");
    const char *comma = "";
    for (const auto &shape : input.second) {
      to->append(comma);
      add_numbers(to, shape, shape.size());
      comma = ",";
    }
    to->push_back(']');
    between = ",";
  }
  to->append("},\"attributes\":{");
  between = "";
  for (const char *name : kAttributes) {
    auto found = event.attributes.find(name);
    std::string value;
    if (found != event.attributes.end() && add_value(&value, found->second)) {
      to->append(between);
      add_text(to, name);
      to->append(":").append(value);
      between = ",";
    }
  }
  to->append("}}");
}

// The container's own way to empty itself copies the events and leaks what they hold.
template <typename Take>
void empty(Container *container, Take take) {
  for (auto *block = container->event_blocks_; block != nullptr;) {
    for (size_t i = 0; i < block->offset; i++) {
      take(block->events[i].event);
      block->events[i].event.~Event();
    }
    block->offset = 0;
    auto *next = block->next;
    if (block != container->event_blocks_) {
      delete block;
    }
    block = next;
  }
  container->event_blocks_->next = nullptr;
  container->cur_event_block_ = container->event_blocks_;
  for (auto *block = container->str_blocks_->next; block != nullptr;) {
    auto *next = block->next;
    delete block;
    block = next;
  }
  container->str_blocks_->next = nullptr;
  container->str_blocks_->offset = 0;
  container->cur_str_block_ = container->str_blocks_;
}

template <typename Take>
void empty_all(Take take) {
  for (auto &thread : phi::HostEventRecorder<Event>::GetInstance().thr_recorders_) {
    empty(&thread->base_evt_cntr_, [&](const Event &event) { take(thread->thread_id_, event); });
  }
}

}  // namespace

// Returns nothing of use: that it links says that Paddle has the same std::string as we have.
extern "C" size_t strobe_paddle_check() {
  return phi::GetCurrentThreadName().size();
}

// Forgets what is there. The recorder must be off for both, and no operator be running.
extern "C" void strobe_paddle_forget() {
  empty_all([](uint64_t, const Event &) {});
}

// Writes what is there to a file, forgets it, and returns how much it was; -1 if it was not written.
extern "C" int64_t strobe_paddle_take(const char *path) {
  std::unordered_map<std::string, uint64_t> places;
  std::vector<const std::string *> texts;
  std::vector<Call> calls;
  std::string text;
  empty_all([&](uint64_t thread, const Event &event) {
    describe(event, &text);
    auto added = places.emplace(text, places.size());
    if (added.second) {
      texts.push_back(&added.first->first);
    }
    calls.push_back({thread, event.timestamp_ns, added.first->second});
  });
  FILE *file = std::fopen(path, "wb");
  if (file == nullptr) {
    return -1;
  }
  bool fine = true;
  for (const std::string *each : texts) {
    fine = fine && std::fprintf(file, "%s\n", each->c_str()) > 0;
  }
  fine = fine && std::fputc('\n', file) != EOF;
  fine = fine && std::fwrite(calls.data(), sizeof(Call), calls.size(), file) == calls.size();
  fine = std::fclose(file) == 0 && fine;
  return fine ? static_cast<int64_t>(calls.size()) : -1;
}
