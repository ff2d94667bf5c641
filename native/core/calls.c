// SPDX-License-Identifier: Apache-2.0
// Python calls as spans. Each thread has a stack of the calls that have begun; a call's record is
// written when it ends. Up to Python 3.11 a profile function of each thread tells of calls, from
// 3.12 on the callbacks of sys.monitoring.
#include "callees.h"

#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030c0000
// Python 3.11 hides a frame's code: asking for it costs a reference each time.
#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

#include <stdlib.h>

#include "clock.h"

enum {
  kFirstCalls = 64,
  // After as many records the calls that are open are written too: a killed program loses few.
  kRecordsBetween = 1024,
};
#define NO_LANE UINT32_MAX

typedef struct {
  uint64_t start_ns;
  const void *object;  // a code object, or the method table's entry of a C function
  uint32_t name;       // 0: not recorded
  uint32_t attributes;
  uint32_t lane;  // NO_LANE: of another thread's that ran before, found when it ends
  bool is_builtin;
  bool is_muting;  // what it calls is not recorded
} Call;

// Changed by its own thread alone, or by another that holds the GIL while this one is not in a hook.
typedef struct Stack {
  Call *calls;
  uint32_t depth, capacity;
  uint32_t kept;    // so many of the outermost are in the log as open
  uint32_t serial;  // of the log that the numbers belong to
  uint32_t countdown;
  _Atomic uint64_t thread;  // Python's number of the thread; 0: ended, the next new one takes it
  unsigned long ident;      // the one that `threading` knows
  struct Stack *next;
#if PY_VERSION_HEX < 0x030c0000
  Py_tracefunc before;  // whose profile function was there before us: it is called too
  uint64_t leaving_ns;  // the program is setting a profile function of its own since then
#endif
} Stack;

static _Thread_local Stack *thread_stack FAST_TLS;

static struct {
  Stack *stacks;  // never freed: a thread's pointer to its own stays good
  pthread_key_t thread_end;
  bool has_key;
  bool on;
  bool is_child;  // forked while recording: the parent's profiler ends it, and does not tell
  uint64_t min_ns;
  uint32_t max_depth;
  uint8_t category;    // of our records
  uint64_t unmatched;  // ends without a beginning
  uint64_t replaced;   // threads that took another profile function
  int tool;
  QuickClock clock;  // for whichever thread has the GIL
} calls;

static void end_thread(void *stack) {
  ((Stack *)stack)->thread = 0;
}

static Stack *find_stack(uint64_t thread) {
  Stack *unused = NULL;
  for (Stack *stack = calls.stacks; stack; stack = stack->next) {
    if (stack->thread == thread) return stack;
    if (stack->thread == 0) unused = stack;
  }
  if (unused == NULL) {
    unused = calloc(1, sizeof *unused);
    if (unused == NULL) return NULL;
    unused->next = calls.stacks;
    calls.stacks = unused;
  }
  unused->thread = thread;
  unused->depth = unused->kept = 0;
  return unused;
}

static Stack *stack_of(PyThreadState *thread) {
  Stack *stack = find_stack(PyThreadState_GetID(thread));
  if (stack) stack->ident = thread->thread_id;
  return stack;
}

static Stack *adopt_stack(void) {
  thread_stack = stack_of(PyThreadState_GET());
  if (thread_stack) pthread_setspecific(calls.thread_end, thread_stack);
  return thread_stack;
}

static inline Stack *own_stack(void) {
  return __builtin_expect(thread_stack != NULL, 1) ? thread_stack : adopt_stack();
}

static bool reserve(Stack *stack, size_t depth) {
  if (depth <= stack->capacity) return true;
  size_t capacity = stack->capacity ? stack->capacity : kFirstCalls;
  while (capacity < depth) capacity *= 2;
  Call *grown = realloc(stack->calls, capacity * sizeof *grown);
  if (grown == NULL) return false;
  stack->calls = grown;
  stack->capacity = (uint32_t)capacity;
  return true;
}

static Record record_of(const Call *call, Kind kind) {
  return (Record){.start_ns = call->start_ns,
                  .name = call->name,
                  .attributes = call->attributes,
                  .lane = call->lane,
                  .kind = (uint8_t)kind,
                  .category = calls.category};
}

