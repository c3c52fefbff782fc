"""Grammars of structured outputs, by the library llguidance: schemas and expressions become states (`grammar.py`).

llguidance follows an Earley parser over bytes and walks the vocabulary's trie for a mask. Where bytes are forced, it
allows only the tokens that the tokenizer itself would write, so what is forced has one tokenization as well.
A state is copied in a few microseconds: branches of a draft need no way back.
"""

from __future__ import annotations

import json
import re
import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from forerun.core.errors import RequestError, one_line, short_repr
from forerun.core.structured import LAYOUT, StructuredOutputsParams
from forerun.decoding import gbnf, schemas
from forerun.decoding.grammar import Compiling, GrammarState
from forerun.decoding.grammar_check import GrammarProcess, new_limits
from forerun.decoding.mask_clock import MaskClock, MaskThread
from forerun.decoding.thought import Anything, ReasoningBudget, behind_mark, closing
from forerun.system import background, processes
from forerun.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NUM_CACHED = 16
"""Grammars that are kept compiled."""
SOON_S = 0.02
"""A grammar that is compiled within it is waited for: a pass takes as long."""
MAX_LOST = 2
"""Masks that took too long and are still being computed, above which no grammar is begun."""
GIVE_UP_S = 1.0
"""Seconds after the last request asked for a grammar until its compilation is stopped."""

_LONG_NUMBER = re.compile(r"[0-9]{16}")
"""Whole numbers of so many digits in a schema inside a grammar can crash the library (`schemas.LARGEST`)."""
_MARK = b"\x02"
"""A byte that no word is made with."""
STACK_NBYTES = 256 * 1024 * 1024
"""Of the thread that compiles; only what is used of it takes memory."""
_stack_size = threading.Lock()
"""The size holds for all threads that start meanwhile."""


