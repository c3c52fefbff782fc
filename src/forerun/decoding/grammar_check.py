"""Whether a client's grammar compiles within bounds, tried in a process of its own before the server compiles it.

llguidance compiles in native code that no thread can interrupt, and its own limits do not bound all of it: 55
expressions joined by `&` take minutes in spite of them, a `multipleOf` seconds. So a grammar is compiled in a process
first, which is killed after a time limit or when its client has gone; what has passed there takes no more time here.
What masks take depends on the model's tokens and is bounded here: `mask_clock.py`.

The process imports llguidance alone. Its vocabulary is the bytes and the control tokens, with the model's ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forerun.system.helper_process import HelperProcess, answer_questions, bound_growth

if TYPE_CHECKING:
    from llguidance import LLParserLimits

MAX_S = 5.0
"""Seconds that it may take beside what the machine computes otherwise: large schemas take a tenth of one."""
MAX_MEMORY_NBYTES = 384 << 20
"""Address space of the process until it has begun; then it may grow by `GROWTH_NBYTES`. See `engine.memory`."""
GROWTH_NBYTES = 20 << 20
"""Memory of one grammar: large schemas take half of it."""
MAX_LEXER_STATES = 100_000
"""States of the automata of one grammar, about 0.5 kB each; a text with a `maxLength` takes 20 of them a token."""
MAX_MASK_ITEMS = 1_000_000
"""Of Earley's parser in one mask: without a lexer every character of every token is one or more."""
MAX_SYMBOLS = 5_000
"""Of a grammar: a row of Earley's parser may hold an item of each, and takes their square. Tool sets have hundreds."""
LEXER_FUEL = 200_000
"""What expressions may cost when a grammar begins, and half of it in one mask."""


def new_limits() -> LLParserLimits:
    """Return what llguidance may do for a grammar, and for one mask of it."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_lexer_states=MAX_LEXER_STATES,
        step_max_items=MAX_MASK_ITEMS,
        max_grammar_size=MAX_SYMBOLS,
        initial_lexer_fuel=LEXER_FUEL,
        step_lexer_fuel=LEXER_FUEL // 2,
        verbose_errors=False,
    )


class GrammarProcess(HelperProcess):
    """The process for one vocabulary."""

    def __init__(self, vocab_size: int, eos_ids: frozenset[int], special: dict[int, str]) -> None:
        """`special` are the control tokens' texts."""
        super().__init__(__name__, "the grammar", MAX_S, MAX_MEMORY_NBYTES)
        self._vocabulary = [vocab_size, sorted(eos_ids), [*special.items()]]
        self._is_prepared = False

    def prepare(self) -> None:
        """Hand it the vocabulary, once."""
        if not self._is_prepared:
            self.ask(self._vocabulary)
            self._is_prepared = True


class _Bytes:
    """A vocabulary as llguidance asks for it."""

    def __init__(self, vocab_size: int, eos_ids: list[int], special: list[tuple[int, str]]) -> None:
        self.eos_token_id, self.bos_token_id = eos_ids[0], None
        self.tokens = [b""] * vocab_size
        self.special_token_ids = [i for i, _ in special]
        for i, text in special:
            self.tokens[i] = text.encode()
        free = (i for i, token in enumerate(self.tokens) if not token)
        self._ids = dict(zip(range(256), free, strict=False))
        for byte, i in self._ids.items():
            self.tokens[i] = bytes([byte])

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("a text is needed")
        return [self._ids[byte] for byte in text.encode() if byte in self._ids]


def main() -> None:
    """Take the vocabulary of the first question; answer with what is wrong with the grammars of the others."""
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

    words: LLTokenizer | None = None
    limits: LLParserLimits | None = None

    def answer(given: Any) -> str:
        nonlocal words, limits
        if words is None:
            vocab_size, eos_ids, special = given
            wrapper: Any = TokenizerWrapper(_Bytes(vocab_size, eos_ids, special))
            words = LLTokenizer(wrapper, eos_token=eos_ids, slices=[])
            limits = new_limits()
            bound_growth(GROWTH_NBYTES)
            return ""
        matcher = LLMatcher(words, given, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()
            return "it is too complex" if matcher.is_error() else ""
        return str(matcher.get_error())

    answer_questions(answer)


if __name__ == "__main__":
    main()
