// SPDX-License-Identifier: Apache-2.0
#pragma once

// Starts a program that is nobody's child: it has its own session, no file of ours but error_path as
// standard error. Its priority is ours, because we wait until it runs; it may lower it itself. Nothing of this process is copied, no SIGCHLD is sent, and the
// program's own wait() never sees it. 0 or an errno; ECHILD where it would become our child after
// all, because this process adopts orphans (it is the first of a container, or a subreaper).
int spawn_detached(char *const argv[], char *const envp[], const char *error_path);
