// SPDX-License-Identifier: Apache-2.0
// PyTorch's operators, straight into the recorder's rings: a RecordFunction callback. Compiled against
// the installed torch on first use (build.py), with -DNDEBUG as torch itself is: RecordFunction has
// a member more without it.
#include <ATen/EmptyTensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/ops/is_same_size_ops.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#ifdef USE_DISTRIBUTED
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/custom_class.h>
#endif

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "source.h"

namespace {

enum Option : uint32_t {
  kShapes = 1,
  kStrides = 2,
  kConcrete = 4,  // what FLOPs need besides shapes
  kMemory = 8,
  kCommunication = 16,  // the inputs of collectives, whatever the others say
};

const StrobeSource *recorder;
std::atomic<uint32_t> options;
at::CallbackHandle handle;
bool is_alone;  // torch had no other callback when ours was added

// What is recorded of a name, by the log with this serial number.
struct Known {
  uint32_t serial;
  uint32_t id;
  uint32_t category;
  bool concrete;  // its FLOPs need more than shapes
};

// Names and inputs that a thread has seen, so that most operators need no lock and no text. Between
// two operators the program fills the caches with its own data: so all that is looked at lies
// together, in as few of their lines as can be.
constexpr size_t kLine = 64;

template <size_t kLines>
struct alignas(kLine) Name {
  static constexpr size_t kRoom = kLines * kLine - sizeof(Known) - sizeof(const char *);
  Known known;
  const char *address;
  char text[kRoom];  // an address may come again with another name
};

// What describes an operator's inputs is a list of numbers. Of most operators only its digest is made:
// with 128 bits two lists that differ have different ones.
class Digest {
 public:
  void push(int64_t number) {
    uint64_t bits = static_cast<uint64_t>(number);
    low_ = turned(low_ ^ bits, 25) * 0x9e3779b97f4a7c15u;
    high_ = turned(high_ + bits, 43) * 0xd6e8feb86659fd93u;
  }

  // Two at once, as a size seldom needs more than half of the bits; what does is set apart.
  void push_sizes(at::IntArrayRef sizes) {
    size_t i = 0;
    for (; i + 1 < sizes.size(); i += 2) {
      uint64_t first = static_cast<uint64_t>(sizes[i]),
               second = static_cast<uint64_t>(sizes[i + 1]);
      if (first >> 32 || second >> 31) {
        push(-1);
        push(sizes[i]);
        push(sizes[i + 1]);
      } else {
        push(static_cast<int64_t>(first | second << 32));
      }
    }
    if (i < sizes.size()) push(sizes[i]);
  }

  bool operator==(const Digest &other) const {
    return low_ == other.low_ && high_ == other.high_;
  }

  // The topmost bits of it.
  size_t place(int bits) const {
    return (low_ ^ high_) >> (64 - bits);
  }

 private:
  static uint64_t turned(uint64_t bits, int by) {
    return bits << by | bits >> (64 - by);
  }

  uint64_t low_ = 0, high_ = 0;
};

class List {
 public:
  void push(int64_t number) {
    numbers_.push_back(number);
  }

  void push_sizes(at::IntArrayRef sizes) {
    numbers_.insert(numbers_.end(), sizes.begin(), sizes.end());
  }

  const int64_t *begin() const {
    return numbers_.data();
  }

  const int64_t *end() const {
    return numbers_.data() + numbers_.size();
  }

 private:
  std::vector<int64_t> numbers_;
};

struct alignas(kLine / 2) Inputs {
  Digest digest;
  uint32_t serial;
  uint32_t id;
};

// One operator out of so many is timed, to know what the callback costs. A prime: the operators of a
// step come again and again.
constexpr uint32_t kBetweenTimed = 61;
constexpr uint64_t kLeastTimed = 20;
constexpr uint64_t kMostTimedNs = 20000;  // longer: the thread had to wait for a processor

std::atomic<uint64_t> timed_ns, timed_count;
double clock_cost_ns;

double mean_timed_ns() {
  double count = static_cast<double>(timed_count.load());
  // What is timed in two parts includes one reading of the clock in each.
  return count ? std::max(0.0, timed_ns.load() / count - 2 * clock_cost_ns) : 0.0;
}

struct Thread {
  static constexpr int kNamesBits = 10, kTextsBits = 9, kInputsBits = 12;
  static constexpr size_t kSpares = 256;
  uint32_t until_timed = kBetweenTimed;
  void *spare = nullptr;  // memory for operators, each block beginning with the next one's address
  size_t spares = 0;
  std::vector<Name<1>> names{size_t{1} << kNamesBits};  // by address
  std::vector<Name<2>> texts{size_t{1} << kTextsBits};  // by text
  std::vector<Inputs> inputs;                           // by digest

