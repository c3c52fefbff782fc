"""Texts of requests into token ids within bounds: what cannot fit is refused before it is encoded.

To encode takes a core for seconds a megabyte, and a hundred times the text's memory. So long texts are encoded one
after the other, each without holding the interpreter, and what that took is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from forerun.core.device import trim_heap
from forerun.server.errors import ApiError, too_long
from forerun.text.prompt import Encoded
from forerun.text.tokenizer import Tokenizer

T = TypeVar("T")

LARGE = 1 << 16
"""Bytes of a body from which only one is worked on at a time."""
HEAD = 12
"""Letters for each token that may be: if so much of a long text is too long, all of it is."""
MARGIN = 16
"""Tokens by which the cut itself may change their number."""
READ_AT_ONCE, READ_S = 2, 1.0
"""Large bodies that are received at once, and how long others wait for that: a slow client must not stop them."""
COUNTED_NBYTES = 1_000_000
"""Bytes of a text that is only counted or taken apart, at most: it may be longer than the context."""


class BodyQueue:
    """Runs what reads requests in other threads: what is large one after the other."""

    def __init__(self) -> None:
        self._large = asyncio.Semaphore(1)
        self._num_large = 0
        self._received = asyncio.Semaphore(READ_AT_ONCE)

    async def receive(self, read: Callable[[], Awaitable[T]], nbytes: int) -> T:
        """A body of so many bytes: where many large ones come, each part of each costs the event loop a turn."""
        if nbytes < LARGE:
            return await read()
        has_turn = False
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                has_turn = await self._received.acquire()
        try:
            return await read()
        finally:
            if has_turn:
                self._received.release()

    async def run(self, work: Callable[[], T], nbytes: int) -> T:
        """The result of work on so many bytes."""
        if nbytes < LARGE:
            return await asyncio.to_thread(work)
        self._num_large += 1
        try:
            async with self._large:
                return await asyncio.to_thread(work)
        finally:
            self._num_large -= 1
            if not self._num_large:  # what the last one leaves; it takes its time
                await asyncio.to_thread(trim_heap)


def encoded(
    text: str,
    tokenizer: Tokenizer,
    limit: int,
    context: int,
    param: str,
    *,
    bos: bool | None = None,
) -> Encoded:
    """The tokens of a text. Raises ApiError for a long one that has more than `limit`; of others the tokens tell."""
    check_fits(text, tokenizer, limit, context, param)
    return Encoded(tokenizer.encode(text, bos=bos), text)


def check_fits(text: str, tokenizer: Tokenizer, limit: int, context: int, param: str) -> None:
    """Raise ApiError if the text has too many bytes for `limit` tokens, or if its beginning has too many tokens."""
    if len(text) <= HEAD * limit:
        return
    nbytes = len(text.encode("utf-8", "surrogatepass"))
    num_least = nbytes // tokenizer.longest
    if num_least <= limit:
        num_least = len(tokenizer.encode(text[: HEAD * limit], bos=False)) - MARGIN
    if num_least > limit:
        raise too_long(num_least, limit, context, param, is_least=True)


def check_counted(text: str, param: str) -> None:
    """Raise ApiError for a text that is too long even to be counted."""
    nbytes = len(text.encode("utf-8", "surrogatepass"))
    if nbytes > COUNTED_NBYTES:
        raise ApiError(
            400,
            f"the text has {nbytes} bytes, at most {COUNTED_NBYTES} are counted at once: "
            "send it in parts",
            param=param,
        )
