// SPDX-License-Identifier: Apache-2.0
// Samples of the stacks of all threads. A thread of ours wakes up for each, which costs more than all
// the rest. It does not wait for the GIL if it can: where no thread ran since it last looked, the
// stacks are what they were; where nobody has the GIL it takes it; and where the main thread has,
// that one looks for us, in a pending call. A stack is seen where its thread could let the GIL go,
// never in the middle of a C function that holds it. Such a function is seen when it ends, for each
// time at which it should have been.
#include "callees.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "budget.h"
#include "clock.h"
#include "texts.h"

enum {
  kMostFrames = 1000,   // of one stack, the innermost
  kMostThreads = 4096,  // whose lanes are remembered
  kCachedStacks = 8192,
  kMostDue =
      256,  // samples that are due and not taken; the last of more stands for all of the rest
};
// Processor times are read no more often than this: that takes a system call each.
#define ACCOUNT_NS 10000000u
// A recording that ends so long after its last sample gets one more.
#define LONG_PAUSE_NS 1000000000u
#define MAKE_UP_NS 1000000000u

// A stack is a text of the log: the number of the stack that called it, of its name and of its
// attributes. This remembers the numbers of the latest ones.
typedef struct {
  uint32_t above, name, attributes;
  uint32_t serial;
  uint32_t id;
} KnownStack;

// A sample that is to be taken. The main thread was at `place`, if it had the GIL: it is seen only
// when it next could let the GIL go, which may be in another function.
typedef struct {
  uint64_t at_ns;
  PythonPlace place;
} Due;

static const PythonPlace kAnywhere;

typedef struct {
  uint64_t thread;
  uint64_t look;   // that it was last seen in
  uint32_t stack;  // and where; 0 for none that is recorded
  uint32_t lane;
  bool has_lane;
} SeenThread;

static struct {
  pthread_t thread;
  bool running;
  pthread_mutex_t lock;  // of the next, and of `stop`
  pthread_cond_t wake;
  bool has_condition;
  bool stop;
  _Atomic uint64_t interval_ns;  // between two looks, as asked
  PyInterpreterState *interpreter;
  PyThreadState *state;
  _Atomic(PyThreadState *) main_state;  // of the thread that pending calls are made in
  atomic_bool pending;                  // a call is, that will look
  Due due[kMostDue];                    // written by our thread, read by whoever has the GIL
  _Atomic uint64_t asked, answered;     // so many
  atomic_bool over;                     // nothing records any more
  _Atomic uint64_t answering_ns;        // processor time of pending calls, since last accounted for
  // What follows belongs to whoever has the GIL, or to our thread while nobody else had it.
  uint32_t serial;  // of the log that the lanes belong to
  SeenThread threads[kMostThreads];
  uint32_t thread_count, next_thread;
  KnownStack known[kCachedStacks];
  uint64_t look;  // the number of the last one
  bool looking;   // the next one is being taken
  // Who took the last one, in one go, and how often the GIL had gone from one to another; NULL: none.
  PyThreadState *looker;
  unsigned long switches;
  uint64_t last_ns;  // when the last sample was due
  uint64_t rounds, late, samples, cut, unseen, elapsed_ns;
  // And this to our thread alone.
  Budget budget;
  uint64_t next_ns;                  // when to wake up, by CLOCK_MONOTONIC
  uint64_t accounted_ns, thread_ns;  // that clock and our processor time, when last accounted for
  uint64_t wall_ns, own_ns, lowered_ns;  // in all; what budget added to pauses
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

// The number of a thread's stack, or of the one that it had at a place, 0 for none that is recorded.
// False where a function in it is new.
static bool find_stack(PyThreadState *thread, const PythonPlace *place, Ring *ring,
                       uint32_t *stack) {
  static PyCodeObject *codes[kMostFrames + 1];
  int count = python_codes(thread, place, codes, kMostFrames + 1);
  bool is_cut = count > kMostFrames;
  uint32_t id = 0;
  for (count -= is_cut; count > 0; count--) {
    const Callee *callee = callee_find(codes[count - 1]);
    if (callee == NULL) return false;
    if (callee->name) id = stack_id(ring, id, callee);
  }
  sampler.cut += is_cut;
  *stack = id;
  return true;
}

// The number of a stack in which a function is new; 0 for none that is recorded. May run Python code.
static uint32_t describe_stack(PyThreadState *thread, Ring *ring) {
  static PyFrameObject *frames[kMostFrames];
  int count = 0;
  uint32_t serial = ring->serial, id = 0;
  PyFrameObject *frame = PyThreadState_GetFrame(thread);
  while (frame && count < kMostFrames) {
    frames[count++] = frame;
    frame = PyFrame_GetBack(frame);
  }
  sampler.cut += frame != NULL;
  Py_XDECREF(frame);
  for (; count > 0; Py_DECREF(frames[count])) {
    count--;
    PyCodeObject *code = PyFrame_GetCode(frames[count]);
    const Callee *known = callee_find(code);
    Callee callee = known ? *known : callee_of_code(ring, code, frames[count]);
    Py_DECREF(code);
    if (callee.name && recorder_owns(ring, serial)) id = stack_id(ring, id, &callee);
  }
  return id;
}

// Threads come in the same order each time, but for new ones. NULL where there are too many.
static SeenThread *seen_thread(uint64_t number) {
  for (uint32_t i = 0; i < sampler.thread_count; i++) {
    if (sampler.next_thread >= sampler.thread_count) sampler.next_thread = 0;
    SeenThread *seen = &sampler.threads[sampler.next_thread++];
    if (seen->thread == number) return seen;
  }
  if (sampler.thread_count == kMostThreads) return NULL;
  SeenThread *seen = &sampler.threads[sampler.thread_count++];
  *seen = (SeenThread){.thread = number};
  return seen;
}

// Makes room for new threads, where many have ended.
static void forget_ended_threads(void) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < sampler.thread_count; i++) {
    if (sampler.threads[i].look == sampler.look) sampler.threads[kept++] = sampler.threads[i];
  }
  sampler.thread_count = kept;
}