  ~Thread() {
    while (spare != nullptr) {
      void *memory = spare;
      memcpy(&spare, memory, sizeof spare);
      ::operator delete(memory);
    }
  }
};

pthread_key_t thread_end;
// In the block that every thread has from its start, where it is found without a call.
__attribute__((tls_model("initial-exec"))) thread_local Thread *this_thread;

Thread &current_thread() {
  if (this_thread == nullptr) {
    this_thread = new Thread;
    pthread_setspecific(thread_end, this_thread);
  }
  return *this_thread;
}

uint32_t categorize(const char *name, at::RecordScope scope) {
  if (scope == at::RecordScope::BACKWARD_FUNCTION) return STROBE_BACKWARD;
  if (scope == at::RecordScope::USER_SCOPE) {
    // The backends' work; gloo's is announced as an annotation.
    bool backend = !strncmp(name, "gloo:", 5) || !strncmp(name, "nccl:", 5) ||
                   !strncmp(name, "mpi:", 4) || !strncmp(name, "ucc:", 4);
    return backend ? STROBE_COMMUNICATION : STROBE_ANNOTATION;
  }
  if (!strncmp(name, "c10d::", 6) || !strncmp(name, "_c10d_functional::", 18)) {
    return STROBE_COMMUNICATION;
  }
  if (!strncmp(name, "autograd::engine::", 18)) return STROBE_BACKWARD;
  return STROBE_OPERATOR;
}

bool needs_concrete(const char *name) {
  for (const char *start :
       {"aten::conv", "aten::_convo", "aten::mkldnn_c", "aten::slow", "aten::thnn_"}) {
    if (!strncmp(name, start, strlen(start))) return true;
  }
  return false;
}

Known know(const char *name, size_t length, at::RecordScope scope, uint32_t serial) {
  uint32_t id = recorder->text(name, length);
  return {id ? serial : 0, id, categorize(name, scope), needs_concrete(name)};
}

constexpr uint64_t kMix = 0x9e3779b97f4a7c15u;

Name<1> &place_of_address(Thread &thread, const char *name) {
  return thread.names[(reinterpret_cast<uintptr_t>(name) >> 3) * kMix >> (64 - Thread::kNamesBits)];
}

// Autograd makes some names up anew each time, so that their addresses say nothing.
Name<2> &place_of_text(Thread &thread, const char *name, size_t length) {
  uint64_t hash = length;
  for (size_t i = 0; i + 8 <= length; i += 8) {
    uint64_t word;
    memcpy(&word, name + i, sizeof word);
    hash = (hash ^ word) * kMix;
  }
  uint64_t rest = 0;
  memcpy(&rest, name + length / 8 * 8, length % 8);
  return thread.texts[(hash ^ rest) * kMix >> (64 - Thread::kTextsBits)];
}

Known find_name(Thread &thread, const char *name, at::RecordScope scope, uint32_t serial) {
  Name<1> &near = place_of_address(thread, name);
  if (near.address == name && near.known.serial == serial && strcmp(near.text, name) == 0) {
    return near.known;
  }
  size_t length = strlen(name);
  if (length >= Name<2>::kRoom) return know(name, length, scope, serial);
  Name<2> &same = place_of_text(thread, name, length);
  if (same.known.serial != serial || memcmp(same.text, name, length + 1) != 0) {
    same.known = know(name, length, scope, serial);
    memcpy(same.text, name, length + 1);
  }
  if (near.known.serial != serial && length < Name<1>::kRoom) {
    near.known = same.known;
    near.address = name;
    memcpy(near.text, name, length + 1);
  }
  return same.known;
}

// Each input begins with a number that holds its kind, for a tensor its dtype, and how many numbers
// follow; so inputs whose descriptions differ have lists that differ.
enum Kind : int64_t {
  kTensor = 1,
  kTensors,
  kScalar,
  kScalars,
  kOther,
  kInteger,
  kIntegers,
  kText,
  kGroup
};

struct Head {
  Kind kind;
  int64_t dtype = 0;
  int64_t count = 0;

