"""GGUF files written byte by byte, so that they can lie: metadata, tensor entries and data need not fit."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ALIGNMENT = 32


@dataclass
class Entry:
    """A tensor's entry in the header; `dims` in GGUF's order, the width first."""

    name: str
    dims: tuple[int, ...]
    type_id: int
    offset: int


@dataclass
class RawGguf:
    metadata: dict[str, Any]
    entries: list[Entry] = field(default_factory=list)
    data: bytes = b""

    @classmethod
    def of(cls, metadata: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> RawGguf:
        """A file that tells the truth, whole numbers as int64 and all others in fp32."""
        raw = cls(dict(metadata))
        for name, values in tensors.items():
            kind, dtype = (27, np.int64) if values.dtype.kind == "i" else (0, np.float32)
            raw.entries.append(Entry(name, values.shape[::-1], kind, len(raw.data)))
            raw.data += padded(np.ascontiguousarray(values, dtype).tobytes())
        return raw

    def to_bytes(self) -> bytes:
        header = b"GGUF" + struct.pack("<IQQ", 3, len(self.entries), len(self.metadata))
        for key, value in self.metadata.items():
            kind = kind_of(value)
            header += text(key) + struct.pack("<I", kind) + payload(kind, value)
        for entry in self.entries:
            header += text(entry.name) + struct.pack("<I", len(entry.dims))
            header += struct.pack(f"<{len(entry.dims)}Q", *entry.dims)
            header += struct.pack("<IQ", entry.type_id, entry.offset)
        return padded(header) + self.data


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


NUMBERS = {4: "I", 6: "f", 7: "?", 10: "Q", 11: "q"}
STRING, ARRAY = 8, 9


def kind_of(value: Any) -> int:
    """The number of a value's type: u32 where it fits, else i64 or u64."""
    if isinstance(value, bool):
        return 7
    if isinstance(value, int):
        return 4 if 0 <= value < 1 << 32 else 11 if value < 1 << 63 else 10
    return {float: 6, str: STRING, list: ARRAY}[type(value)]


def payload(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return text(value)
    if kind != ARRAY:
        return struct.pack(f"<{NUMBERS[kind]}", value)
    inner = max(map(kind_of, value), default=4)
    head = struct.pack("<IQ", inner, len(value))
    return head + b"".join(payload(inner, item) for item in value)
