# SPDX-License-Identifier: Apache-2.0
"""Tables as text for people. The only room that rounds, colours and adds units."""
