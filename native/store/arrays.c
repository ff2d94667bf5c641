// SPDX-License-Identifier: Apache-2.0
// strobe.store._arrays: has numpy put large arrays into files without names. Pages of a file are the
// system's to write out and take back when memory is scarce; those of malloc() are not.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

// As numpy/ndarraytypes.h declares them, since version 1.22.
typedef struct {
  void *ctx;
  void *(*malloc)(void *ctx, size_t size);
  void *(*calloc)(void *ctx, size_t count, size_t size);
  void *(*realloc)(void *ctx, void *data, size_t size);
  void (*free)(void *ctx, void *data, size_t size);
} Allocator;

typedef struct {
  char name[127];
  uint8_t version;
  Allocator allocator;
} Handler;

#define CAPSULE_NAME "mem_handler"

enum {
  // Places in numpy's table of functions, which are part of its binary interface.
  kFeatureVersion = 211,
  kSetHandler = 304,
  kLeastFeatureVersion = 0x0f,  // 1.22
  kLeastPageBytes = 4096,
  kMostBlocks = 4096,
};

typedef struct {
  Handler handler;
  PyObject *before;  // the capsule of the handler that small arrays are left to
  Allocator small;
  size_t least_bytes;
  uint64_t left_free_bytes;
  char folder[];
} Spill;

// Large blocks that are in use, of all spills. There are few.
static struct {
  pthread_mutex_t lock;
  size_t count;
  struct {
    void *data;
    size_t bytes;
  } blocks[kMostBlocks];
} large = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool note_block(void *data, size_t bytes) {
  pthread_mutex_lock(&large.lock);
  bool has_room = large.count < kMostBlocks;
  if (has_room) {
    large.blocks[large.count].data = data;
    large.blocks[large.count++].bytes = bytes;
  }
  pthread_mutex_unlock(&large.lock);
  return has_room;
}

// The size of a large block, 0 if it is none; forgets it if told to.
static size_t find_block(const void *data, bool forget) {
  if ((uintptr_t)data % kLeastPageBytes != 0) return 0;
  size_t bytes = 0;
  pthread_mutex_lock(&large.lock);
  for (size_t i = 0; i < large.count && bytes == 0; i++) {
    if (large.blocks[i].data != data) continue;
    bytes = large.blocks[i].bytes;
    if (forget) large.blocks[i] = large.blocks[--large.count];
  }
  pthread_mutex_unlock(&large.lock);
  return bytes;
}

// A file without a name, that the disk has room for: touching a hole on a full disk is SIGBUS.
static int make_file(const Spill *spill, size_t bytes) {
  struct statvfs disk;
  if (statvfs(spill->folder, &disk) != 0) return -1;
  if ((uint64_t)disk.f_bavail * disk.f_frsize < bytes + spill->left_free_bytes) return -1;
  int fd = open(spill->folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) {  // not every file system has such files
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/strobe-XXXXXX", spill->folder);
    if (length < 0 || (size_t)length >= sizeof path) return -1;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0) return -1;
    unlink(path);
  }
  if (posix_fallocate(fd, 0, (off_t)bytes) == 0) return fd;
  close(fd);
  return -1;
}

// NULL where there is no room, which numpy makes a MemoryError of.
static void *map_block(const Spill *spill, size_t bytes) {
  int fd = make_file(spill, bytes);
  if (fd < 0) return NULL;
  void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (data == MAP_FAILED) return NULL;
  if (note_block(data, bytes)) return data;
  munmap(data, bytes);
  return NULL;
}

static void *spill_malloc(void *context, size_t bytes) {
  const Spill *spill = context;
  if (bytes < spill->least_bytes) return spill->small.malloc(spill->small.ctx, bytes);
  return map_block(spill, bytes);
}

static void *spill_calloc(void *context, size_t count, size_t size) {
  const Spill *spill = context;
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) return NULL;
  if (bytes < spill->least_bytes) return spill->small.calloc(spill->small.ctx, count, size);
  return map_block(spill, bytes);  // a file's bytes are 0 at first
}

static void spill_free(void *context, void *data, size_t bytes) {
  const Spill *spill = context;
  size_t mapped = find_block(data, true);
  if (mapped) {
    munmap(data, mapped);
  } else {
    spill->small.free(spill->small.ctx, data, bytes);
  }
}