class Grammars:
    """Compiles the structured outputs of requests for one vocabulary, from any thread; the latest ones are kept.

    One at a time, in a thread of low priority that ends with the program.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, *, are_strangers: bool = False
    ) -> None:
        """`vocab_size` is that of the model's head, which may be padded.

        What `are_strangers` ask for is first tried in a process, which bounds its time and memory.
        """
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._words: LLTokenizer | None = None
        self._known: OrderedDict[StructuredOutputsParams, _Job] = OrderedDict()
        self._jobs: deque[_Job] = deque()
        self._is_compiling, self._is_closed = False, False
        self._is_checked = are_strangers
        self._process: GrammarProcess | None = None
        self._masks = MaskThread() if are_strangers else None
        self._first_masks = MaskThread() if are_strangers else None
        """A thread of their own, so that they never delay a request that is decoding."""
        self._lock, self._words_lock = threading.Lock(), threading.Lock()

    def read_ahead(self) -> None:
        """Read the vocabulary in a thread, before the first request needs it; that request raises what is wrong."""

        def read() -> None:
            with suppress(RequestError):
                self._vocabulary()

        background.start("forerun-vocabulary", read, yields=False)

    def close(self) -> None:
        """Give up what is being compiled and what waits for it, at once."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.close()

    def start(self, wanted: StructuredOutputsParams) -> GrammarState:
        """Return the state before the first token. Raises RequestError for what cannot be compiled."""
        if wanted.bounds_thought:
            return self._own(wanted, None)
        return self._compiling(wanted)[0].state

    def begin(self, wanted: StructuredOutputsParams) -> GrammarState:
        """Return the state before the first token, at once: what takes long goes on in a thread.

        That is the first grammar of all, for which the vocabulary is read. Raises RequestError for what cannot be
        compiled, as does such a state.
        """
        if wanted.bounds_thought:
            return self.start(wanted)
        state, is_new = self._compiling(wanted)
        return state.state if state.is_ready(SOON_S if is_new else 0) else state

    def _compiling(self, wanted: StructuredOutputsParams) -> tuple[Compiling, bool]:
        """Return a grammar that may still be in the making, and whether that begins now."""
        with self._lock:
            is_new = wanted not in self._known
            job = self._known.setdefault(wanted, _Job(wanted))
            state = Compiling(job.compiled, partial(self._own, wanted))
            job.waiting.add(state)
            if is_new:
                self._jobs.append(job)
            if is_new and not self._is_compiling:
                self._is_compiling = True
                _start_with_deep_stack(self._compile_all)
            self._known.move_to_end(wanted)
            while len(self._known) > NUM_CACHED:
                self._known.popitem(last=False)
            return state, is_new

    def _own(self, wanted: StructuredOutputsParams, compiled: Guided | None) -> GrammarState:
        """Return a request's own state before the first token; without a grammar anything may come."""
        state: GrammarState = Anything()
        if compiled is not None:
            clock = None if self._masks is None else MaskClock(self._masks)
            with self._lock:
                state = compiled.copy(clock)
        mark = wanted.after
        if not mark or wanted.max_before is None:
            return state
        tokens = self._tokenizer.encode(closing(mark), bos=False)
        given = (mark.encode(), (*tokens,), wanted.max_before)
        return ReasoningBudget(state, self._vocab_size, self._tokenizer, *given)

    def _vocabulary(self) -> LLTokenizer:
        with self._words_lock:
            self._words = self._words or self._read_vocabulary()
            return self._words

    def _read_vocabulary(self) -> LLTokenizer:
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ModuleNotFoundError as error:
            raise RequestError(
                "structured output needs llguidance: pip install '.[structured]' in a clone brings it"
            ) from error
        if not self._tokenizer.eos_ids:
            raise RequestError("structured output needs a model with an end token")
        words: Any = TokenizerWrapper(_Vocabulary(self._tokenizer, self._vocab_size))
        # Masks of texts are as fast with those of 10 and 30 characters alone, and made in two thirds of the time.
        slices = LLTokenizer.general_slices()[1:3]
        return LLTokenizer(words, eos_token=sorted(self._tokenizer.eos_ids), slices=slices)

    def _compile_all(self) -> None:
        """Compile what waits, one after the other, to the last."""
        processes.lower_priority()
        while True:
            with self._lock:
                if not self._jobs:
                    self._is_compiling = False
                    return
                job = self._jobs.popleft()
            try:
                job.compiled.set_result(self._compile(job))
            except BaseException as error:
                with self._lock:
                    if self._known.get(job.wanted) is job:
                        del self._known[job.wanted]
                # Its frames hold the matcher, and the waiting sequence holds the error.
                traceback.clear_frames(error.__traceback__)
                job.compiled.set_exception(error.with_traceback(None))

    def _compile(self, job: _Job) -> Guided:
        wanted, words = job.wanted, self._vocabulary()
        try:
            source = behind_mark(_source(wanted, self._tokenizer), wanted.after, self._tokenizer)
        except Exception as error:  # its own kinds, by what is wrong with the grammar
            raise _refused(wanted, str(error)) from None
        has_long = wanted.grammar is not None and _LONG_NUMBER.search(wanted.grammar)
        if self._is_checked or has_long:
            self._check(job, source)
        return self._matched(wanted, source, words)

    def _check(self, job: _Job, source: str) -> None:
        """Try a grammar in the process, which is a new one after each that it refuses: they leave memory behind."""
        if not self._is_wanted(job):
            raise RequestError("the request of this grammar has ended")
        if sum(one.num_lost for one in (self._masks, self._first_masks) if one) >= MAX_LOST:
            raise _refused(
                job.wanted, "others are too complex, and being worked at: try again later"
            )
        if self._process is None or not self._process.is_alive:
            special = {i: text for text, i in self._tokenizer.special_texts.items()}
            self._process = GrammarProcess(self._vocab_size, self._tokenizer.eos_ids, special)
        try:
            self._process.prepare()
            why = self._process.ask(source, lambda: self._is_wanted(job))
        except RequestError as error:
            raise _refused(job.wanted, str(error)) from None
        if why:
            self._process.close()
            raise _refused(job.wanted, why)

    def _is_wanted(self, job: _Job) -> bool:
        if job.waiting:
            job.wanted_s = time.monotonic()
        return not self._is_closed and time.monotonic() - job.wanted_s < GIVE_UP_S

    def _matched(self, wanted: StructuredOutputsParams, source: str, words: LLTokenizer) -> Guided:
        from llguidance import LLMatcher

        limits = new_limits()
        matcher = LLMatcher(words, source, log_level=0, limits=limits)
        if matcher.is_error():
            raise _refused(wanted, matcher.get_error())
        clock = None if self._first_masks is None else MaskClock(self._first_masks)
        state = Guided(matcher, self._vocab_size, self._tokenizer.eos_ids, clock)
        try:
            tokens = np.flatnonzero(state.allowed())
        except RequestError:
            raise _refused(wanted, "it is too complex") from None
        if not len(tokens):
            raise _refused(wanted, "nothing matches it")
        after = state.advance(int(tokens[-1]))
        if matcher.is_error() or (after is not None and after.matcher.is_error()):
            raise _refused(wanted, "it is too complex")
        return state.copy()


@dataclass(slots=True, eq=False)
class _Job:
    """A grammar that is compiled, or will be, and the sequences that wait for it."""

    wanted: StructuredOutputsParams
    compiled: Future[Guided] = field(default_factory=Future)
    waiting: WeakSet[Compiling] = field(default_factory=WeakSet)
    wanted_s: float = field(default_factory=time.monotonic)
    """When somebody was last seen to wait."""