// Writes the calls that have not ended, those that are not in the log yet.
static void keep_open(Stack *stack, Ring *ring) {
  for (; stack->kept < stack->depth; stack->kept++) {
    Call *call = &stack->calls[stack->kept];
    if (call->name == 0) continue;
    if (call->lane == NO_LANE) call->lane = ring->lane;
    Record record = record_of(call, kKindOpen);
    ring_put(ring, &record);
  }
}

// The log is another one, or this is a forked child: what began before is recorded there.
static void start_over(Stack *stack, Ring *ring) {
  for (uint32_t i = 0; i < stack->depth; i++) stack->calls[i].name = 0;
  stack->kept = 0;
  stack->serial = ring->serial;
  stack->countdown = kRecordsBetween;
}

static Ring *get_ready(Stack *stack, Ring *ring) {
  uint32_t serial = ring->serial;
  lane_id(ring);
  if (!recorder_owns(ring, serial)) return NULL;
  if (callees.serial != serial) callees_start_over(serial);
  if (stack->serial != serial) start_over(stack, ring);
  return ring;
}

// The thread's ring, if its lane and the numbers are those of the log.
static inline Ring *ready(Stack *stack) {
  Ring *ring = recorder_ring();
  bool known = ring && ring->serial == stack->serial && ring->serial == callees.serial &&
               lane_is_known(ring);
  return __builtin_expect(known, 1) ? ring : NULL;
}

static inline void push(Stack *stack, Ring *ring, Callee callee, bool is_builtin) {
  if (__builtin_expect(stack->depth == stack->capacity, 0) && !reserve(stack, stack->depth + 1)) {
    calls.unmatched++;
    return;
  }
  Call *call = &stack->calls[stack->depth];
  bool muted = stack->depth && call[-1].is_muting;
  bool wanted = ring && !muted && stack->depth < calls.max_depth;
  stack->depth++;
  call->object = callee.key;
  call->name = wanted ? callee.name : 0;
  call->is_muting = muted || (callee.name == 0 && callee.attributes == kMuting);
  call->attributes = callee.attributes;
  call->lane = ring ? ring->lane : 0;
  call->is_builtin = is_builtin;
  call->start_ns = clock_quick_ns(&calls.clock);
}

static void end_hooks(Ring *ring);

// What was not known of a function or its place; may run Python code.
static bool enter_slowly(Stack *stack, PyObject *object, const void *key, PyFrameObject *frame) {
  bool is_builtin = builtin_method(object) != NULL;
  Callee callee = {.key = key};
  Ring *ring = recorder_ring();
  if (ring == NULL && calls.is_child) {
    end_hooks(NULL);
    calls.on = false;
    return PyErr_Occurred() == NULL;
  }
  if (ring) ring = get_ready(stack, ring);
  if (ring) {
    const Callee *known = callee_find(key);
    callee = known        ? *known
             : is_builtin ? callee_of_builtin(ring, object)
                          : callee_of_code(ring, (PyCodeObject *)object, frame);
    if (!recorder_owns(ring, stack->serial)) ring = NULL;
  }
  push(stack, ring, callee, is_builtin);
  return PyErr_Occurred() == NULL;
}

// Both are false with an exception that is the program's, of a signal handler that ran meanwhile.
static inline bool enter_code(Stack *stack, PyCodeObject *code, PyFrameObject *frame) {
  Ring *ring = ready(stack);
  const Callee *known = callee_find(code);
  if (__builtin_expect(ring == NULL || known == NULL, 0)) {
    return enter_slowly(stack, (PyObject *)code, code, frame);
  }
  push(stack, ring, *known, false);
  return true;
}

static inline bool enter_builtin(Stack *stack, PyObject *function, const PyMethodDef *method) {
  // What a function that is not recorded calls is not recorded either.
  if (stack->depth == 0 || stack->calls[stack->depth - 1].name == 0) {
    push(stack, NULL, (Callee){.key = method}, true);
    return true;
  }
  Ring *ring = ready(stack);
  const Callee *known = callee_find(method);
  if (__builtin_expect(ring == NULL || known == NULL, 0)) {
    return enter_slowly(stack, function, method, NULL);
  }
  push(stack, ring, *known, true);
  return true;
}

