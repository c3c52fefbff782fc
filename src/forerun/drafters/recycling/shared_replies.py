"""The table of a tokenizer that has none: counted, once, on another model's replies that come with the package.

It predicts less than one of the model's own replies, and far more than none: on SmolLM2 with its own table hidden, the
first 20 answers take 16 % fewer passes (dev/LOG.md).
"""

from __future__ import annotations

import gzip
import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forerun.core.arrays import Ids
from forerun.drafters.recycling import table_file
from forerun.drafters.recycling.table_file import REPLIES
from forerun.system import background, files

if TYPE_CHECKING:
    from forerun.drafters.base.ngram.counting import Text

ORDER, NBYTES = 4, 2_000_000
"""Tokens of a context, and the size at most: twice as many bytes guess no better on another model's answers."""

Encode = Callable[[str], Sequence[int]]

_log = logging.getLogger(__name__)


def path_of(vocabulary: str) -> Path:
    """Return the file for the table of a tokenizer, by its fingerprint; it may not exist yet."""
    return table_file.tables_dir() / f"{REPLIES}-{vocabulary}{table_file.SUFFIX}"


def make_meanwhile(encode: Encode, vocabulary: str, vocab_size: int) -> Path:
    """Make a tokenizer's table in a thread, in seconds, and return the path it will have.

    A process that ends waits for the counting, not for the reading: the next one begins anew.
    """
    name = f"forerun-table-{vocabulary}"
    if not background.running(name):
        background.start(name, lambda: _make_aside(encode, vocabulary, vocab_size))
    return path_of(vocabulary)


def replies() -> Iterator[str]:
    """Yield the replies that come with the package."""
    file = resources.files("forerun.drafters.recycling") / "shipped" / f"{REPLIES}.txt.gz"
    yield from gzip.decompress(file.read_bytes()).decode().split("\0")


def texts(encode: Encode) -> Iterator[Text]:
    """Yield the replies as texts to count, without prompts."""
    for reply in replies():
        yield (), array("i", encode(reply))


def frequent_tokens(encode: Encode, vocabulary: str) -> Ids:
    """Rank the tokens of the replies, the most frequent first; counted once for a tokenizer (1 s), then from a file."""
    path = table_file.tables_dir() / f"{REPLIES}-{vocabulary}.tokens"
    try:
        return np.fromfile(path, np.int64)
    except FileNotFoundError:
        counts = np.bincount(np.concatenate([tokens for _, tokens in texts(encode)]))
    ranked: Ids = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    try:
        files.replace(path, ranked.tobytes())
    except OSError as error:
        _log.info("the list of frequent tokens is not kept: %s", error)
    return ranked


def make(
    encode: Encode, vocabulary: str, vocab_size: int, is_over: Callable[[], bool] = lambda: False
) -> None:
    """Count the replies as a tokenizer reads them, and write the table; stop reading once `is_over`.

    Raises OSError.
    """
    from forerun.drafters.base.ngram import counting  # which most processes never need

    path = path_of(vocabulary)
    files.make_folder(path.parent)
    encoded = list[counting.Text]()
    for text in texts(encode):
        if is_over():
            return
        encoded.append(text)
    table = counting.make(encoded, ORDER, NBYTES, counting.id_nbytes(vocab_size))
    table_file.save(path, table, model=REPLIES, vocabulary=vocabulary)


def _make_aside(encode: Encode, vocabulary: str, vocab_size: int) -> None:
    _log.info(
        "the tokenizer has no table of next tokens: one is made, once, of the replies that ship"
    )
    try:
        make(encode, vocabulary, vocab_size, background.is_ending)
    except OSError as error:
        _log.warning("no table of next tokens is kept, the next start makes it again: %s", error)