def _start_with_deep_stack(work: Callable[[], None]) -> None:
    """Run in a thread of its own: the library compiles recursively, and a short text can hold thousands of rules."""
    with _stack_size:
        before = threading.stack_size(STACK_NBYTES)
        try:
            background.watch("forerun-grammars", work)
        finally:
            threading.stack_size(before)


@dataclass(frozen=True, slots=True, eq=False)
class Guided:
    """What is allowed after some tokens. Nothing here changes the matcher: it is copied first."""

    matcher: LLMatcher
    vocab_size: int
    eos_ids: frozenset[int]
    clock: MaskClock | None = None

    def copy(self, clock: MaskClock | None = None) -> Guided:
        """Return the same state for another request: a matcher is one thread's at a time."""
        return Guided(self.matcher.deep_copy(), self.vocab_size, self.eos_ids, clock)

    def allowed(self) -> NDArray[np.bool_]:
        """Mask (V,) of the tokens that may come next. Raises RequestError if the library has reached its limits."""
        compute = self.matcher.compute_bitmask
        bits = b""
        if not self.matcher.is_error():
            bits = compute() if self.clock is None else self.clock.run(compute)
        if self.matcher.is_error():
            raise RequestError(
                "structured_outputs became too complex in mid-answer: make bounds of repetitions smaller, "
                f"or leave a pattern out ({one_line(self.matcher.get_error())})"
            )
        found = np.unpackbits(
            np.frombuffer(bits, np.uint8), count=self.vocab_size, bitorder="little"
        )
        mask: NDArray[np.bool_] = found.view(np.bool_)
        return mask

    def allows(self, token: int) -> bool:
        """Return what the mask says of one token."""
        if token in self.eos_ids:
            return self.matcher.is_accepting()
        return self.matcher.validate_tokens([token]) == 1

    def advance(self, token: int) -> Guided | None:
        """Return the state after one more token; None if the token is not allowed or ends the output."""
        if token in self.eos_ids:
            return None
        matcher = self.matcher.deep_copy()
        if matcher.try_consume_tokens([token]) or matcher.is_error():
            return Guided(matcher, self.vocab_size, self.eos_ids, self.clock)
        return None

    def forced(self) -> Sequence[int]:
        """Return the coming tokens that have no alternative."""
        if not self.matcher.compute_ff_bytes():  # the cheaper question
            return ()
        return self.matcher.compute_ff_tokens()


class _Vocabulary:
    """A tokenizer as llguidance asks for it: the bytes of every id, and a text's own tokens."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id, self.bos_token_id = min(tokenizer.eos_ids), tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(i) or b"" for i in range(vocab_size)]
        self.special_token_ids = [i for i in range(vocab_size) if tokenizer.is_special(i)]
        self._mark = (
            self.tokens.index(_MARK) if tokenizer.adds_space and _MARK in self.tokens else None
        )

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("a text is needed")
        if self._mark is None:
            return self._tokenizer.encode(text, special=False, bos=False)
        # SentencePiece would put a space before it, which is not part of an answer.
        ids = self._tokenizer.encode(_MARK.decode() + text, special=False, bos=False)
        return ids[ids.index(self._mark) + 1 :]


def _source(wanted: StructuredOutputsParams, tokenizer: Tokenizer) -> str:
    """Return the grammar as llguidance reads it."""
    from llguidance import LLMatcher

    if wanted.regex is not None:
        return LLMatcher.grammar_from_regex(wanted.regex)
    if wanted.choice is not None:
        return LLMatcher.grammar_from_regex("|".join(map(gbnf.spelled, wanted.choice)))
    if wanted.grammar is not None and not gbnf.is_gbnf(wanted.grammar):
        return LLMatcher.grammar_from_lark(wanted.grammar)
    if wanted.grammar is not None:
        expression, lark = gbnf.translated(wanted.grammar, tokenizer.one_id)
        if expression is not None:
            return LLMatcher.grammar_from_regex(expression)
        return LLMatcher.grammar_from_lark(lark)
    space = wanted.whitespace_pattern
    layout: Any = LAYOUT if space is None else {"whitespace_pattern": space}
    given = {"type": "object"} if wanted.json is None else json.loads(str(wanted.json))
    schema = schemas.prepared(given)
    if (value := schemas.large_value(schema)) is not None:
        raise ValueError(f"a value beyond 2**53 cannot be written exactly: {short_repr(value)}")
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=layout)


_ITS_OPTION = re.compile(r"Enable 'coerce_one_of' option to approximate oneOf with anyOf")


def _refused(wanted: StructuredOutputsParams, why: str) -> RequestError:
    why = _ITS_OPTION.sub("Write anyOf where no value fits two of them", why)
    return RequestError(f"{wanted.kind} cannot be used: {one_line(why)}")