// Ends the latest call.
__attribute__((always_inline)) static inline void pop(Stack *stack, uint64_t now_ns) {
  Call *call = &stack->calls[--stack->depth];
  bool must = stack->kept > stack->depth;
  if (must) stack->kept = stack->depth;
  Ring *ring = recorder_ring();
  if (call->name == 0 || ring == NULL || ring->serial != stack->serial) return;
  Record record = record_of(call, kKindSpan);
  record.dur_ns = now_ns - call->start_ns;
  if (record.dur_ns < calls.min_ns && !must) return;
  if (__builtin_expect(record.lane == NO_LANE, 0)) record.lane = ring->lane;
  ring_put(ring, &record);
  if (__builtin_expect(--stack->countdown == 0, 0)) {
    stack->countdown = kRecordsBetween;
    keep_open(stack, ring);
  }
}

// A frame ends whose call is not the latest: those above it have ended unseen.
static void leave_other(Stack *stack, const void *object, uint64_t now_ns) {
  uint32_t depth = stack->depth;
  while (depth > 0 && stack->calls[depth - 1].object != object) depth--;
  calls.unmatched++;
  if (depth == 0) return;
  while (stack->depth >= depth) pop(stack, now_ns);
}

static inline void leave_code(Stack *stack, const void *code) {
  uint64_t now_ns = clock_quick_ns(&calls.clock);
  if (__builtin_expect(stack->depth && stack->calls[stack->depth - 1].object == code, 1)) {
    pop(stack, now_ns);
  } else {
    leave_other(stack, code, now_ns);
  }
}

// A C function that ran before the recording did has no call here.
static inline void leave_builtin(Stack *stack) {
  if (stack->depth && stack->calls[stack->depth - 1].is_builtin)
    pop(stack, clock_quick_ns(&calls.clock));
}

// Puts the frames that run now on the stack, the outermost first: they begin with the recording.
static void seed(Stack *stack, PyThreadState *thread, Ring *ring) {
  size_t depth = 0;
  stack->depth = stack->kept = 0;
  start_over(stack, ring);
  for (PyFrameObject *frame = PyThreadState_GetFrame(thread), *back; frame; frame = back) {
    depth++;
    back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
  }
  if (!reserve(stack, depth)) return;
  uint64_t now_ns = clock_quick_ns(&calls.clock);
  bool is_ours = thread == PyThreadState_GET() && lane_is_known(ring);
  size_t place = depth;
  for (PyFrameObject *frame = PyThreadState_GetFrame(thread), *back; frame; frame = back) {
    Callee callee = callee_of_running(ring, frame);
    bool wanted = --place < calls.max_depth;
    stack->calls[place] = (Call){.start_ns = now_ns,
                                 .object = callee.key,
                                 .name = wanted ? callee.name : 0,
                                 .attributes = callee.attributes,
                                 .lane = is_ours ? ring->lane : NO_LANE,
                                 .is_muting = callee.name == 0 && callee.attributes == kMuting};
    back = place ? PyFrame_GetBack(frame) : NULL;
    Py_DECREF(frame);
  }
  stack->depth = (uint32_t)depth;
}

// Calls that ran before us get the lane of their thread.
static void give_lanes(Stack *stack, Ring *ring) {
  uint32_t lane = NO_LANE;
  for (uint32_t i = 0; i < stack->depth; i++) {
    Call *call = &stack->calls[i];
    if (call->name == 0 || call->lane != NO_LANE) continue;
    if (lane == NO_LANE)
      lane = stack == thread_stack ? lane_id(ring) : lane_of_thread(ring, stack->ident);
    // Python code may have run, and calls ended.
    if (i < stack->depth) stack->calls[i].lane = lane;
  }
}

#if PY_VERSION_HEX < 0x030c0000

static const PyMethodDef *start_thread_method, *set_profile_method, *enable_method;

static void install_everywhere(void);

