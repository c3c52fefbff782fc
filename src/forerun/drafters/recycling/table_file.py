"""Tables of next tokens as files: made by `forerun train table`, bound to a tokenizer, mapped when they are opened.

A file is a line of magic, one JSON line padded to 64 bytes, then `FileTable`'s offsets and data.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forerun.core.errors import LoadError
from forerun.drafters.base.ngram.token_table import PackedTable
from forerun.drafters.base.vocabulary import Vocabulary, fingerprint
from forerun.hub.names import cache_root
from forerun.model.kernels import native
from forerun.system import files

if TYPE_CHECKING:
    from forerun._native import FileTable

SUFFIX = ".table"
REPLIES = "replies-2"
"""Stands for the model in a table of the replies that ship (`shared_replies.py`): other replies, another name."""
HEAD_NBYTES = 1024
"""Bytes of a file's header at most."""
_MAGIC = b"forerun token table 1\n"
_ALIGNED = 64
_LONGEST_HEAD = 4096

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableHeader:
    """The header of a table: what it was made of, and its sizes."""

    model: str
    vocabulary: str
    """`fingerprint` of the tokenizer whose token ids the table has."""
    order: int
    token_nbytes: int
    num_tokens: int
    """Tokens of the answers it was counted on."""
    num_contexts: int
    num_buckets: int
    nbytes: int
    checksum: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value).__name__ != field.type or (isinstance(value, int) and value < 0):
                raise ValueError(f"its {field.name} is {value!r}")


def tables_dir() -> Path:
    """Return the folder of tables that were made on this machine; it may not exist yet."""
    return cache_root() / "tables"


def known_tables() -> Iterator[Path]:
    """Yield the tables of this machine, then those that came with the package."""
    packaged = Path(str(resources.files("forerun.drafters.recycling"))) / "shipped"
    for folder in (tables_dir(), packaged):
        try:
            yield from sorted(folder.glob(f"*{SUFFIX}"))
        except OSError as error:
            _log.warning("no tables of %s are used: %s", folder, error)


def load_known(vocabulary: Vocabulary, model: str | None) -> FileTable | None:
    """Load the table made for this tokenizer, for this model if there is one; broken ones are logged and skipped."""
    for path in fitting_tables(vocabulary, model):
        try:
            return load(path, vocabulary)
        except LoadError as error:
            _log.warning("passed over: %s", error)
    return None


def fitting_tables(vocabulary: Vocabulary, model: str | None) -> list[Path]:
    """List the tables made for this tokenizer, those for this model first, that of shipped replies last.

    Broken ones are logged and left out.
    """
    ours, fitting = None, []
    for path in known_tables():
        try:
            header = read_header(path)
        except LoadError as error:
            _log.warning("passed over: %s", error)
            continue
        ours = ours or fingerprint(vocabulary)
        if header.vocabulary == ours:
            rank = 0 if header.model == model else 2 if header.model == REPLIES else 1
            fitting.append((rank, path))
    return [path for _, path in sorted(fitting, key=lambda ranked: ranked[0])]


def read_header(path: Path) -> TableHeader:
    """Read the header of a file. Raises LoadError."""
    return _read_head(path)[0]


def load(path: Path, vocabulary: Vocabulary) -> FileTable:
    """Map the table in a file. Raises LoadError for a torn or foreign file and for another tokenizer's."""
    native.require()
    from forerun import _native

    header, start = _read_head(path)
    if (ours := fingerprint(vocabulary)) != header.vocabulary:
        raise LoadError(
            f"{path} was made for the tokenizer of {header.model} ({header.vocabulary}), this model has another "
            f"({ours}): make one with forerun train table"
        )
    middle = 4 * (header.num_buckets + 1)
    wanted, size = start + middle + header.nbytes, path.stat().st_size
    if size != wanted:
        raise LoadError(f"{path} is incomplete: {size} bytes of {wanted}")
    try:
        bytes_ = np.memmap(path, np.uint8, "r", offset=start)
        if zlib.crc32(bytes_.data) != header.checksum:
            raise LoadError(f"{path} is damaged: its bytes have changed")
        offsets = np.asarray(bytes_[:middle]).view(np.uint32)
        return _native.FileTable(offsets, np.asarray(bytes_[middle:]), header.token_nbytes)
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} cannot be read as a table: {error}") from error


def save(path: Path, table: PackedTable, *, model: str, vocabulary: str) -> None:
    """Write a table whole or not at all. Raises OSError."""
    offsets, data = table.offsets.tobytes(), table.data.tobytes()
    header = TableHeader(
        model=model,
        vocabulary=vocabulary,
        order=table.order,
        token_nbytes=table.token_nbytes,
        num_tokens=table.num_tokens,
        num_contexts=table.num_contexts,
        num_buckets=len(table.offsets) - 1,
        nbytes=len(data),
        checksum=zlib.crc32(data, zlib.crc32(offsets)),
    )
    files.replace(path, _head(header), offsets, data)


def _read_head(path: Path) -> tuple[TableHeader, int]:
    """Read the header; return it, and where the bytes begin."""
    try:
        with files.open_to_read(path) as file:
            if file.readline(len(_MAGIC)) != _MAGIC:
                raise ValueError("it is not a table of tokens")
            header, start = TableHeader(**json.loads(file.readline(_LONGEST_HEAD))), file.tell()
            if start % _ALIGNED:
                raise ValueError(f"its first line has {start - len(_MAGIC)} bytes")
            return header, start
    except FileNotFoundError:
        raise LoadError(f"no such table: {path}; forerun train table makes one") from None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise LoadError(f"{path} cannot be read as a table: {error}") from error


def _head(header: TableHeader) -> bytes:
    text = json.dumps(asdict(header)).encode()
    padding = -(len(_MAGIC) + len(text) + 1) % _ALIGNED
    return _MAGIC + text + b" " * padding + b"\n"
