// SPDX-License-Identifier: Apache-2.0
// Samples of the stacks of all threads, by a thread of ours that takes the GIL for a moment: so a
// stack is seen where a thread lets the GIL go, never in the middle of a C function that holds it.
// It asks for the GIL soon: with Python's patience of 5 ms, whatever ends earlier is never seen.
#include "callees.h"

#include <stdio.h>
#include <signal.h>
#include <time.h>

#include "clock.h"
#include "texts.h"

enum {
  kMostFrames = 1000,   // of one stack, the innermost
  kMostThreads = 4096,  // whose lanes are remembered
  kCachedStacks = 8192,
  kPatienceUs = 500,
};

// A stack is a text of the log: the number of the stack that called it, of its name and of its
// attributes. This remembers the numbers of the latest ones.
typedef struct {
  uint32_t above, name, attributes;
  uint32_t serial;
  uint32_t id;
} KnownStack;

static struct {
  pthread_t thread;
  bool running;
  pthread_mutex_t lock;  // of the next, and of `stop`
  pthread_cond_t wake;
  bool has_condition;
  bool stop;
  uint64_t interval_ns;
  PyInterpreterState *interpreter;
  PyThreadState *state;
  uint32_t serial;  // of the log that the lanes belong to
  struct {
    uint64_t thread;
    uint32_t lane;
  } lanes[kMostThreads];
  uint32_t lane_count;
  KnownStack known[kCachedStacks];
  uint64_t last_ns;
  uint64_t rounds, samples, cut, elapsed_ns, own_ns;
} sampler = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint32_t stack_id(Ring *ring, uint32_t above, const Callee *callee) {
  uint32_t hash = (above * 31 + callee->name) * 31 + callee->attributes;
  KnownStack *known = &sampler.known[hash * 2654435769u >> 7 & (kCachedStacks - 1)];
  if (known->serial == ring->serial && known->above == above && known->name == callee->name &&
      known->attributes == callee->attributes) {
    return known->id;
  }
  char text[40];
  int length = snprintf(text, sizeof text, "%u %u %u", above, callee->name, callee->attributes);
  uint32_t id = text_id(ring, text, (size_t)length);
  *known = (KnownStack){above, callee->name, callee->attributes, ring->serial, id};
  return id;
}

// The number of a thread's stack; 0 for none that is recorded.
static uint32_t read_stack(PyThreadState *thread, Ring *ring) {
  static PyFrameObject *frames[kMostFrames];
  int count = 0;
  PyFrameObject *frame = PyThreadState_GetFrame(thread);
  while (frame && count < kMostFrames) {
    frames[count++] = frame;
    frame = PyFrame_GetBack(frame);
  }
  sampler.cut += frame != NULL;
  Py_XDECREF(frame);
  uint32_t id = 0;
  for (; count > 0; Py_DECREF(frames[count])) {
    count--;
    PyCodeObject *code = PyFrame_GetCode(frames[count]);
    const Callee *known = callee_find(code);
    Callee callee = known ? *known : callee_of_code(ring, code, frames[count]);
    Py_DECREF(code);
    if (callee.name) id = stack_id(ring, id, &callee);
  }
  return id;
}

static uint32_t thread_lane(PyThreadState *thread, Ring *ring) {
  uint64_t number = PyThreadState_GetID(thread);
  for (uint32_t i = 0; i < sampler.lane_count; i++) {
    if (sampler.lanes[i].thread == number) return sampler.lanes[i].lane;
  }
  uint32_t lane = lane_of_thread(ring, thread->thread_id);
  if (sampler.lane_count == kMostThreads) sampler.lane_count = 0;
  sampler.lanes[sampler.lane_count].thread = number;
  sampler.lanes[sampler.lane_count++].lane = lane;
  return lane;
}

// False once nothing records any more.
static bool take_samples(void) {
  Ring *ring = recorder_ring();
  if (ring == NULL) return false;
  if (sampler.serial != ring->serial) {
    sampler.serial = ring->serial;
    sampler.lane_count = 0;
  }
  if (callees.serial != ring->serial) callees_start_over(ring->serial);
  uint64_t now_ns = clock_ns();
  PyThreadState *thread = PyInterpreterState_ThreadHead(sampler.interpreter);
  for (; thread; thread = PyThreadState_Next(thread)) {
    uint32_t stack = thread == sampler.state ? 0 : read_stack(thread, ring);
    if (stack == 0) continue;
    Record record = {.start_ns = now_ns,
                     .dur_ns = now_ns - sampler.last_ns,
                     .name = stack,
                     .lane = thread_lane(thread, ring),
                     .kind = kKindSample};
    ring_put(ring, &record);
    sampler.samples++;
  }
  sampler.rounds++;
  sampler.elapsed_ns += now_ns - sampler.last_ns;
  sampler.last_ns = now_ns;
  return true;
}

