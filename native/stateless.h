// SPDX-License-Identifier: Apache-2.0
//
// A module that keeps nothing between calls: every interpreter may have it, with or without a GIL.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyModuleDef_Slot kStatelessSlots[] = {
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};
