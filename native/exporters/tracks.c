// SPDX-License-Identifier: Apache-2.0
// Tracks as Python sees them.
#include "tracks.h"

#include <stdlib.h>

#include "buffers.h"
#include "writers.h"

static PyObject *turns_as_bytes(Tracks *self) {
  return PyBytes_FromStringAndSize((const char *)self->turns,
                                   (Py_ssize_t)(self->turn_count * sizeof *self->turns));
}

static PyObject *tracks_place(PyObject *object, PyObject *const *args, Py_ssize_t nargs) {
  Tracks *self = (Tracks *)object;
  static const Argument kArguments[] = {
      {"lane", kInt32}, {"start_ns", kInt64}, {"dur_ns", kInt64}, {"track", kOut32}};
  Buffers buffers;
  if (!check_count("place", nargs, 5) || !acquire_buffers("place", kArguments, 4, args, &buffers)) {
    return NULL;
  }
  Py_buffer *views = buffers.views;
  Py_ssize_t rows = views[0].shape[0];
  PyObject *result = NULL;
  int32_t *lane_of_new = malloc((size_t)(rows + 1) * sizeof *lane_of_new);
  if (lane_of_new == NULL) {
    PyErr_NoMemory();
  } else if (rows >= INT32_MAX) {
    PyErr_SetString(PyExc_ValueError, "place(): too many rows for one call");
  } else if (check_rows("place", "start_ns", views[1].shape[0], rows) &&
             check_rows("place", "dur_ns", views[2].shape[0], rows) &&
             check_rows("place", "track", views[3].shape[0], rows)) {
    size_t before = self->track_count;
    self->turn_count = 0;
    self->wants_turns = PyObject_IsTrue(args[4]) > 0;
    // The GIL also keeps other threads from this object, so it is held here: 10 ns per row.
    Outcome outcome =
        place_rows(self, rows, views[0].buf, views[1].buf, views[2].buf, views[3].buf, lane_of_new);
    if (outcome.fault == NULL) {
      PyObject *turns = turns_as_bytes(self);
      size_t size = (self->track_count - before) * sizeof *lane_of_new;
      result =
          turns ? Py_BuildValue("Ny#", turns, (const char *)lane_of_new, (Py_ssize_t)size) : NULL;
    } else if (*outcome.fault == '\0') {
      PyErr_NoMemory();
    } else {
      PyErr_Format(PyExc_ValueError, "place(): row %zd %s", outcome.row, outcome.fault);
    }
  }
  free(lane_of_new);
  release_buffers(&buffers);
  return result;
}

PyDoc_STRVAR(tracks_place_doc,
             "place(lane, start_ns, dur_ns, track, wants_turns, /)\n--\n\n"
             "Write each row's track. Return the turns, if wanted, and the lanes of the tracks "
             "made (int32).");

static PyObject *tracks_finish(PyObject *object, PyObject *unused) {
  (void)unused;
  Tracks *self = (Tracks *)object;
  self->turn_count = 0;
  self->wants_turns = true;
  if (!end_all(self)) {
    return PyErr_NoMemory();
  }
  return turns_as_bytes(self);
}

PyDoc_STRVAR(tracks_finish_doc, "finish()\n--\n\nReturn the ends of all spans that are open.");

static void tracks_dealloc(PyObject *object) {
  Tracks *self = (Tracks *)object;
  PyTypeObject *type = Py_TYPE(object);
  for (size_t i = 0; i < self->lane_count; i++) {
    free(self->lanes[i].spans);
    free(self->lanes[i].heap);
  }
  for (size_t i = 0; i < self->track_count; i++) {
    free(self->tracks[i].ends);
  }
  free(self->lanes);
  free(self->tracks);
  free(self->turns);
  type->tp_free(object);
  Py_DECREF(type);
}

static PyMethodDef kTracksMethods[] = {
    {"place", (PyCFunction)(void (*)(void))tracks_place, METH_FASTCALL, tracks_place_doc},
    {"finish", tracks_finish, METH_NOARGS, tracks_finish_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot kTracksSlots[] = {
    {Py_tp_doc, "Tracks on which spans nest, whatever they do on their lane; rows come by start."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, tracks_dealloc},
    {Py_tp_methods, kTracksMethods},
    {0, NULL},
};

PyType_Spec kTracksSpec = {
    .name = "strobe.exporters._writers.Tracks",
    .basicsize = sizeof(Tracks),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = kTracksSlots,
};
