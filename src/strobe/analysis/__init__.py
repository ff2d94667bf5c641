# SPDX-License-Identifier: Apache-2.0
"""What tables mean: one question a module, each a function of Tables that returns frames.

Tables are read through Tables alone; nothing here records, formats numbers or prints.
"""
