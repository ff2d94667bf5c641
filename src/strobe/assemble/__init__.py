# SPDX-License-Identifier: Apache-2.0
"""Turns a trace, whatever its origin, into tables, and derives how spans relate to each other.

Nesting, phases, links, steps, collectives, batches and stacks, each in a module of its own.
"""
