// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stddef.h>
#include <stdint.h>

// CRC-32 as zlib computes it: crc32_update(crc32_update(0, a), b) is the CRC of a then b.
uint32_t crc32_update(uint32_t crc, const void *data, size_t length);