  int64_t number() const {
    return kind | dtype << 8 | count << 16;
  }

  static Head of(int64_t number) {
    return {static_cast<Kind>(number & 0xff), number >> 8 & 0xff, number >> 16};
  }
};

constexpr int64_t kUndefined = 0xff;  // the dtype of a tensor that there is not

template <typename Sink, typename Numbers>
void add_numbers(Sink &sink, const Numbers &numbers) {
  for (auto number : numbers) sink.push(number);
}

template <typename Sink>
void add_tensor(Sink &sink, const at::Tensor &tensor, uint32_t wanted) {
  if (!tensor.defined()) {
    sink.push(Head{kTensor, kUndefined}.number());
    return;
  }
  const at::TensorImpl *impl = tensor.unsafeGetTensorImpl();
  bool plain = !impl->is_python_dispatch() || !impl->has_symbolic_sizes_strides();
  at::IntArrayRef sizes, strides;
  if (plain && !tensor.is_nested() && !tensor.is_sparse()) {
    sizes = tensor.sizes();
    if (wanted & kStrides) strides = tensor.strides();
  }
  int64_t dtype = static_cast<int64_t>(tensor.scalar_type());
  sink.push(Head{kTensor, dtype, static_cast<int64_t>(sizes.size())}.number());
  sink.push_sizes(sizes);
  if (wanted & kStrides) {
    sink.push(static_cast<int64_t>(strides.size()));
    sink.push_sizes(strides);
  }
}

template <typename Sink>
void add_text(Sink &sink, Kind kind, const std::string &text) {
  sink.push(Head{kind, 0, static_cast<int64_t>(text.size())}.number());
  add_numbers(sink, text);
}

// The group of processes that a collective is among; false if the value is none.
template <typename Sink>
bool add_group(Sink &sink, const c10::IValue &value) {
#ifdef USE_DISTRIBUTED
  if (!value.isObject()) return false;
  static const c10::TypePtr group_type =
      c10::getCustomClassType<c10::intrusive_ptr<c10d::ProcessGroup>>();
  if (value.type() != group_type) return false;
  add_text(sink, kGroup, value.toCustomClass<c10d::ProcessGroup>()->getGroupName());
  return true;
#else
  (void)sink, (void)value;
  return false;
#endif
}

// False if the value is none of those that FLOPs may need.
template <typename Sink>
bool add_concrete(Sink &sink, const c10::IValue &value) {
  if (value.isString()) {
    add_text(sink, kText, value.toStringRef());
  } else if (value.isInt() || value.isBool()) {
    sink.push(Head{kInteger}.number());
    sink.push(value.isBool() ? value.toBool() : value.toInt());
  } else if (value.isIntList()) {
    auto numbers = value.toIntVector();
    sink.push(Head{kIntegers, 0, static_cast<int64_t>(numbers.size())}.number());
    add_numbers(sink, numbers);
  } else if (value.isBoolList()) {
    auto numbers = value.toBoolList();
    sink.push(Head{kIntegers, 0, static_cast<int64_t>(numbers.size())}.number());
    add_numbers(sink, numbers);
  } else {
    return false;
  }
  return true;
}

// What is kept of an input that is no tensor, besides its type.
enum Detail { kNoDetail, kConcreteInputs, kGroupInput };

template <typename Sink>
void add_list(Sink &sink, const c10::IValue &value, uint32_t wanted) {
  if (!value.isTensorList()) {
    sink.push(Head{kScalars}.number());
    return;
  }
  c10::ArrayRef<c10::IValue> items = value.toListRef();
  sink.push(Head{kTensors, 0, static_cast<int64_t>(items.size())}.number());
  for (const c10::IValue &item : items) add_tensor(sink, item.toTensor(), wanted);
}

template <typename Sink>
void add_input(Sink &sink, const c10::IValue &value, uint32_t wanted, Detail detail) {
  if (value.isTensor()) {
    add_tensor(sink, value.toTensor(), wanted);
  } else if (detail == kConcreteInputs && add_concrete(sink, value)) {
    return;
  } else if (detail == kGroupInput && add_group(sink, value)) {
    return;
  } else if (value.isScalar()) {
    sink.push(Head{kScalar}.number());
  } else if (value.isList()) {
    add_list(sink, value, wanted);
  } else {
    sink.push(Head{kOther}.number());
  }
}

template <typename Sink>
Sink list_inputs(c10::ArrayRef<const c10::IValue> inputs, uint32_t wanted, Detail detail) {
  Sink sink;
  for (const c10::IValue &value : inputs) add_input(sink, value, wanted, detail);
  return sink;
}

void write_numbers(std::string &text, const int64_t *numbers, int64_t count) {
  text += '[';
  for (int64_t i = 0; i < count; i++) {
    if (i) text += ", ";
    text += std::to_string(numbers[i]);
  }
  text += ']';
}

// A list of inputs as JSON, in the words that torch's own profiler uses.
class Description {
 public:
  Description(const List &list, uint32_t wanted, const at::RecordFunction &function)
      : at_(list.begin()), wanted_(wanted), schema_(function.operator_schema()) {
    for (; at_ < list.end(); number_++) input();
    text_ = "{\"shapes\": [" + shapes_ + "], \"dtypes\": [" + dtypes_ + "]";
    if (wanted & kStrides) text_ += ", \"strides\": [" + strides_ + "]";
    if (!concrete_.empty()) text_ += ", \"concrete\": {" + concrete_ + "}";
    if (!group_.empty()) text_ += ", \"group\": \"" + group_ + "\", \"dtype\": \"" + dtype_ + '"';
    text_ += '}';
  }