static const PyMethodDef *find_method(const char *module_name, const char *type, const char *name) {
  PyObject *owner = PyImport_ImportModule(module_name);
  if (owner && type) Py_SETREF(owner, PyObject_GetAttrString(owner, type));
  PyObject *function = owner ? PyObject_GetAttrString(owner, name) : NULL;
  const PyMethodDef *method = function ? builtin_method(function) : NULL;
  Py_XDECREF(function);
  Py_XDECREF(owner);
  PyErr_Clear();
  return method;
}

static void find_methods(void) {
  if (start_thread_method) return;
  start_thread_method = find_method("_thread", NULL, "start_new_thread");
  set_profile_method = find_method("sys", NULL, "setprofile");
  enable_method = find_method("_lsprof", "Profiler", "enable");
}

static int profile(PyObject *object, PyFrameObject *frame, int what, PyObject *argument);

// The one who was there before us gets the event too. A Python function that fails takes itself
// away, and us with it.
static int forward(Stack *stack, PyObject *object, PyFrameObject *frame, int what,
                   PyObject *argument) {
  int failed = stack->before(object, frame, what, argument);
  PyThreadState *thread = PyThreadState_GET();
  if (failed == 0 || thread->c_profilefunc != NULL) return failed;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  stack->before = NULL;
  if (_PyEval_SetProfile(thread, profile, NULL) != 0) PyErr_Clear();
  PyErr_Restore(type, value, trace);
  return failed;
}

static inline PyCodeObject *code_of(PyFrameObject *frame) {
#if PY_VERSION_HEX >= 0x030b0000
  return frame->f_frame->f_code;
#else
  return frame->f_code;
#endif
}

// What comes with one of the few C functions that we must know of.
static void watch(Stack *stack, int what, const PyMethodDef *method) {
  if (method != start_thread_method) {
    // Back from it with us still there, it was set for another thread or not at all.
    stack->leaving_ns = what == PyTrace_C_CALL ? clock_quick_ns(&calls.clock) : 0;
  } else if (what != PyTrace_C_CALL) {
    // The new thread has a state already, and has not run.
    install_everywhere();
  }
}

static int profile(PyObject *object, PyFrameObject *frame, int what, PyObject *argument) {
  Stack *stack = own_stack();
  if (stack == NULL || !calls.on) return 0;
  bool failed = false;
  if (what == PyTrace_CALL) {
    failed = !enter_code(stack, code_of(frame), frame);
  } else if (what == PyTrace_RETURN) {
    leave_code(stack, code_of(frame));
  } else if (what == PyTrace_C_CALL || what == PyTrace_C_RETURN || what == PyTrace_C_EXCEPTION) {
    const PyMethodDef *method = builtin_method(argument);
    if (what != PyTrace_C_CALL) {
      leave_builtin(stack);
    } else if (method) {
      failed = !enter_builtin(stack, argument, method);
    }
    if (__builtin_expect(method == start_thread_method || method == set_profile_method ||
                             method == enable_method,
                         0)) {
      watch(stack, what, method);
    }
  }
  if (__builtin_expect(stack->before != NULL, 0)) {
    return forward(stack, object, frame, what, argument);
  }
  return failed ? -1 : 0;
}

// The program took the hook away: its open calls were seen up to there.
static void end_calls(Stack *stack, Ring *ring) {
  uint64_t now_ns = stack->leaving_ns ? stack->leaving_ns : clock_quick_ns(&calls.clock);
  if (stack->depth == 0) return;
  calls.replaced++;
  give_lanes(stack, ring);
  while (stack->depth) pop(stack, now_ns);
}

static void install(PyThreadState *thread, Ring *ring) {
  if (thread->c_profilefunc == profile) return;
  Stack *stack = stack_of(thread);
  if (stack == NULL) return;
  if (stack->serial == ring->serial) end_calls(stack, ring);
  stack->leaving_ns = 0;
  stack->before = thread->c_profilefunc;
  seed(stack, thread, ring);
  PyObject *object = Py_XNewRef(thread->c_profileobj);
  if (_PyEval_SetProfile(thread, profile, object) != 0) python_forget_error();
  Py_XDECREF(object);
}

