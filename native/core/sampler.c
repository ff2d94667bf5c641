// SPDX-License-Identifier: Apache-2.0
// Samples of the stacks of all threads. A thread of ours wakes up for each. That costs more than all
// the rest, so it does not wait for the GIL if it can: where nobody has the GIL it takes it, and where
// the main thread has, that one looks for us, in a pending call. A stack is seen where its thread
// could let the GIL go, never in the middle of a C function that holds it.
#include "callees.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "texts.h"

enum {
  kMostFrames = 1000,   // of one stack, the innermost
  kMostThreads = 4096,  // whose lanes are remembered
  kCachedStacks = 8192,
};
// Of the program's processor time, for us; beyond it, looks are further apart.
#define MOST_SHARE 0.007
#define GRACE_NS 200000u
#define LONGEST_PAUSE_NS 10000000000u
// A look after a longer pause than this stands for the processor time in it alone: the rest was
// spent where the threads were seen before.
#define LONG_PAUSE_NS 1000000000u

// A stack is a text of the log: the number of the stack that called it, of its name and of its
// attributes. This remembers the numbers of the latest ones.
typedef struct {
  uint32_t above, name, attributes;
  uint32_t serial;
  uint32_t id;
} KnownStack;

typedef struct {
  uint64_t thread;
  uint32_t lane;
  uint32_t stack;    // that it was last seen in
  uint64_t seen_ns;  // and when
} SeenThread;

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
  _Atomic(PyThreadState *) main_state;  // of the thread that pending calls are made in
  atomic_bool pending;                  // a call is, that will look
  _Atomic uint64_t asked_ns;            // when a look was due that is still to be taken; 0: none is
  _Atomic uint64_t used_ns;             // by the program since the look before
  atomic_bool over;                     // nothing records any more
  uint32_t serial;                      // of the log that the lanes belong to
  SeenThread threads[kMostThreads];
  uint32_t thread_count;
  KnownStack known[kCachedStacks];
  uint64_t last_ns;
  uint64_t rounds, samples, cut, elapsed_ns;
  // What follows is our thread's alone, but for `answering_ns`.
  uint64_t now_ns, process_ns, thread_ns;  // the clock and processor times when last accounted for
  _Atomic uint64_t answering_ns;           // spent in pending calls since
  uint64_t looks, wall_ns, own_ns, program_ns;  // in all
  uint64_t pause_ns;                            // before the next look
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

static SeenThread *seen_thread(PyThreadState *thread, Ring *ring) {
  uint64_t number = PyThreadState_GetID(thread);
  for (uint32_t i = 0; i < sampler.thread_count; i++) {
    if (sampler.threads[i].thread == number) return &sampler.threads[i];
  }
  uint32_t lane = lane_of_thread(ring, thread->thread_id);
  if (sampler.thread_count == kMostThreads) sampler.thread_count = 0;
  SeenThread *seen = &sampler.threads[sampler.thread_count++];
  *seen = (SeenThread){.thread = number, .lane = lane};
  return seen;
}

static void put_sample(Ring *ring, const SeenThread *seen, uint64_t at_ns, uint64_t stands_for_ns) {
  Record record = {.start_ns = at_ns,
                   .dur_ns = stands_for_ns,
                   .name = seen->stack,
                   .lane = seen->lane,
                   .kind = kKindSample};
  ring_put(ring, &record);
  sampler.samples++;
}

// One that is due stands for the time since the one before was, however late it is taken: what makes
// it late would else weigh more.
static void take_samples(void) {
  uint64_t due_ns = atomic_exchange(&sampler.asked_ns, 0);
  if (due_ns == 0) return;
  Ring *ring = recorder_ring();
  atomic_store(&sampler.over, ring == NULL);
  if (ring == NULL) return;
  if (sampler.serial != ring->serial) {
    sampler.serial = ring->serial;
    sampler.thread_count = 0;
  }
  if (callees.serial != ring->serial) callees_start_over(ring->serial);
  uint64_t since_ns = due_ns - sampler.last_ns;
  uint64_t used_ns = atomic_exchange(&sampler.used_ns, 0);
  uint64_t idle_ns = since_ns > LONG_PAUSE_NS && since_ns > used_ns ? since_ns - used_ns : 0;
  PyThreadState *thread = PyInterpreterState_ThreadHead(sampler.interpreter);
  for (; thread; thread = PyThreadState_Next(thread)) {
    uint32_t stack = thread == sampler.state ? 0 : read_stack(thread, ring);
    if (stack == 0) continue;
    SeenThread *seen = seen_thread(thread, ring);
    bool was_seen = idle_ns && seen->seen_ns == sampler.last_ns;
    if (was_seen) put_sample(ring, seen, due_ns - used_ns, idle_ns);
    seen->stack = stack;
    seen->seen_ns = due_ns;
    put_sample(ring, seen, due_ns, was_seen ? used_ns : since_ns);
  }
  sampler.rounds++;
  sampler.elapsed_ns += since_ns;
  sampler.last_ns = due_ns;
}

static void take_samples_alone(void) {
  // What is allocated here must not make Python collect, and run the program's code in between.
  int collecting = PyGC_Disable();
  take_samples();
  if (collecting) PyGC_Enable();
}

