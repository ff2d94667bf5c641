// SPDX-License-Identifier: Apache-2.0
// strobe.exporters._writers: the hot loops of strobe.exporters as Python sees them.
// exporters/_writers_python.py is its twin.
#include "writers.h"

// Cast twice, as METH_FASTCALL takes another signature than PyCFunction says.
static PyMethodDef kMethods[] = {
    {"chrome_events", (PyCFunction)(void (*)(void))chrome_events, METH_FASTCALL,
     "chrome_events(out, head, heads, heads_at, start_ns, dur_ns, between, track, tracks, "
     "tracks_at, arguments, arguments_at, first, /)\n--\n\n"
     "Write rows from `first` on while they fit; return the next row and the bytes used."},
    {"perfetto_packets", (PyCFunction)(void (*)(void))perfetto_packets, METH_FASTCALL,
     "perfetto_packets(out, turns, head, heads, heads_at, tracks, tracks_at, bodies, "
     "bodies_at, tail, first, /)\n--\n\n"
     "Write turns from `first` on while they fit; return the next turn and the bytes used."},
    {"number_hashes", (PyCFunction)(void (*)(void))number_hashes, METH_FASTCALL,
     "number_hashes(hashes, code, first, /)\n--\n\n"
     "Number distinct hashes as they come: write each row's number, and each number's first "
     "row; return how many there are."},
    {"annotate", (PyCFunction)(void (*)(void))annotate, METH_FASTCALL,
     "annotate(texts, texts_at, /)\n--\n\n"
     "Return JSON objects as the debug_annotations of TrackEvents: bytes and offsets."},
    {NULL, NULL, 0, NULL},
};

static int add_types(PyObject *module) {
  PyObject *type = PyType_FromSpec(&kTracksSpec);
  if (type == NULL) {
    return -1;
  }
  int failed = PyModule_AddObjectRef(module, "Tracks", type);
  Py_DECREF(type);
  return failed;
}

static PyModuleDef_Slot kSlots[] = {
    {Py_mod_exec, (void *)add_types},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef kModule = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_writers",
    .m_doc = "Rows of pieces -> bytes; the Python twin is strobe.exporters._writers_python.",
    .m_size = 0,
    .m_methods = kMethods,
    .m_slots = kSlots,
};

PyMODINIT_FUNC PyInit__writers(void) {
  return PyModuleDef_Init(&kModule);
}
