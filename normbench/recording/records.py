"""TensorBoard's file format (TFRecord): length, checksum, data, checksum.

TensorBoard's own writer computes its checksum byte by byte in Python, 0.25 µs a byte: 2 ms for a probed step, 25 ms
with histograms, 25 s to read 100 MB. The one below does the same with numpy, 40 times as fast.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), bits reversed
BLOCK = 256  # bytes


def _tables() -> np.ndarray:
    """(BLOCK, 256): what a byte at a position of a block adds to the block's checksum."""
    last: np.ndarray = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        last = (last >> 1) ^ np.where(last & 1, np.uint32(POLYNOMIAL), np.uint32(0))
    tables = np.empty((BLOCK, 256), np.uint32)
    tables[-1] = last
    for position in range(BLOCK - 2, -1, -1):
        following = tables[position + 1]
        tables[position] = last[following & 0xFF] ^ (following >> 8)
    return tables


TABLES = _tables()
FLAT = TABLES.ravel()
OFFSETS = np.arange(BLOCK) * 256
FIRST, SECOND, THIRD, FOURTH = TABLES[:4].tolist()


def crc32c(data: bytes) -> int:
    """CRC-32C of at least four bytes.

    A checksum is linear: a block's is the xor of what its bytes add, and the state that the blocks before it left
    behind counts as if xored into its first four bytes. Zeros in front of everything add nothing.
    """
    padding = -len(data) % BLOCK
    padded = np.zeros(padding + len(data), np.uint8)
    padded[padding:] = np.frombuffer(data, np.uint8)
    padded[padding : padding + 4] ^= 0xFF
    state = 0
    for block in np.bitwise_xor.reduce(FLAT.take(padded.reshape(-1, BLOCK) + OFFSETS), axis=1).tolist():
        state = (
            block ^ FIRST[state & 0xFF] ^ SECOND[state >> 8 & 0xFF] ^ THIRD[state >> 16 & 0xFF] ^ FOURTH[state >> 24]
        )
    return state ^ 0xFFFFFFFF


def masked_crc32c(data: bytes) -> bytes:
    """TFRecord's checksum: CRC-32C turned by 15 bits, plus a constant, little-endian."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(data: bytes) -> bytes:
    """One record, as it stands in the file."""
    length = struct.pack("<Q", len(data))
    return length + masked_crc32c(length) + data + masked_crc32c(data)


def read_records(path: Path) -> Iterator[bytes]:
    """The records of a file, up to its end or the first that is torn or damaged."""
    with open(path, "rb") as file:
        while len(length := file.read(8)) == 8 and file.read(4) == masked_crc32c(length):
            (size,) = struct.unpack("<Q", length)
            data = file.read(size)
            if len(data) < max(size, 4) or file.read(4) != masked_crc32c(data):
                return
            yield data