// The pending call.
static int answer(void *Py_UNUSED(argument)) {
  uint64_t began_ns = clock_monotonic_ns();
  atomic_store(&sampler.pending, false);
  atomic_store(&sampler.main_state, PyThreadState_GET());
  if (sampler.running) take_samples_alone();
  atomic_fetch_add(&sampler.answering_ns, clock_monotonic_ns() - began_ns);
  return 0;
}

static void ask_main_thread(void) {
  if (!atomic_exchange(&sampler.pending, true) && Py_AddPendingCall(answer, NULL) != 0) {
    atomic_store(&sampler.pending, false);
  }
  python_notice_pending_calls(sampler.interpreter);
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
  return !stop && !atomic_load(&sampler.over);
}

static uint64_t cpu_ns(clockid_t clock) {
  struct timespec spent;
  clock_gettime(clock, &spent);
  return (uint64_t)spent.tv_sec * 1000000000u + (uint64_t)spent.tv_nsec;
}

// Adds what was used of the processor since the last time, by us and by the program.
static void account(void) {
  uint64_t now_ns = clock_monotonic_ns();
  uint64_t process_ns = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
  uint64_t thread_ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
  uint64_t answering_ns = atomic_exchange(&sampler.answering_ns, 0);
  uint64_t own_ns = thread_ns - sampler.thread_ns + answering_ns;
  uint64_t both_ns = process_ns - sampler.process_ns;
  uint64_t program_ns = both_ns > own_ns ? both_ns - own_ns : 0;
  atomic_fetch_add(&sampler.used_ns, program_ns);
  sampler.looks++;
  sampler.wall_ns += now_ns - sampler.now_ns;
  sampler.own_ns += own_ns;
  sampler.program_ns += program_ns;
  sampler.now_ns = now_ns;
  sampler.process_ns = process_ns;
  sampler.thread_ns = thread_ns;
}

static void look(void) {
  account();
  atomic_store(&sampler.asked_ns, clock_ns());
  PyThreadState *holder = python_gil_holder(sampler.interpreter);
  if (holder && holder == atomic_load(&sampler.main_state)) {
    ask_main_thread();
    return;
  }
  if (holder) python_ask_for_gil(sampler.interpreter);
  PyEval_RestoreThread(sampler.state);
  take_samples_alone();
  PyEval_SaveThread();
}

// While we cost too much: until the program will have used what pays for a look, if it goes on as it
// did so far, of which little is known at first.
static uint64_t next_pause_ns(void) {
  double own_ns = (double)sampler.own_ns, affordable_ns = MOST_SHARE * (double)sampler.program_ns;
  if (own_ns <= affordable_ns + GRACE_NS) return sampler.interval_ns;
  double pause_ns = own_ns / (double)sampler.looks * (double)sampler.wall_ns / (affordable_ns + 1);
  uint64_t twice_ns = 2 * sampler.pause_ns;
  uint64_t most_ns = twice_ns < LONGEST_PAUSE_NS ? twice_ns : LONGEST_PAUSE_NS;
  if (pause_ns > (double)most_ns) return most_ns;
  return pause_ns < (double)sampler.interval_ns ? sampler.interval_ns : (uint64_t)pause_ns;
}

// Between half and one and a half of it: a program that has a rhythm is seen in all of its parts.
static uint64_t vary(uint64_t pause_ns) {
  static uint64_t state = 88172645463325252u;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return pause_ns / 2 + state % (pause_ns + 1);
}

// Asks the scheduler for short turns, since Linux 6.12: then it lets us run as soon as we wake up. A
// thread that has to wait until the program sleeps sees it asleep too often.
static void ask_for_short_turns(void) {
#ifdef SYS_sched_setattr
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
  } attributes = {.size = sizeof attributes};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime_ns = 100000;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
#endif
}

static void *run(void *Py_UNUSED(argument)) {
  ask_for_short_turns();
  uint64_t next_ns = clock_monotonic_ns();
  while (wait_until(next_ns += vary(sampler.pause_ns))) {
    look();
    sampler.pause_ns = next_pause_ns();
    uint64_t now_ns = clock_monotonic_ns();
    // Late by more than a turn: those are not made up for.
    if (now_ns > next_ns + sampler.interval_ns) next_ns = now_ns;
  }
  PyEval_RestoreThread(sampler.state);
  account();
  uint64_t now_ns = clock_ns();
  if (now_ns - sampler.last_ns > LONG_PAUSE_NS) {
    atomic_store(&sampler.asked_ns, now_ns);
    take_samples_alone();
  }
  PyThreadState_Clear(sampler.state);
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
  sampler.now_ns = clock_monotonic_ns();
  sampler.process_ns = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
  sampler.thread_ns = 0;
  atomic_store(&sampler.asked_ns, 0);
  atomic_store(&sampler.over, false);
  ask_main_thread();  // so that we get to know its state
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
  sampler.pause_ns = sampler.interval_ns;
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
      "{sKsKsKsKsKsK}", "rounds", (unsigned long long)sampler.rounds, "samples",
      (unsigned long long)sampler.samples, "cut", (unsigned long long)sampler.cut, "elapsed_ns",
      (unsigned long long)sampler.elapsed_ns, "own_ns", (unsigned long long)sampler.own_ns,
      "program_ns", (unsigned long long)sampler.program_ns);
  return figures;
}

PyObject *sampler_forget(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  sampler.rounds = sampler.samples = sampler.cut = sampler.elapsed_ns = 0;
  sampler.looks = sampler.wall_ns = sampler.own_ns = sampler.program_ns = 0;
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
