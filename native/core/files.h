// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdbool.h>
#include <stddef.h>

// Writes a new file `part` and gives it the name `path`, so that a reader sees the old file or the
// new one, whole. 0 or an errno; then `part` is gone again.
int file_replace(const char *part, const char *path, const void *data, size_t length);

// Whether there is a directory, no link to one, that belongs to this user and is closed to others.
bool folder_is_private(const char *path);

// Whether somebody holds the lock (flock) on this file, which is made if need be. 0 or an errno.
int file_is_locked(const char *path, bool *locked);
