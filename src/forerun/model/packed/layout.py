"""The bytes of a file of packed weights: a header of whole pages, then the weights, and their checksum.

It knows no models and no folder. The file begins with a mark and the CRC of the header, which is one line of JSON.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"forerun packed weights\n"
_CHUNK = 4 << 20
_LONGEST_HEADER = 16 << 20
_PAGE, _HUGE_PAGE = 4096, 2 << 20

Bytes = NDArray[np.uint8]


def header_bytes(header: Mapping[str, object]) -> bytes:
    """Write a header, with zeros to the end of its page: weights that are mapped lie as the kernels want them."""
    text = json.dumps(header).encode() + b"\n"
    line = _MAGIC + b"%d " % zlib.crc32(text) + text
    return line + bytes(-len(line) % _PAGE)


def read_header(file: BinaryIO) -> dict:
    """Return the header. Raises ValueError."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it holds something else")
    crc, _, text = file.readline(_LONGEST_HEADER).partition(b" ")
    if crc != b"%d" % zlib.crc32(text):
        raise ValueError("its header has changed")
    header: dict = json.loads(text)
    return header


def first_weight(file: BinaryIO) -> int:
    """Return where the weights begin, when the header has been read. Raises ValueError."""
    if any(file.read(-file.tell() % _PAGE)):
        raise ValueError("its header has changed")
    return file.tell()


def in_huge_pages(parts: Iterable[memoryview]) -> Iterator[bytearray]:
    """Yield the bytes by huge pages: Linux keeps what is written so in huge pages, and maps it as such."""
    page = bytearray()
    for part in parts:
        for first in range(0, len(part), _HUGE_PAGE):
            page += part[first : first + _HUGE_PAGE]
            if len(page) >= _HUGE_PAGE:
                yield page[:_HUGE_PAGE]
                del page[:_HUGE_PAGE]
    yield page


def chunks(arrays: Iterable[Bytes]) -> Iterator[Bytes]:
    """Yield pieces of the arrays."""
    for array in arrays:
        for first in range(0, len(array), _CHUNK):
            yield array[first : first + _CHUNK]


def checksum(data: Bytes) -> int:
    """Return the sum of the 8-byte words modulo 2^64: as fast as memory, so that every start can afford it."""
    words, rest = np.split(data, [len(data) // 8 * 8])  # vectors may end within a word
    return int(np.add.reduce(words.view(np.uint64))) + int.from_bytes(rest.tobytes(), "little")