// Looks at one thread. False if Python code may have run meanwhile: then the list of threads may be
// another, and the log too.
static bool see_thread(PyThreadState *thread, Ring *ring) {
  SeenThread *seen = seen_thread(PyThreadState_GetID(thread));
  sampler.unseen += seen == NULL;
  if (seen == NULL || seen->look == sampler.look) return true;
  seen->look = sampler.look;
  seen->stack = 0;
  unsigned long ident = thread->thread_id;
  uint32_t serial = ring->serial;
  bool is_known = find_stack(thread, &kAnywhere, ring, &seen->stack);
  if (!is_known) seen->stack = describe_stack(thread, ring);
  if (seen->stack && !seen->has_lane && recorder_owns(ring, serial)) {
    is_known = false;
    seen->has_lane = true;
    seen->lane = lane_of_thread(ring, ident);
  }
  return is_known;
}

// Whether no thread but the main one ran since the last look, if so many switches of the GIL ago it
// was with `holder`. The last look was our thread's, or the main one's.
static bool only_main_ran(const PyThreadState *holder, unsigned long switches) {
  const PyThreadState *main_state = atomic_load(&sampler.main_state);
  if (sampler.looker == NULL || holder != main_state) return false;
  return switches - sampler.switches <= (sampler.looker != main_state);
}

// The other threads are where they were. False if something is new, and all are to be looked at.
static bool see_main_thread(Ring *ring) {
  PyThreadState *main_state = atomic_load(&sampler.main_state);
  SeenThread *seen = seen_thread(PyThreadState_GetID(main_state));
  return seen && seen->has_lane && find_stack(main_state, &kAnywhere, ring, &seen->stack);
}

typedef enum { kStopped, kInParts, kAtOnce } Seen;

// Looks at all threads. Where Python code had to be run for it, others may have run in between.
static Seen see_threads(Ring *ring) {
  uint32_t serial = ring->serial;
  Seen seen = kAtOnce;
  if (sampler.thread_count == kMostThreads) forget_ended_threads();
  sampler.look++;
  PyThreadState *thread = PyInterpreterState_ThreadHead(sampler.interpreter);
  while (thread) {
    if (thread == sampler.state || see_thread(thread, ring)) {
      thread = PyThreadState_Next(thread);
      continue;
    }
    seen = kInParts;
    if (!recorder_owns(ring, serial)) return kStopped;
    thread = PyInterpreterState_ThreadHead(sampler.interpreter);
  }
  return seen;
}

// Samples that were due at a time stand for the time since the ones before were, however late they
// are taken: what makes them late would else weigh more.
static void put_samples(Ring *ring, uint64_t due_ns) {
  if (due_ns <= sampler.last_ns) return;
  uint64_t since_ns = due_ns - sampler.last_ns;
  for (uint32_t i = 0; i < sampler.thread_count; i++) {
    const SeenThread *seen = &sampler.threads[i];
    if (seen->look != sampler.look || seen->stack == 0) continue;
    Record record = {.start_ns = due_ns,
                     .dur_ns = since_ns,
                     .name = seen->stack,
                     .lane = seen->lane,
                     .kind = kKindSample};
    ring_put(ring, &record);
    sampler.samples++;
  }
  sampler.rounds++;
  sampler.elapsed_ns += since_ns;
  sampler.last_ns = due_ns;
}

