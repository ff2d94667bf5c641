// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guard.h"

static int write_all(int fd, const char *data, size_t length) {
  while (length > 0) {
    ssize_t written = write(fd, data, length);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : EIO;
    data += written;
    length -= (size_t)written;
  }
  return 0;
}

int file_replace(const char *part, const char *path, const void *data, size_t length) {
  int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return errno;
  FsizeGuard guard;
  fsize_guard_enter(&guard);
  int failure = write_all(fd, data, length);
  fsize_guard_leave(&guard, failure == EFBIG);
  if (close(fd) != 0 && failure == 0) failure = errno;
  if (failure == 0 && rename(part, path) != 0) failure = errno;
  if (failure) unlink(part);
  return failure;
}

bool folder_is_private(const char *path) {
  struct stat info;
  if (lstat(path, &info) != 0 || !S_ISDIR(info.st_mode)) return false;
  return info.st_uid == getuid() && !(info.st_mode & 077);
}

int file_is_locked(const char *path, bool *locked) {
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return errno;
  int failure = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  close(fd);
  *locked = failure == EWOULDBLOCK;
  return *locked ? 0 : failure;
}
