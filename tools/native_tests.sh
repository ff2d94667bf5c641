#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compile the C core without Python, together with tests/native, and run the tests.
#
#   tools/native_tests.sh plain|asan|tsan|valgrind|aarch64
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:-}
compiler=${CC:-gcc}
flags=(-std=c11 -g -O1 -fno-omit-frame-pointer -Wall -Wextra -Werror -pthread)
runner=()

need() {  # need TOOL DEBIAN_PACKAGE
    command -v "$1" >/dev/null || {
        echo "native_tests: $1 is not installed; on Debian: apt install $2" >&2
        exit 1
    }
}

case $kind in
plain) ;;
asan)
    flags+=(-fsanitize=address,undefined -fno-sanitize-recover=all)
    # It warns of "__asan_handle_no_return" in the spawn tests: it does not know clone()'s stacks.
    export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1
    export UBSAN_OPTIONS=print_stacktrace=1
    ;;
tsan)
    # The one fence is about another process, which ThreadSanitizer does not see anyway.
    flags+=(-fsanitize=thread -Wno-tsan -DRECORDS_PER_THREAD=60000)
    # A forked child has none of the parent's threads, and starts a drain thread of its own.
    export TSAN_OPTIONS=die_after_fork=0:report_thread_leaks=0:halt_on_error=1:second_deadlock_stack=1
    # ThreadSanitizer cannot place its shadow when the kernel randomises addresses widely.
    if setarch "$(uname -m)" -R true 2>/dev/null; then
        runner=(setarch "$(uname -m)" -R)
    fi
    ;;
valgrind)
    need valgrind valgrind
    flags+=(-DRECORDS_PER_THREAD=60000 -DUNDER_VALGRIND)
    runner=(valgrind --quiet --error-exitcode=99 --leak-check=full
        --show-leak-kinds=definite,indirect --errors-for-leak-kinds=definite,indirect
        --track-fds=no --fair-sched=yes)
    ;;
aarch64)
    compiler=aarch64-linux-gnu-gcc
    need "$compiler" "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
    need qemu-aarch64 qemu-user
    flags+=(-static -DRECORDS_PER_THREAD=100000 -DUNDER_QEMU)
    runner=(qemu-aarch64)
    ;;
*)
    echo "usage: tools/native_tests.sh plain|asan|tsan|valgrind|aarch64" >&2
    exit 2
    ;;
esac
need "$compiler" gcc

shopt -s nullglob
# Python objects are touched in few files only, directly or through a header that includes
# Python.h; the others must stand without Python.
sources=()
folders=(-Inative -Inative/core -Inative/importers -Isrc/strobe/record)
for file in native/core/*.c native/importers/*.c; do
    needs=$("$compiler" -M -MG "${folders[@]}" "$file")
    [[ $needs == *Python.h* ]] || sources+=("$file")
done
tests=(tests/native/*.c)
if ((${#sources[@]} == 0 || ${#tests[@]} == 0)); then
    echo "native_tests: no C files in native/core or tests/native" >&2
    exit 1
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/files"
"$compiler" "${flags[@]}" "${folders[@]}" -Itests/native -o "$scratch/native_tests" \
    "${sources[@]}" "${tests[@]}"
"${runner[@]}" "$scratch/native_tests" "$scratch/files"
echo "native_tests: $kind passed"
