# SPDX-License-Identifier: Apache-2.0
"""Texts of Linux's files, cut short, and what they say; the figures are worked out by hand."""

from __future__ import annotations

from strobe.sources.host import proc


def test_memory_of_a_process() -> None:
    rollup = """\
55d0-7ffe ---p 00000000 00:00 0                          [rollup]
Rss:               20480 kB
Pss:               10240 kB
Private_Clean:      1024 kB
Private_Dirty:      2048 kB
"""
    assert proc.shares(rollup) == (10 << 20, 3 << 20)
    assert proc.resident_bytes("5000 300 100 1 0 400 0\n") == 300 * proc.PAGE_BYTES


def test_the_name_of_a_process_may_hold_anything() -> None:
    # pid (comm) state ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt utime stime
    stat = "77 (a ) b (c) S 42 77 77 0 -1 4194560 900 0 0 0 150 50 0 0 20 0 1 0 5000\n"

    assert proc.processor_ns(stat) == (200 * proc.TICK_NS, 42)


def test_the_system_is_busy_when_it_is_neither_idle_nor_waiting_for_disks() -> None:
    # user nice system idle iowait irq softirq steal guest guest_nice
    stat = "cpu  10 20 30 400 50 6 7 8 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\nctxt 1234\nbtime 99\n"

    assert proc.busy_and_all(stat) == (81, 531)
    assert proc.fields(stat)["ctxt"] == 1234


def test_only_whole_disks_and_no_loopback_count() -> None:
    diskstats = """\
   8       0 sda 10 0 100 5 20 0 200 9 0 1 1
   8       1 sda1 10 0 100 5 20 0 200 9 0 1 1
   7       0 loop0 1 0 999 5 1 0 999 9 0 1 1
 259       0 nvme0n1 1 0 1 0 1 0 3 0 0 0 0
"""
    net_dev = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo: 5000 1 0 0 0 0 0 0 5000 1 0
  eth0:1000 1 0 0 0 0 0 0 70 1 0
  eth1: 2000 1 0 0 0 0 0 0 7 1 0
"""
    assert proc.disk_bytes(diskstats, frozenset({"sda", "nvme0n1"})) == (101 * 512, 203 * 512)
    assert proc.network_bytes(net_dev) == (3000, 77)


def test_a_cgroup_is_held_up_only_if_it_has_a_limit() -> None:
    of_v2 = "usage_usec 9\nnr_periods 8\nnr_throttled 3\nthrottled_usec 1500\n"
    of_v1 = "nr_periods 8\nnr_throttled 3\nthrottled_time 1500000\n"

    assert proc.throttled(of_v2) == proc.throttled(of_v1) == (1_500_000, 3)
    assert proc.throttled("nr_periods 0\nnr_throttled 0\nthrottled_time 0\n") is None
    assert proc.throttled("") is None
