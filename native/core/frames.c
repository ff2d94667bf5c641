// SPDX-License-Identifier: Apache-2.0
// The one place that walks CPython's frames as they are. Its public functions make an object of each
// frame, which takes most of a sample's time, and need the GIL.
#define Py_BUILD_CORE
#include <Python.h>
#if PY_VERSION_HEX >= 0x030b0000
#include <internal/pycore_frame.h>
#else
#include <frameobject.h>
#endif
#undef Py_BUILD_CORE

#include <sys/uio.h>
#include <unistd.h>

#include "hooks.h"

#if PY_VERSION_HEX >= 0x030b0000
typedef struct _PyInterpreterFrame Frame;
#else
typedef PyFrameObject Frame;
#endif

// May be asked without the GIL: then the frame may be gone.
static Frame *innermost(PyThreadState *thread) {
#if PY_VERSION_HEX >= 0x030d0000
  return *(Frame *volatile *)&thread->current_frame;
#elif PY_VERSION_HEX >= 0x030b0000
  return *(Frame *volatile *)&(*(_PyCFrame *volatile *)&thread->cframe)->current_frame;
#else
  return *(Frame *volatile *)&thread->frame;
#endif
}

static Frame *caller(const Frame *frame) {
#if PY_VERSION_HEX >= 0x030b0000
  return frame->previous;
#else
  return frame->f_back;
#endif
}

static PyCodeObject *code_of(const Frame *frame) {
#if PY_VERSION_HEX >= 0x030d0000
  return (PyCodeObject *)frame->f_executable;
#else
  return frame->f_code;
#endif
}

// CPython's own, between Python code and C code that calls each other.
static bool is_incomplete(Frame *frame) {
#if PY_VERSION_HEX >= 0x030b0000
  return _PyFrame_IsIncomplete(frame);
#else
  (void)frame;
  return false;
#endif
}

int python_codes(PyThreadState *thread, const PythonPlace *place, PyCodeObject **codes, int most) {
  int count = 0;
  bool found = place->frame == NULL;
  for (Frame *frame = innermost(thread); frame && count < most; frame = caller(frame)) {
    if (is_incomplete(frame)) continue;
    PyCodeObject *code = code_of(frame);
    if (!found && frame == place->frame && (place->code == NULL || place->code == code)) {
      found = true;
      count = 0;
    } else if (!found && place->code && frame == place->caller) {
      found = true;
      codes[0] = place->code;
      count = 1;
    }
    if (count < most) codes[count++] = code;
  }
  return count;
}

// Fails where the memory is not there any more, instead of ending the program.
static bool read_memory(void *into, const void *from, size_t length) {
  struct iovec local = {into, length}, remote = {(void *)(uintptr_t)from, length};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)length;
}

PythonPlace python_place(PyThreadState *thread) {
  PythonPlace place = {.frame = innermost(thread)};
  Frame frame;
  bool was_read = place.frame && read_memory(&frame, place.frame, sizeof frame);
  if (was_read && innermost(thread) == place.frame) {
    place.code = code_of(&frame);
    place.caller = caller(&frame);
  }
  return place;
}
