// SPDX-License-Identifier: Apache-2.0
// PyTorch's operators, straight into the recorder's rings: a RecordFunction callback. Compiled against
// the installed torch on first use (build.py), with -DNDEBUG as torch itself is: RecordFunction has
// a member more without it.
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#ifdef USE_DISTRIBUTED
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/custom_class.h>
#endif

#include <pthread.h>

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

// Names and inputs that a thread has seen, so that most operators need no lock and no text.
struct Name {
  const char *address;
  std::string text;  // an address may come again with another name
  uint32_t serial;
  uint32_t id;
  uint32_t category;
};

// A list of numbers that is filled anew for each operator.
class Key {
 public:
  void clear() {
    size_ = 0;
  }

  // Makes room for some numbers, to be written there and then counted by advance().
  int64_t *room(size_t count) {
    if (size_ + count > numbers_.size()) numbers_.resize(2 * (size_ + count));
    return numbers_.data() + size_;
  }

  void advance(size_t count) {
    size_ += count;
  }

  void push(int64_t number) {
    *room(1) = number;
    size_++;
  }

  template <typename List>
  void push_list(const List &list) {
    size_t count = list.size();
    int64_t *out = room(1 + count);
    *out++ = static_cast<int64_t>(count);
    for (auto number : list) *out++ = number;
    size_ += 1 + count;
  }

  int64_t &operator[](size_t place) {
    return numbers_[place];
  }

  size_t size() const {
    return size_;
  }

  const int64_t *begin() const {
    return numbers_.data();
  }

  const int64_t *end() const {
    return numbers_.data() + size_;
  }

  // In two strands, because each multiplication waits for the one before.
  uint64_t hash() const {
    constexpr uint64_t kFactor = 0x9e3779b97f4a7c15u;
    uint64_t even = size_, odd = 0;
    const int64_t *number = begin();
    for (size_t i = 0; i + 1 < size_; i += 2) {
      even = (even ^ static_cast<uint64_t>(number[i])) * kFactor;
      odd = (odd ^ static_cast<uint64_t>(number[i + 1])) * kFactor;
    }
    if (size_ % 2) even = (even ^ static_cast<uint64_t>(number[size_ - 1])) * kFactor;
    return (even ^ odd >> 32) * kFactor;
  }

 private:
  std::vector<int64_t> numbers_{std::vector<int64_t>(256)};
  size_t size_ = 0;
};

struct Inputs {
  std::vector<int64_t> key;
  uint32_t serial;
  uint32_t id;
};