  const std::string &json() const {
    return text_;
  }

 private:
  void input() {
    for (std::string *list : {&shapes_, &dtypes_, &strides_}) {
      if (!list->empty()) *list += ", ";
    }
    std::string shape, stride;
    const char *dtype = "";
    Head head = Head::of(*at_++);
    switch (head.kind) {
      case kTensor:
        dtype = tensor(head, shape, stride);
        break;
      case kTensors:
        tensors(head.count, shape, stride);
        dtype = "TensorList";
        break;
      case kInteger:
        name_concrete();
        concrete_ += std::to_string(*at_++);
        dtype = "Scalar";
        break;
      case kIntegers:
        name_concrete();
        numbers(concrete_, head.count);
        dtype = "ScalarList";
        break;
      case kText:
        name_concrete();
        concrete_ += '"' + text(head.count) + '"';
        break;
      case kGroup:
        group_ = text(head.count);
        break;
      case kScalar:
        dtype = "Scalar";
        break;
      case kScalars:
        dtype = "ScalarList";
        break;
      default:
        break;
    }
    shapes_ += shape.empty() ? "[]" : shape;
    strides_ += stride.empty() ? "[]" : stride;
    dtypes_ += '"';
    dtypes_ += dtype;
    dtypes_ += '"';
  }

  const char *tensor(Head head, std::string &shape, std::string &stride) {
    if (head.dtype == kUndefined) return "";
    numbers(shape, head.count);
    if (wanted_ & kStrides) numbers(stride, *at_++);
    c10::ScalarType dtype = static_cast<c10::ScalarType>(head.dtype);
    dtype_.assign(c10::scalarTypeToTypeMeta(dtype).name());
    return dtype_.c_str();
  }

  void numbers(std::string &text, int64_t count) {
    write_numbers(text, at_, count);
    at_ += count;
  }

  void tensors(int64_t count, std::string &shape, std::string &stride) {
    shape = stride = "[";
    for (int64_t i = 0; i < count; i++) {
      std::string one, one_stride;
      Head head = Head::of(*at_++);
      tensor(head, one, one_stride);
      shape += (i ? ", " : "") + (one.empty() ? "[]" : one);
      stride += (i ? ", " : "") + (one_stride.empty() ? "[]" : one_stride);
    }
    shape += ']';
    stride += ']';
  }

  void name_concrete() {
    if (!concrete_.empty()) concrete_ += ", ";
    bool named = schema_ && number_ < schema_->arguments().size();
    concrete_ += '"';
    concrete_ += named ? schema_->arguments()[number_].name() : std::to_string(number_);
    concrete_ += "\": ";
  }

  // One of torch's own words, or the name of a group.
  std::string text(int64_t length) {
    std::string text;
    for (; length > 0; length--) {
      char letter = static_cast<char>(*at_++);
      bool plain = letter >= ' ' && letter <= '~' && letter != '"' && letter != '\\';
      text += plain ? letter : '?';
    }
    return text;
  }

