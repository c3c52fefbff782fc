"""What tokens stand for: how vocabularies write bytes as text."""

from __future__ import annotations

import re
from functools import cache

SPACE = "\u2581"
"""How SentencePiece writes a space."""

_NO_BYTE = 0xFFFF
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level_piece(token: str) -> bytes:
    """Return the bytes of a token of a byte-level BPE, which writes each byte as one visible character."""
    try:
        return token.translate(_byte_of_character()).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def sentencepiece_piece(token: str) -> bytes:
    """Return the bytes of a SentencePiece token: text with visible spaces, or one byte as `<0x0A>`."""
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE, " ").encode()


@cache
def _byte_of_character() -> dict[int, int]:
    """GPT-2's table: printable Latin-1 stands for itself, the other bytes are U+0100 and on, and stand for none."""
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(0x100) if byte not in own]
    return {0x100 + i: byte for i, byte in enumerate(others)} | dict.fromkeys(others, _NO_BYTE)