static void put_due_samples(Ring *ring, const Due *due) {
  PyThreadState *main_state = atomic_load(&sampler.main_state);
  SeenThread *seen = due->place.frame ? seen_thread(PyThreadState_GetID(main_state)) : NULL;
  uint32_t stack = seen ? seen->stack : 0, stack_then;
  if (stack && find_stack(main_state, &due->place, ring, &stack_then)) seen->stack = stack_then;
  put_samples(ring, due->at_ns);
  if (seen) seen->stack = stack;
}

// Those that are late were kept waiting by a C function that kept the GIL: all stacks are what they
// were when they were due.
static Seen take_due_samples(uint64_t answered, uint64_t asked, bool is_main_only) {
  Ring *ring = recorder_ring();
  atomic_store(&sampler.over, ring == NULL);
  if (ring == NULL) return kStopped;
  if (sampler.serial != ring->serial) {
    sampler.serial = ring->serial;
    sampler.thread_count = 0;
    is_main_only = false;
  }
  if (callees.serial != ring->serial) callees_start_over(ring->serial);
  Seen seen = is_main_only && see_main_thread(ring) ? kAtOnce : see_threads(ring);
  if (seen == kStopped) return seen;
  sampler.late += asked - answered - 1;
  bool is_full = asked - answered == kMostDue;
  for (; answered < asked; answered++) put_due_samples(ring, &sampler.due[answered % kMostDue]);
  if (is_full) put_samples(ring, clock_ns());
  return seen;
}

// `holder` had the GIL last or has it now, with so many switches; NULL if that is not known.
static void take_samples(const PyThreadState *holder, unsigned long switches) {
  uint64_t answered = atomic_load(&sampler.answered), asked = atomic_load(&sampler.asked);
  // The other of the two that look may be in the middle of it, having run Python code.
  if (answered == asked || sampler.looking) return;
  bool is_main_only = only_main_ran(holder, switches);
  // What is allocated here must not make Python collect, and run the program's code in between.
  int collecting = PyGC_Disable();
  sampler.looking = true;
  sampler.looker = NULL;
  Seen seen = take_due_samples(answered, asked, is_main_only);
  if (seen == kAtOnce) {
    sampler.looker = PyThreadState_GET();
    sampler.switches = python_gil_switches(sampler.interpreter);
  }
  sampler.looking = false;
  atomic_store(&sampler.answered, asked);
  if (collecting) PyGC_Enable();
}

// Puts the samples of our thread's last look once more, if no thread ran since.
static bool repeat_samples(uint64_t due_ns) {
  if (python_last_gil_holder(sampler.interpreter) != sampler.state) return false;
  if (sampler.looker != sampler.state) return false;
  Ring *ring = recorder_ring();
  if (ring == NULL || ring->serial != sampler.serial) return false;
  put_samples(ring, due_ns);
  return true;
}

static uint64_t own_cpu_ns(void) {
  struct timespec spent;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return (uint64_t)spent.tv_sec * 1000000000u + (uint64_t)spent.tv_nsec;
}