  const int64_t *at_;
  uint32_t wanted_;
  std::optional<c10::FunctionSchema> schema_;
  size_t number_ = 0;
  std::string dtype_, shapes_, dtypes_, strides_, concrete_, group_, text_;
};

Digest digest_inputs(Thread &thread, const at::RecordFunction &function, uint32_t wanted,
                     Detail detail, uint32_t name) {
  Digest digest = list_inputs<Digest>(function.inputs(), wanted, detail);
  // What inputs are called depends on the operator, where it matters; and on what is wanted.
  digest.push(static_cast<int64_t>(wanted) << 32 | (detail == kConcreteInputs ? name : 0));
  if (thread.inputs.empty()) thread.inputs.resize(size_t{1} << Thread::kInputsBits);
  __builtin_prefetch(&thread.inputs[digest.place(Thread::kInputsBits)]);
  return digest;
}

// `digest` is that of the inputs without details.
uint32_t find_inputs(Thread &thread, const at::RecordFunction &function, Known name,
                     uint32_t wanted, Digest digest) {
  c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  if (inputs.empty()) return 0;
  Detail detail = kNoDetail;
  if (name.category == STROBE_COMMUNICATION) detail = kGroupInput;
  if ((wanted & kConcrete) && name.concrete) detail = kConcreteInputs;
  if (detail != kNoDetail) digest = digest_inputs(thread, function, wanted, detail, name.id);
  Inputs &known = thread.inputs[digest.place(Thread::kInputsBits)];
  if (known.serial == name.serial && known.digest == digest) return known.id;
  Description description(list_inputs<List>(inputs, wanted, detail), wanted, function);
  known.id = recorder->text(description.json().data(), description.json().size());
  known.serial = known.id ? name.serial : 0;
  known.digest = digest;
  return known.id;
}

// Memory is reported to what a thread has pushed as its profiler's state. While it is there torch's
// own profiler cannot be started in that thread, so only the one that started us, which takes it
// away again, has it all the time: another has it while an operator runs.
struct Memory : torch::profiler::impl::ProfilerStateBase {
  Memory()
      : ProfilerStateBase(
            torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)) {
  }

  void reportMemoryUsage(void *pointer, int64_t bytes, size_t, size_t,
                         c10::Device device) override {
    int index = device.has_index() ? device.index() : 0;
    recorder->memory(bytes, reinterpret_cast<uint64_t>(pointer), device.is_cpu() ? -1 : index,
                     STROBE_TORCH);
  }

  bool memoryProfilingEnabled() const override {
    return options.load(std::memory_order_relaxed) & kMemory;
  }

  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }
};

std::shared_ptr<Memory> memory;

// The thread whose memory is watched all the time, so that its operators need not look unless it has
// made room.
std::atomic<const Thread *> starter;
std::atomic<bool> made_room;

// Says whether it was not watched before.
bool watch_memory() {
  using c10::ThreadLocalDebugInfo;
  if (ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) != nullptr) return false;
  ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, memory);
  return true;
}

// Says whether it was watched.
bool leave_memory() {
  using c10::ThreadLocalDebugInfo;
  if (ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) != memory.get()) return false;
  try {
    ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
  } catch (...) {  // something else lies on top of it
    return false;
  }
  return true;
}

// Sees to it that memory is watched while an operator runs; returns the thread if only so long.
const Thread *look_after_memory(const Thread &thread) {
  bool always = starter.load(std::memory_order_relaxed) == &thread;
  if (always && !made_room.load(std::memory_order_relaxed)) return nullptr;
  if (!watch_memory()) return nullptr;
  if (always) made_room.store(false);
  return always ? nullptr : &thread;
}

struct Operator : at::ObserverContext {
  StrobeSpan span;
  const Thread *watcher = nullptr;  // whose memory is watched for this operator only
  uint64_t entering_ns = 0;         // 0: it is not timed

  // One is made and freed for each operator, so their memory stays with the thread.
  static void *operator new(size_t size) {
    Thread *thread = this_thread;
    if (thread == nullptr || thread->spare == nullptr) return ::operator new(size);
    void *memory = thread->spare;
    memcpy(&thread->spare, memory, sizeof thread->spare);
    thread->spares--;
    return memory;
  }

  static void operator delete(void *memory) {
    Thread *thread = this_thread;
    if (thread == nullptr || thread->spares == Thread::kSpares) {
      ::operator delete(memory);
      return;
    }
    memcpy(memory, &thread->spare, sizeof thread->spare);
    thread->spare = memory;
    thread->spares++;
  }
};