struct Thread {
  static constexpr size_t kNames = 1024, kInputs = 4096, kSpares = 256;
  void *spare = nullptr;  // memory for operators, each block beginning with the next one's address
  size_t spares = 0;
  std::vector<Name> names{kNames};  // by address
  std::vector<Name> texts{kNames};  // by text
  std::vector<Inputs> inputs;
  Key key;

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

// Autograd makes some names up anew each time, so that their addresses say nothing.
Name &place_of_text(Thread &thread, const char *name, size_t length) {
  uint64_t hash = length;
  for (size_t i = 0; i + 8 <= length; i += 8) {
    uint64_t word;
    memcpy(&word, name + i, sizeof word);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  }
  uint64_t rest = 0;
  memcpy(&rest, name + length / 8 * 8, length % 8);
  return thread.texts[((hash ^ rest) * 0x9e3779b97f4a7c15u) >> 54];
}

const Name &find_name(Thread &thread, const char *name, at::RecordScope scope, uint32_t serial) {
  size_t place = (reinterpret_cast<uintptr_t>(name) >> 3) * 0x9e3779b97f4a7c15u >> 54;
  Name &known = thread.names[place];
  if (known.address == name && known.serial == serial && strcmp(known.text.c_str(), name) == 0) {
    return known;
  }
  size_t length = strlen(name);
  Name &same = place_of_text(thread, name, length);
  if (same.serial != serial || same.text.size() != length ||
      memcmp(same.text.data(), name, length) != 0) {
    same.address = name;
    same.text.assign(name, length);
    same.id = recorder->text(name, length);
    same.serial = same.id ? serial : 0;
    same.category = categorize(name, scope);
  }
  if (known.serial != serial) known = same;
  return same;
}

// A key that tells all inputs apart whose description differs: for each its kind, then its numbers.
enum Kind : int64_t { kTensor = 1, kTensors, kScalar, kScalars, kOther, kIntegers, kText, kGroup };

void add_tensor(Key &key, const at::Tensor &tensor, uint32_t wanted) {
  if (!tensor.defined()) {
    key.push(-1);
    return;
  }
  const at::TensorImpl *impl = tensor.unsafeGetTensorImpl();
  bool plain = !impl->is_python_dispatch() || !impl->has_symbolic_sizes_strides();
  at::IntArrayRef sizes, strides;
  if (plain && !tensor.is_nested() && !tensor.is_sparse()) {
    sizes = tensor.sizes();
    if (wanted & kStrides) strides = tensor.strides();
  }
  int64_t *out = key.room(3 + sizes.size() + strides.size());
  const int64_t *from = out;
  *out++ = static_cast<int64_t>(tensor.scalar_type());
  *out++ = static_cast<int64_t>(sizes.size());
  for (int64_t size : sizes) *out++ = size;
  if (wanted & kStrides) {
    *out++ = static_cast<int64_t>(strides.size());
    for (int64_t stride : strides) *out++ = stride;
  }
  key.advance(static_cast<size_t>(out - from));
}

bool is_concrete(const c10::IValue &value) {
  return value.isInt() || value.isBool() || value.isIntList() || value.isBoolList() ||
         value.isString();
}

void add_text(Key &key, Kind kind, const std::string &text) {
  key.push(kind);
  key.push_list(text);
}

// The group of processes that a collective is among; false if the value is none.
bool add_group(Key &key, const c10::IValue &value) {
#ifdef USE_DISTRIBUTED
  if (!value.isObject()) return false;
  static const c10::TypePtr group_type =
      c10::getCustomClassType<c10::intrusive_ptr<c10d::ProcessGroup>>();
  if (value.type() != group_type) return false;
  add_text(key, kGroup, value.toCustomClass<c10d::ProcessGroup>()->getGroupName());
  return true;
#else
  (void)key, (void)value;
  return false;
#endif
}

void add_concrete(Key &key, const c10::IValue &value) {
  if (value.isString()) {
    add_text(key, kText, value.toStringRef());
    return;
  }
  key.push(kIntegers);
  if (value.isIntList()) {
    key.push_list(value.toIntVector());
  } else if (value.isBoolList()) {
    key.push_list(value.toBoolList());
  } else {
    key.push(-1);
    key.push(value.isBool() ? value.toBool() : value.toInt());
  }
}

// What is kept of an input that is no tensor, besides its type.
enum Detail { kNoDetail, kConcreteInputs, kGroupInput };

void add_input(Key &key, const c10::IValue &value, uint32_t wanted, Detail detail) {
  if (value.isTensor()) {
    key.push(kTensor);
    add_tensor(key, value.toTensor(), wanted);
  } else if (value.isTensorList()) {
    key.push(kTensors);
    size_t count = key.size();
    key.push(0);
    for (const c10::IValue &item : value.toListRef()) {
      add_tensor(key, item.toTensor(), wanted);
      key[count]++;
    }
  } else if (detail == kConcreteInputs && is_concrete(value)) {
    add_concrete(key, value);
  } else if (detail == kGroupInput && add_group(key, value)) {
    return;
  } else if (value.isScalar()) {
    key.push(kScalar);
  } else if (value.isList()) {
    key.push(kScalars);
  } else {
    key.push(kOther);
  }
}

void write_numbers(std::string &text, const int64_t *numbers, int64_t count) {
  text += '[';
  for (int64_t i = 0; i < count; i++) {
    if (i) text += ", ";
    text += std::to_string(numbers[i]);
  }
  text += ']';
}

// The key as JSON, in the words that torch's own profiler uses.
class Description {
 public:
  Description(const Key &key, uint32_t wanted, const at::RecordFunction &function)
      : at_(key.begin() + 1), wanted_(wanted), schema_(function.operator_schema()) {
    for (; at_ < key.end(); number_++) input();
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
    switch (*at_++) {
      case kTensor:
        dtype = tensor(shape, stride);
        break;
      case kTensors:
        tensors(shape, stride);
        dtype = "TensorList";
        break;
      case kIntegers:
        dtype = integers();
        break;
      case kText:
        name_concrete();
        concrete_ += '"' + text() + '"';
        break;
      case kGroup:
        group_ = text();
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

  const char *tensor(std::string &shape, std::string &stride) {
    int64_t dtype = *at_++;
    if (dtype < 0) return "";
    numbers(shape);
    if (wanted_ & kStrides) numbers(stride);
    std::string_view name = c10::scalarTypeToTypeMeta(static_cast<c10::ScalarType>(dtype)).name();
    dtype_.assign(name);
    return dtype_.c_str();
  }

  void numbers(std::string &text) {
    int64_t count = *at_++;
    write_numbers(text, at_, count);
    at_ += count;
  }

  void tensors(std::string &shape, std::string &stride) {
    int64_t count = *at_++;
    shape = stride = "[";
    for (int64_t i = 0; i < count; i++) {
      std::string one, one_stride;
      tensor(one, one_stride);
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

  const char *integers() {
    name_concrete();
    if (*at_ >= 0) {
      numbers(concrete_);
      return "ScalarList";
    }
    concrete_ += std::to_string(at_[1]);
    at_ += 2;
    return "Scalar";
  }

  // One of torch's own words, or the name of a group.
  std::string text() {
    std::string text;
    for (int64_t length = *at_++; length > 0; length--) {
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

bool needs_concrete(const std::string &name) {
  return name.compare(0, 10, "aten::conv") == 0 || name.compare(0, 12, "aten::_convo") == 0 ||
         name.compare(0, 14, "aten::mkldnn_c") == 0 || name.compare(0, 10, "aten::slow") == 0 ||
         name.compare(0, 11, "aten::thnn_") == 0;
}

uint32_t find_inputs(Thread &thread, const at::RecordFunction &function, const Name &name,
                     uint32_t wanted) {
  c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  if (inputs.empty()) return 0;
  Key &key = thread.key;
  key.clear();
  Detail detail = kNoDetail;
  if (name.category == STROBE_COMMUNICATION) detail = kGroupInput;
  if ((wanted & kConcrete) && needs_concrete(name.text)) detail = kConcreteInputs;
  // What inputs are called depends on the operator, where it matters; and on what is wanted.
  key.push(static_cast<int64_t>(wanted) << 32 | (detail == kConcreteInputs ? name.id : 0));
  for (const c10::IValue &value : inputs) add_input(key, value, wanted, detail);
  if (thread.inputs.empty()) thread.inputs.resize(Thread::kInputs);
  Inputs &known = thread.inputs[key.hash() >> 52];
  if (known.serial == name.serial && known.key.size() == key.size() &&
      memcmp(known.key.data(), key.begin(), key.size() * sizeof(int64_t)) == 0) {
    return known.id;
  }
  Description description(key, wanted, function);
  known.id = recorder->text(description.json().data(), description.json().size());
  known.serial = known.id ? name.serial : 0;
  known.key.assign(key.begin(), key.end());
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
    recorder->memory(bytes, reinterpret_cast<uint64_t>(pointer),
                     device.is_cpu()      ? -1
                     : device.has_index() ? device.index()
                                          : 0);
  }

  bool memoryProfilingEnabled() const override {
    return options.load(std::memory_order_relaxed) & kMemory;
  }

  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }
};

std::shared_ptr<Memory> memory;

std::atomic<const Thread *> starter;

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

struct Operator : at::ObserverContext {
  StrobeSpan span;
  const Thread *watcher = nullptr;  // whose memory is watched for this operator only

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

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction &function) {
  StrobePlace place = recorder->place();
  if (place.ring == nullptr) return nullptr;
  try {
    uint32_t wanted = options.load(std::memory_order_relaxed);
    Thread &thread = current_thread();
    const Name &name = find_name(thread, function.name(), function.scope(), place.serial);
    if (name.id == 0) return nullptr;
    auto made = std::make_unique<Operator>();
    if (wanted & kMemory && watch_memory() && starter.load() != &thread) made->watcher = &thread;
    StrobeSpan &span = made->span;
    span.name = name.id;
    span.category = name.category;
    bool described = wanted & (kShapes | kConcrete) ||
                     (wanted & kCommunication && name.category == STROBE_COMMUNICATION);
    span.attributes = described ? find_inputs(thread, function, name, wanted) : 0;
    recorder->begin(place, &span);
    return made;
  } catch (...) {
    return nullptr;  // an operator that cannot be described must run all the same
  }
}

void leave(const at::RecordFunction &function, at::ObserverContext *context) {
  if (context == nullptr) return;
  const Thread *watcher = static_cast<Operator *>(context)->watcher;
  if (watcher != nullptr && watcher == this_thread) leave_memory();
  uint64_t thread = function.forwardThreadId();
  if (thread == 0) thread = function.threadId();
  recorder->end(&static_cast<Operator *>(context)->span, function.seqNr(),
                static_cast<uint32_t>(thread));
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
    watch_memory();
  }
  handle = at::addGlobalCallback(
      at::RecordFunctionCallback(enter, leave).needsInputs((wanted & kInputs) != 0));
  return !taken;
}

EXPORT void strobe_torch_stop() {
  at::removeCallback(handle);
  options.store(0);
  leave_memory();
}

// Makes room in this thread for torch's own profiler; says whether there was something of ours.
EXPORT int strobe_torch_make_room() {
  return leave_memory();
}