// The pending call.
static int answer(void *Py_UNUSED(argument)) {
  atomic_store(&sampler.pending, false);
  atomic_store(&sampler.main_state, PyThreadState_GET());
  if (!sampler.running || atomic_load(&sampler.asked) == atomic_load(&sampler.answered)) return 0;
  uint64_t began_ns = own_cpu_ns();
  take_samples(PyThreadState_GET(), python_gil_switches(sampler.interpreter));
  atomic_fetch_add(&sampler.answering_ns, own_cpu_ns() - began_ns);
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

// Adds what was used of the processor since the last time.
static void account(void) {
  uint64_t now_ns = clock_monotonic_ns(), thread_ns = own_cpu_ns();
  uint64_t wall_ns = now_ns - sampler.accounted_ns;
  uint64_t own_ns = thread_ns - sampler.thread_ns + atomic_exchange(&sampler.answering_ns, 0);
  budget_account(&sampler.budget, wall_ns, own_ns);
  sampler.wall_ns += wall_ns;
  sampler.own_ns += own_ns;
  sampler.accounted_ns = now_ns;
  sampler.thread_ns = thread_ns;
}

// Between half and one and a half of it: a program that has a rhythm is seen in all of its parts.
static uint64_t vary(uint64_t pause_ns) {
  static uint64_t state = 88172645463325252u;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return pause_ns / 2 + state % (pause_ns + 1);
}

static void plan_next(void) {
  uint64_t interval_ns = atomic_load(&sampler.interval_ns);
  uint64_t pause_ns = budget_pause_ns(&sampler.budget, interval_ns);
  sampler.lowered_ns += pause_ns - interval_ns;
  sampler.next_ns += vary(pause_ns);
}

static void ask(Due due) {
  uint64_t asked = atomic_load(&sampler.asked);
  uint64_t waiting = asked - atomic_load(&sampler.answered);
  if (waiting == kMostDue) return;
  sampler.due[asked % kMostDue] = due;
  atomic_store(&sampler.asked, asked + 1);
}

// Where the thread that had the GIL kept it until we got it, it was in a C function.
static void ask_for_missed(void) {
  uint64_t now_ns = clock_monotonic_ns();
  while (sampler.next_ns <= now_ns) {
    ask((Due){.at_ns = clock_ns() - (now_ns - sampler.next_ns)});
    plan_next();
  }
}

static void look(void) {
  Due due = {.at_ns = clock_ns()};
  if (repeat_samples(due.at_ns)) return;
  PyThreadState *holder = python_gil_holder(sampler.interpreter);
  if (holder && holder == atomic_load(&sampler.main_state)) {
    due.place = python_place(holder);
    ask(due);
    ask_main_thread();
    return;
  }
  ask(due);
  PyThreadState *last_holder = python_last_gil_holder(sampler.interpreter);
  unsigned long switches = python_gil_switches(sampler.interpreter);
  if (holder) python_ask_for_gil(sampler.interpreter);
  PyEval_RestoreThread(sampler.state);
  bool nobody_between = python_gil_switches(sampler.interpreter) == switches + 1;
  if (holder && nobody_between) ask_for_missed();
  take_samples(nobody_between ? last_holder : NULL, switches);
  PyEval_SaveThread();
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

// When to wake up. Looks that we were too late for are made up for, if they are few, at half the
// distance: at once they would see nothing new.
static uint64_t wake_ns(uint64_t now_ns) {
  if (sampler.next_ns > now_ns) return sampler.next_ns;
  if (now_ns - sampler.next_ns > MAKE_UP_NS) sampler.next_ns = now_ns - MAKE_UP_NS;
  return now_ns + budget_pause_ns(&sampler.budget, atomic_load(&sampler.interval_ns)) / 2;
}

static void *run(void *Py_UNUSED(argument)) {
  ask_for_short_turns();
  uint64_t now_ns = sampler.next_ns = clock_monotonic_ns();
  plan_next();
  while (wait_until(wake_ns(now_ns))) {
    plan_next();
    look();
    now_ns = clock_monotonic_ns();
    if (now_ns - sampler.accounted_ns >= ACCOUNT_NS) account();
  }
  PyEval_RestoreThread(sampler.state);
  account();
  uint64_t end_ns = clock_ns();
  if (end_ns - sampler.last_ns > LONG_PAUSE_NS) {
    ask((Due){.at_ns = end_ns});
    take_samples(NULL, 0);
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
  sampler.accounted_ns = clock_monotonic_ns();
  sampler.thread_ns = 0;
  sampler.looker = NULL;
  atomic_store(&sampler.answered, atomic_load(&sampler.asked));
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
  atomic_store(&sampler.interval_ns, (uint64_t)(1e9 / rate_hz));
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
  return Py_BuildValue(
      "{sKsKsKsKsKsKsKsKsK}", "rounds", (unsigned long long)sampler.rounds, "late",
      (unsigned long long)sampler.late, "samples", (unsigned long long)sampler.samples, "cut",
      (unsigned long long)sampler.cut, "unseen", (unsigned long long)sampler.unseen, "elapsed_ns",
      (unsigned long long)sampler.elapsed_ns, "wall_ns", (unsigned long long)sampler.wall_ns,
      "own_ns", (unsigned long long)sampler.own_ns, "lowered_ns",
      (unsigned long long)sampler.lowered_ns);
}

PyObject *sampler_forget(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing)) {
  sampler.rounds = sampler.late = sampler.samples = sampler.cut = sampler.unseen = 0;
  sampler.elapsed_ns = sampler.wall_ns = sampler.own_ns = sampler.lowered_ns = 0;
  sampler.looking = false;  // nor is anybody, who was in the process that forked this one
  sampler.budget = kFirstBudget;
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