// A time if the operator that begins is to be timed, else 0.
uint64_t time_to_begin() {
  Thread *thread = this_thread;
  if (__builtin_expect(thread == nullptr || --thread->until_timed > 0, 1)) return 0;
  thread->until_timed = kBetweenTimed;
  return recorder->clock_ns();
}

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction &function) {
  uint64_t began_ns = time_to_begin();
  StrobePlace place = recorder->place();
  if (place.ring == nullptr) return nullptr;
  try {
    uint32_t wanted = options.load(std::memory_order_relaxed);
    Thread &thread = current_thread();
    // What will be looked at is fetched while there is other work.
    __builtin_prefetch(&place_of_address(thread, function.name()));
    bool described = wanted & (kShapes | kConcrete);
    Digest digest;
    if (described) digest = digest_inputs(thread, function, wanted, kNoDetail, 0);
    Known name = find_name(thread, function.name(), function.scope(), place.serial);
    if (name.id == 0) return nullptr;
    auto made = std::make_unique<Operator>();
    if (wanted & kMemory) made->watcher = look_after_memory(thread);
    StrobeSpan &span = made->span;
    span.name = name.id;
    span.category = name.category | STROBE_TORCH;
    described |= wanted & kCommunication && name.category == STROBE_COMMUNICATION;
    span.attributes = described ? find_inputs(thread, function, name, wanted, digest) : 0;
    recorder->begin(place, &span);
    if (__builtin_expect(began_ns != 0, 0)) made->entering_ns = recorder->clock_ns() - began_ns;
    return made;
  } catch (...) {
    return nullptr;  // an operator that cannot be described must run all the same
  }
}