// What is small stays so, however it grows: numpy does not say how large it was.
static void *spill_realloc(void *context, void *data, size_t bytes) {
  const Spill *spill = context;
  if (data == NULL) return spill_malloc(context, bytes);
  size_t mapped = find_block(data, false);
  if (mapped == 0) return spill->small.realloc(spill->small.ctx, data, bytes);
  void *moved = spill_malloc(context, bytes);
  if (moved == NULL) return NULL;
  memcpy(moved, data, bytes < mapped ? bytes : mapped);
  spill_free(context, data, mapped);
  return moved;
}

// Arrays have a reference to the capsule as long as they live.
static void destroy(PyObject *capsule) {
  Spill *spill = PyCapsule_GetPointer(capsule, CAPSULE_NAME);
  if (spill == NULL) return;
  Py_XDECREF(spill->before);
  free(spill);
}

static PyObject *make_capsule(const char *folder, Py_ssize_t least, unsigned long long left_free) {
  Spill *spill = calloc(1, sizeof *spill + strlen(folder) + 1);
  if (spill == NULL) return PyErr_NoMemory();
  strcpy(spill->handler.name, "strobe");
  spill->handler.version = 1;
  spill->handler.allocator =
      (Allocator){spill, spill_malloc, spill_calloc, spill_realloc, spill_free};
  spill->least_bytes = (size_t)least;
  spill->left_free_bytes = left_free;
  strcpy(spill->folder, folder);
  PyObject *capsule = PyCapsule_New(spill, CAPSULE_NAME, destroy);
  if (capsule == NULL) free(spill);
  return capsule;
}

typedef PyObject *(*SetHandler)(PyObject *handler);

static SetHandler find_set_handler(PyObject *table) {
  void **functions = PyCapsule_GetPointer(table, NULL);
  if (functions == NULL) return NULL;
  unsigned version = ((unsigned (*)(void))functions[kFeatureVersion])();
  if (version >= kLeastFeatureVersion) return (SetHandler)functions[kSetHandler];
  PyErr_SetString(PyExc_ImportError, "numpy is too old to have handlers of memory");
  return NULL;
}

static PyObject *begin(PyObject *module, PyObject *arguments) {
  (void)module;
  PyObject *table, *folder = NULL;
  Py_ssize_t least;
  unsigned long long left_free;
  if (!PyArg_ParseTuple(arguments, "OO&nK", &table, PyUnicode_FSConverter, &folder, &least,
                        &left_free)) {
    return NULL;
  }
  SetHandler set_handler = find_set_handler(table);
  PyObject *ours = set_handler ? make_capsule(PyBytes_AS_STRING(folder), least, left_free) : NULL;
  Py_DECREF(folder);
  if (ours == NULL) return NULL;
  PyObject *before = set_handler(ours);
  if (before) {
    Spill *spill = PyCapsule_GetPointer(ours, CAPSULE_NAME);
    const Handler *handler = PyCapsule_GetPointer(before, CAPSULE_NAME);
    spill->before = Py_NewRef(before);
    spill->small = handler->allocator;
  }
  Py_DECREF(ours);
  return before;
}

static PyObject *end(PyObject *module, PyObject *arguments) {
  (void)module;
  PyObject *table, *before;
  if (!PyArg_ParseTuple(arguments, "OO", &table, &before)) return NULL;
  SetHandler set_handler = find_set_handler(table);
  PyObject *ours = set_handler ? set_handler(before) : NULL;
  if (ours == NULL) return NULL;
  Py_DECREF(ours);
  Py_RETURN_NONE;
}

static PyMethodDef kMethods[] = {
    {"begin", begin, METH_VARARGS,
     "begin(table, folder, least_bytes, left_free_bytes, /)\n--\n\n"
     "From now on, numpy's arrays of at least so many bytes are in files of a folder, as long as "
     "so "
     "much stays free there. `table` is numpy's _ARRAY_API. Returns what end() takes."},
    {"end", end, METH_VARARGS,
     "end(table, before, /)\n--\n\nNew arrays are where they were before begin()."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef kModule = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_arrays",
    .m_doc = "Large arrays of numpy's in files without names.",
    .m_size = -1,
    .m_methods = kMethods,
};

PyMODINIT_FUNC PyInit__arrays(void) {
  return PyModule_Create(&kModule);
}