// False when it is time to end.
static bool wait_until(uint64_t time_ns) {
  struct timespec until = {(time_t)(time_ns / 1000000000u), (long)(time_ns % 1000000000u)};
  pthread_mutex_lock(&sampler.lock);
  int woken = 0;
  while (!sampler.stop && woken == 0) {
    woken = pthread_cond_timedwait(&sampler.wake, &sampler.lock, &until);
  }
  bool stop = sampler.stop;
  pthread_mutex_unlock(&sampler.lock);
  return !stop;
}

// Takes the GIL. A thread of the program that begins to wait in the same instant is as impatient,
// once.
static void take_gil(PyThreadState *state) {
  unsigned long *interval_us = python_switch_interval_us(sampler.interpreter);
  unsigned long before_us = *interval_us;
  if (before_us > kPatienceUs) *interval_us = kPatienceUs;
  PyEval_RestoreThread(state);
  // Unless the program has set it meanwhile.
  if (*interval_us == kPatienceUs) *interval_us = before_us;
}

static uint64_t thread_cpu_ns(void) {
  struct timespec spent;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return (uint64_t)spent.tv_sec * 1000000000u + (uint64_t)spent.tv_nsec;
}

static void *run(void *Py_UNUSED(argument)) {
  PyThreadState *state = sampler.state;
  uint64_t next_ns = clock_monotonic_ns();
  bool going = true;
  while (going && wait_until(next_ns += sampler.interval_ns)) {
    take_gil(state);
    // What is allocated here must not make Python collect, and run the program's code in our thread.
    int collecting = PyGC_Disable();
    going = sampler.stop || take_samples();
    if (collecting) PyGC_Enable();
    PyEval_SaveThread();
    uint64_t now_ns = clock_monotonic_ns();
    // Late by more than a turn: those are not made up for.
    if (now_ns > next_ns + sampler.interval_ns) next_ns = now_ns;
  }
  uint64_t spent_ns = thread_cpu_ns();
  PyEval_RestoreThread(state);
  sampler.own_ns += spent_ns;
  PyThreadState_Clear(state);
  PyThreadState_DeleteCurrent();
  return NULL;
}

static int start_thread(void) {
  if (!sampler.has_condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&sampler.wake, &attributes);
    pthread_condattr_destroy(&attributes);
    sampler.has_condition = true;
  }
  sampler.interpreter = PyInterpreterState_Get();
  sampler.state = PyThreadState_New(sampler.interpreter);
  if (sampler.state == NULL) return ENOMEM;
  sampler.stop = false;
  sampler.last_ns = clock_ns();
  sigset_t all, before;
  sigfillset(&all);
  // The program's signals belong to the program's threads.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failure = pthread_create(&sampler.thread, NULL, run, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  sampler.running = failure == 0;
  if (failure == 0) {
    pthread_setname_np(sampler.thread, "strobe-sampler");
  } else {
    PyThreadState_Clear(sampler.state);
    PyThreadState_Delete(sampler.state);
  }
  return failure;
}

PyObject *sampler_start(PyObject *Py_UNUSED(module), PyObject *arguments) {
  double rate_hz;
  PyObject *ours;
  if (!PyArg_ParseTuple(arguments, "dU", &rate_hz, &ours)) return NULL;
  sampler.interval_ns = (uint64_t)(1e9 / rate_hz);
  if (sampler.running) Py_RETURN_NONE;
  callees_hide(ours);
  int failure = start_thread();
  if (failure) {
    errno = failure;
    return PyErr_SetFromErrno(PyExc_OSError);
  }
  Py_RETURN_NONE;
}

PyObject *sampler_stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  if (sampler.running) {
    pthread_mutex_lock(&sampler.lock);
    sampler.stop = true;
    pthread_cond_signal(&sampler.wake);
    pthread_mutex_unlock(&sampler.lock);
    // It needs the GIL to end.
    Py_BEGIN_ALLOW_THREADS;
    pthread_join(sampler.thread, NULL);
    Py_END_ALLOW_THREADS;
    sampler.running = false;
  }
  PyObject *figures = Py_BuildValue(
      "{sKsKsKsKsK}", "rounds", (unsigned long long)sampler.rounds, "samples",
      (unsigned long long)sampler.samples, "cut", (unsigned long long)sampler.cut, "elapsed_ns",
      (unsigned long long)sampler.elapsed_ns, "own_ns", (unsigned long long)sampler.own_ns);
  return figures;
}

PyObject *sampler_forget(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  sampler.rounds = sampler.samples = sampler.cut = sampler.elapsed_ns = sampler.own_ns = 0;
  Py_RETURN_NONE;
}

static int restart(void *Py_UNUSED(argument)) {
  if (!sampler.running && recorder_ring()) start_thread();
  return 0;
}

PyObject *sampler_restart(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
#if PY_VERSION_HEX >= 0x030d0000
  // os.fork() is about to look for threads, which it warns of.
  Py_AddPendingCall(restart, NULL);
#else
  restart(NULL);
#endif
  Py_RETURN_NONE;
}