static void install_everywhere(void) {
  Ring *ring = recorder_ring();
  if (ring == NULL || !lane_is_known(ring)) return;
  PyThreadState *thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  for (; thread; thread = PyThreadState_Next(thread)) install(thread, ring);
}

static bool begin_hooks(Ring *ring) {
  (void)ring;
  find_methods();
  install_everywhere();
  return true;
}

static void end_hooks(Ring *ring) {
  PyThreadState *thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  for (; thread; thread = PyThreadState_Next(thread)) {
    Stack *stack = stack_of(thread);
    if (thread->c_profilefunc != profile) {
      if (stack && ring && stack->serial == ring->serial) end_calls(stack, ring);
      continue;
    }
    PyObject *object = Py_XNewRef(thread->c_profileobj);
    if (_PyEval_SetProfile(thread, stack ? stack->before : NULL, object) != 0) {
      python_forget_error();
    }
    Py_XDECREF(object);
  }
}

#else

// What sys.monitoring calls: an object with nothing between it and its C function.
typedef struct {
  PyObject_HEAD
  vectorcallfunc vectorcall;
} Callback;

static PyTypeObject CallbackType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "strobe.record._core.callback",
    .tp_basicsize = sizeof(Callback),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_vectorcall_offset = offsetof(Callback, vectorcall),
    .tp_call = PyVectorcall_Call,
};

static PyObject *on_start(PyObject *Py_UNUSED(self), PyObject *const *arguments,
                          size_t Py_UNUSED(count), PyObject *Py_UNUSED(names)) {
  Stack *stack = own_stack();
  if (stack && calls.on && !enter_code(stack, (PyCodeObject *)arguments[0], NULL)) return NULL;
  Py_RETURN_NONE;
}

static PyObject *on_end(PyObject *Py_UNUSED(self), PyObject *const *arguments,
                        size_t Py_UNUSED(count), PyObject *Py_UNUSED(names)) {
  Stack *stack = own_stack();
  if (stack && calls.on) leave_code(stack, arguments[0]);
  Py_RETURN_NONE;
}

static PyObject *on_call(PyObject *Py_UNUSED(self), PyObject *const *arguments,
                         size_t Py_UNUSED(count), PyObject *Py_UNUSED(names)) {
  // A Python function tells of itself when it starts.
  if (PyFunction_Check(arguments[2])) Py_RETURN_NONE;
  const PyMethodDef *method = builtin_method(arguments[2]);
  Stack *stack = method ? own_stack() : NULL;
  if (stack && calls.on && !enter_builtin(stack, arguments[2], method)) return NULL;
  Py_RETURN_NONE;
}

static PyObject *on_c_end(PyObject *Py_UNUSED(self), PyObject *const *arguments,
                          size_t Py_UNUSED(count), PyObject *Py_UNUSED(names)) {
  Stack *stack = builtin_method(arguments[2]) ? own_stack() : NULL;
  if (stack && calls.on) leave_builtin(stack);
  Py_RETURN_NONE;
}

static const struct {
  const char *event;
  vectorcallfunc function;
} kEvents[] = {
    {"PY_START", on_start}, {"PY_RESUME", on_start}, {"PY_THROW", on_start},
    {"PY_RETURN", on_end},  {"PY_YIELD", on_end},    {"PY_UNWIND", on_end},
    {"CALL", on_call},      {"C_RETURN", on_c_end},  {"C_RAISE", on_c_end},
};
enum { kEventCount = sizeof kEvents / sizeof *kEvents };

// Registers our callbacks, or none; 0 or -1 with an exception.
static int set_callbacks(bool ours) {
  PyObject *monitoring = PySys_GetObject("monitoring");  // borrowed
  PyObject *events = monitoring ? PyObject_GetAttrString(monitoring, "events") : NULL;
  long set = 0;
  int failed = events == NULL;
  for (int i = 0; !failed && i < kEventCount; i++) {
    PyObject *number = PyObject_GetAttrString(events, kEvents[i].event);
    Callback *callback = ours ? PyObject_New(Callback, &CallbackType) : NULL;
    if (callback) callback->vectorcall = kEvents[i].function;
    PyObject *before = number == NULL || (ours && callback == NULL)
                           ? NULL
                           : PyObject_CallMethod(monitoring, "register_callback", "iOO", calls.tool,
                                                 number, ours ? (PyObject *)callback : Py_None);
    if (number) set |= PyLong_AsLong(number);
    failed = before == NULL;
    Py_XDECREF(before);
    Py_XDECREF(callback);
    Py_XDECREF(number);
  }
  PyObject *done =
      failed ? NULL
             : PyObject_CallMethod(monitoring, "set_events", "il", calls.tool, ours ? set : 0L);
  Py_XDECREF(done);
  Py_XDECREF(events);
  return done ? 0 : -1;
}