void leave(const at::RecordFunction &function, at::ObserverContext *context) {
  if (context == nullptr) return;
  uint64_t entering_ns = static_cast<Operator *>(context)->entering_ns;
  uint64_t began_ns = entering_ns ? recorder->clock_ns() : 0;
  const Thread *watcher = static_cast<Operator *>(context)->watcher;
  if (watcher != nullptr && watcher == this_thread) leave_memory();
  uint64_t thread = function.forwardThreadId();
  if (thread == 0) thread = function.threadId();
  recorder->end(&static_cast<Operator *>(context)->span, function.seqNr(),
                static_cast<uint32_t>(thread));
  if (__builtin_expect(entering_ns != 0, 0)) {
    uint64_t spent_ns = entering_ns + recorder->clock_ns() - began_ns;
    if (spent_ns > kMostTimedNs) return;
    timed_ns.fetch_add(spent_ns, std::memory_order_relaxed);
    timed_count.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// 0, or what is wrong. Called once.
EXPORT const char *strobe_torch_prepare(const StrobeSource *source) {
  if (source->version != STROBE_SOURCE_VERSION) return "built for another version of strobe";
  if (pthread_key_create(&thread_end, [](void *thread) {
        this_thread = nullptr;
        delete static_cast<Thread *>(thread);
      })) {
    return "no thread key is left";
  }
  recorder = source;
  memory = std::make_shared<Memory>();
  return nullptr;
}

constexpr uint32_t kInputs = kShapes | kConcrete | kCommunication;

// Says whether memory can be watched in this thread: not while torch's own profiler has it.
EXPORT int strobe_torch_start(uint32_t wanted) {
  using c10::ThreadLocalDebugInfo;
  bool taken = false;
  if (wanted & kMemory) {
    c10::DebugInfoBase *state = ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
    taken = state != nullptr && state != memory.get();
    if (taken) wanted &= ~kMemory;
  }
  options.store(wanted);
  if (wanted & kMemory) {
    starter.store(&current_thread());
    made_room.store(false);
    watch_memory();
  }
  // Each scope costs torch time whenever autograd changes a thread's state. So not those of its mobile
  // and static interpreters, which Kineto sees, nor what only builds for tracing kernels announce.
  using at::RecordScope;
  is_alone = !at::hasCallbacks();
  handle = at::addGlobalCallback(at::RecordFunctionCallback(enter, leave)
                                     .needsInputs((wanted & kInputs) != 0)
                                     .scopes({RecordScope::FUNCTION, RecordScope::BACKWARD_FUNCTION,
                                              RecordScope::TORCHSCRIPT_FUNCTION,
                                              RecordScope::CUSTOM_CLASS, RecordScope::USER_SCOPE}));
  return !taken;
}

EXPORT void strobe_torch_stop() {
  at::removeCallback(handle);
  options.store(0);
  leave_memory();
}

namespace {

constexpr int kTrials = 16, kTrialOperators = 64;

// The least mean of some batches, in nanoseconds.
template <typename Run>
double time_trials(const Run &run) {
  double least_ns = 1e9;
  for (int trial = 0; trial < kTrials; trial++) {
    uint64_t began_ns = recorder->clock_ns();
    for (int i = 0; i < kTrialOperators; i++) run(i);
    double spent_ns = static_cast<double>(recorder->clock_ns() - began_ns) / kTrialOperators;
    least_ns = std::min(least_ns, spent_ns);
  }
  return least_ns;
}

// Read between two operators, so that little of what recording needs is left in the caches, as in a
// program whose operators have data of their own.
constexpr size_t kOtherDataBytes = 1 << 20;

// The median of what `measure` returns, each time after other data have been read.
template <typename Measure>
double measure_cold(const Measure &measure) {
  std::vector<uint8_t> other(kOtherDataBytes, 1);
  std::vector<double> found;
  for (int i = 0; i < kTrialOperators; i++) {
    volatile uint64_t sum = 0;
    for (size_t at = 0; at < other.size(); at += kLine) sum = sum + other[at];
    found.push_back(measure(i));
  }
  std::nth_element(found.begin(), found.begin() + kTrialOperators / 2, found.end());
  return found[kTrialOperators / 2];
}

struct Costs {
  double operator_ns, memory_ns, cold_operator_ns, cold_callback_ns;
};

Costs run_trials() {
  Costs costs;
  // An operator that does next to nothing, where neither autograd nor modes of Python's see it.
  c10::impl::ExcludeDispatchKeyGuard directly(c10::DispatchKeySet(c10::DispatchKeySet::FULL) -
                                              c10::DispatchKeySet(c10::DispatchKey::CPU));
  at::Tensor tensor = at::detail::empty_cpu({32, 64}, at::kFloat);
  auto run = [&](int) { at::_ops::is_same_size::call(tensor, tensor); };
  clock_cost_ns = time_trials([](int) { recorder->clock_ns(); });
  auto time_one = [&](int i) {
    uint64_t began_ns = recorder->clock_ns();
    run(i);
    return static_cast<double>(recorder->clock_ns() - began_ns);
  };
  costs.operator_ns = time_trials(run);
  costs.cold_operator_ns = measure_cold(time_one);
  {
    at::RecordFunctionGuard unseen(false);
    costs.operator_ns -= time_trials(run);
    costs.cold_operator_ns -= measure_cold(time_one);
  }
  costs.cold_callback_ns = measure_cold([&](int i) {
    timed_ns = timed_count = 0;
    current_thread().until_timed = 1;
    run(i);
    return mean_timed_ns();
  });
  timed_ns = timed_count = 0;
  costs.memory_ns =
      time_trials([&](int i) {
        for (int64_t bytes : {64, -64}) {
          c10::reportMemoryUsageToProfiler(&tensor + i, bytes, 0, 0, c10::Device(c10::kCPU));
        }
      }) /
      2;
  return costs;
}

}  // namespace

// After strobe_torch_start: what an operator and what a change of memory cost in nanoseconds here and
// now; what an operator costs where the caches are cold, and how much of that is the callback's part.
// False if that cannot be measured: other callbacks, torch's own profiler's say, would see the trials.
EXPORT int strobe_torch_calibrate(double *found) {
  if (!is_alone || !recorder->begin_trial((kTrials + 3) * kTrialOperators * 4)) return false;
  bool done = true;
  try {
    Costs costs = run_trials();
    memcpy(found, &costs, sizeof costs);
  } catch (...) {
    done = false;
  }
  recorder->end_trial();
  return done;
}

// What the callback's part has cost since then, in the program, whose data fill the caches: the mean
// of the operators that were timed. Negative if these are too few.
EXPORT double strobe_torch_timed() {
  return timed_count.load() < kLeastTimed ? -1.0 : mean_timed_ns();
}

// Makes room in this thread for torch's own profiler; says whether there was something of ours.
EXPORT int strobe_torch_make_room() {
  bool left = leave_memory();
  if (left && starter.load() == this_thread) made_room.store(true);
  return left;
}