static bool begin_hooks(Ring *ring) {
  if (PyType_Ready(&CallbackType) != 0 || set_callbacks(true) != 0) return false;
  PyThreadState *thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  for (; thread; thread = PyThreadState_Next(thread)) {
    Stack *stack = stack_of(thread);
    if (stack) seed(stack, thread, ring);
  }
  return true;
}

static void end_hooks(Ring *ring) {
  (void)ring;
  if (set_callbacks(false) != 0) python_forget_error();
}

#endif

static void keep_all(void) {
  Ring *ring = recorder_ring();
  if (ring == NULL) return;
  uint32_t serial = ring->serial;
  for (Stack *stack = calls.stacks; stack; stack = stack->next) {
    if (stack->thread == 0 || stack->serial != serial || stack->kept >= stack->depth) continue;
    give_lanes(stack, ring);
    if (!recorder_owns(ring, serial)) return;
    keep_open(stack, ring);
  }
}

PyObject *calls_start(PyObject *Py_UNUSED(module), PyObject *arguments) {
  PyObject *ours, *include, *exclude;
  unsigned long long min_ns;
  unsigned int max_depth;
  unsigned char category;
  int tool, with_counter;
  if (!PyArg_ParseTuple(arguments, "UOOKIbpi", &ours, &include, &exclude, &min_ns, &max_depth,
                        &category, &with_counter, &tool)) {
    return NULL;
  }
  CalleeFilter filter = {.include = PySequence_Tuple(include),
                         .exclude = PySequence_Tuple(exclude)};
  if (filter.include == NULL || filter.exclude == NULL) {
    Py_XDECREF(filter.include);
    Py_XDECREF(filter.exclude);
    return NULL;
  }
  filter.ours = Py_NewRef(ours);
  filter.muting = PyUnicode_FromFormat("%Usession/", ours);
  callees_filter(filter);
  calls.min_ns = min_ns;
  calls.max_depth = max_depth ? max_depth : UINT32_MAX;
  if (!calls.has_key) calls.has_key = pthread_key_create(&calls.thread_end, end_thread) == 0;
  Stack *stack = calls.has_key ? own_stack() : NULL;
  Ring *ring = stack ? recorder_ring() : NULL;
  if (ring) ring = get_ready(stack, ring);
  calls.is_child = false;
  if (ring == NULL || calls.on) return PyErr_Occurred() ? NULL : PyBool_FromLong(calls.on);
  calls.unmatched = calls.replaced = 0;
  clock_use_counter(with_counter);
  calls.clock = (QuickClock){0};
  calls.category = category;
  calls.tool = tool;
  if (!begin_hooks(ring)) return NULL;
  calls.on = true;
  Py_RETURN_TRUE;
}

PyObject *calls_keep(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  keep_all();
  return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyObject *calls_stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  if (calls.on) {
    end_hooks(recorder_ring());
    keep_all();
    calls.on = false;
    for (Stack *stack = calls.stacks; stack; stack = stack->next) stack->depth = stack->kept = 0;
    callees_filter((CalleeFilter){0});
  }
  if (PyErr_Occurred()) return NULL;
  return Py_BuildValue("{sKsK}", "unmatched", (unsigned long long)calls.unmatched, "replaced",
                       (unsigned long long)calls.replaced);
}

// The other threads are the parent's.
PyObject *calls_after_fork(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  for (Stack *stack = calls.stacks; stack; stack = stack->next) {
    if (stack != thread_stack) stack->thread = 0;
  }
  calls.is_child = calls.on;
  Py_RETURN_NONE;
}
