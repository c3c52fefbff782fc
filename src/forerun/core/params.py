"""SamplingParams: what one request asks for. The names and meanings are vLLM's; the limits are checked here, once."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from forerun.core import typed
from forerun.core.errors import RequestError, reject, short_repr
from forerun.core.options import option
from forerun.core.structured import StructuredOutputsParams

T = TypeVar("T")
_log = logging.getLogger(__name__)

MAX_N = 64
MAX_SEED = 2**63 - 1
MAX_STOPS = 64
HOT = 2.0
"""The highest temperature that OpenAI allows."""
MAX_LOGPROBS = 100
MAX_IDS = 1024
"""Token ids with a bias, and such that end the output: they are checked for every completion."""

SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")
"""The order in which a distribution is filtered, if none is asked for."""
LLAMA_SAMPLERS = ("penalties", "top_k", "top_p", "min_p", "temperature")
"""llama.cpp's: filters see the model's own distribution."""
_OFF: Mapping[str, Mapping[str, float]] = {
    "penalties": {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "temperature": {"temperature": 1.0},
    "top_k": {"top_k": 0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
}
"""By sampler: its parameters at the values that mean off."""

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(
        (
            *("allowed_token_ids", "extra_args", "guided_decoding", "repetition_detection"),
            *("logprob_token_ids", "prompt_logprob_start", "prompt_logprob_token_ids"),
            *("skip_reading_prefix_cache", "stream_interval", "trace_decode_token_ids"),
            "truncate_prompt_tokens",
        ),
        (None,),
    ),
    **dict.fromkeys(("output_text_buffer_length", "routed_experts_prompt_start"), (None, 0)),
    "bad_words": (None, []),
    "best_of": (None, 1),
    "early_stopping": (False,),
    "flat_logprobs": (False,),
    "length_penalty": (1.0,),
    "logits_processors": (None, []),
    "output_kind": (None, "CUMULATIVE", "FINAL_ONLY"),  # stream has what is new, the others all
    "skip_clone": (True, False),  # a request keeps a copy
    "spaces_between_special_tokens": (True, False),  # only tokenizers that are not fast put any
    "thinking_token_budget": (None, -1),
    "use_beam_search": (False,),
}
"""vLLM's parameters that do nothing here, with the values that ask for nothing."""


def _named(cls: type[T]) -> type[T]:
    """Let a dataclass accept `_NEUTRAL` as well, and name the closest parameter for one that is unknown."""
    init = cls.__init__
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]

    @functools.wraps(init)
    def read(self: T, **values: Any) -> None:
        others = {name: values.pop(name) for name in values.keys() - known}
        reject(others, _NEUTRAL, "sampling parameter", known)
        init(self, **values)

    cls.__init__ = read  # type: ignore[method-assign,assignment]
    return cls


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The marks around what a model thinks."""

    open: str
    """What a thought at the beginning of an answer begins with; empty for none."""
    closes: tuple[str, ...]
    """What ends one."""
    has_begun: bool = False
    """Whether the prompt ends within a thought."""
    again: str = ""
    """What begins another one later; empty where there is one at most."""


@_named
@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens and when to stop. Raises RequestError for a value out of range and an unknown name.

    A request keeps a copy, so attributes may be set at any time; they are checked when it is submitted. vLLM's other
    parameters are accepted with the value that asks for nothing, such as `best_of=1`.
    """

    n: int = 1
    """Number of completions of the prompt."""
    temperature: float = option(1.0, "--temp")
    """0 is greedy; 1 is the model's own distribution."""
    top_k: int = option(0)
    """Keep the k likeliest tokens; 0 or -1 keeps all."""
    top_p: float = option(1.0)
    """Keep the smallest set of tokens whose probability reaches p."""
    min_p: float = option(0.0)
    """Drop tokens below min_p times the likeliest token's probability."""
    repetition_penalty: float = option(1.0, "--repeat-penalty")
    """Divide positive, multiply negative logits of tokens seen in prompt or output; above 1 discourages."""
    presence_penalty: float = option(0.0)
    """Subtracted once from the logits of tokens seen in the output."""
    frequency_penalty: float = option(0.0)
    """Subtracted from the logits of tokens seen in the output, times their count."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of the given token ids, -100 to 100."""
    seed: int | None = option(None, "-s")
    """The same seed and request give the same tokens, whatever is drafted or in the batch; -1 or none draws one."""
    stop: tuple[str, ...] = option((), "-r", "--reverse-prompt")
    """Strings that end the output; they are not part of it."""
    stop_behind: ThoughtMarks | None = None
    """Look for stop strings behind the thought between these marks, as chats do; None: in all of the output."""
    include_stop_str_in_output: bool = False
    """Keep the stop string, or the text of the end token, at the end of the output."""
    stop_token_ids: tuple[int, ...] = option(())
    """Token ids that end the output."""
    ignore_eos: bool = option(False)
    """Go on after the model's end-of-text token."""
    max_tokens: int | None = option(16, "-n", "--n-predict", "--predict")
    """At most this many new tokens, 0 only reads the prompt; none or -1: as many as the context holds."""
    min_tokens: int = option(0)
    """No end before this many new tokens: the end tokens cannot be drawn until then."""
    logprobs: int | None = None
    """Report the emitted token's log-probability and this many of the likeliest; 0 reports the token's alone."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt, given the tokens before them; the prompt is then read in full."""
    detokenize: bool = True
    """Turn the tokens into text."""
    skip_special_tokens: bool = True
    """Leave control tokens out of the text."""
    samplers: tuple[str, ...] = SAMPLERS
    """The order in which the distribution is filtered, by llama.cpp's names; those that are not named are off."""
    t_max_predict_ms: int | None = None
    """End at the first token behind a line's end so many milliseconds after the first one; none or 0: never."""
    structured_outputs: StructuredOutputsParams | None = None
    """The form the output must have: a JSON schema, a regular expression, one of some texts, or a grammar."""

    pooling: Literal["last", "mean", "none"] | None = None
    """Keep the prompt's states for a vector of it: the last token's, their mean, or all. The prompt is read in full."""

    prediction: str | tuple[int, ...] | None = None
    """What the output is expected to be (text or token ids), such as a file before a small change: it is drafted,
    nothing else."""
    max_draft: int | None = None
    """At most this many drafted tokens a pass; 0 is plain decoding. No value changes a token."""

    def __post_init__(self) -> None:
        self._read_spellings()
        typed.settle(self, RequestError, _ALLOWED)
        for name, none in (("max_tokens", (-1,)), ("seed", (-1,)), ("t_max_predict_ms", (-1, 0))):
            if getattr(self, name) in none:  # as in llama.cpp
                setattr(self, name, None)
        self._leave_out_samplers()
        for name, allowed, holds in _LIMITS:
            value = getattr(self, name)
            if not (value is None or holds(value)):
                message = f"{name} must be {allowed}, got {short_repr(value)}"
                raise RequestError(message, option=name)
        if self.temperature > HOT:
            _note_hot()
        if self.structured_outputs is not None:
            self._check_structured()

    def _read_spellings(self) -> None:
        """Read what vLLM and JSON write otherwise."""
        if isinstance(self.stop, str):
            self.stop = (self.stop,)
        for name, empty in (("stop", ()), ("stop_token_ids", ()), ("logit_bias", {})):
            if getattr(self, name) is None:
                setattr(self, name, empty)
        if isinstance(self.logit_bias, Mapping):
            self.logit_bias = {_token_id(key): value for key, value in self.logit_bias.items()}
        if self.logprobs is True:
            self.logprobs = 1
        if self.prompt_logprobs is True:
            self.prompt_logprobs = 1
        if isinstance(self.structured_outputs, Mapping):
            self.structured_outputs = StructuredOutputsParams.read(self.structured_outputs)

    def _leave_out_samplers(self) -> None:
        """Set what belongs to samplers that were not asked for to what means off."""
        for sampler in _OFF.keys() - {*self.samplers}:
            for name, value in _OFF[sampler].items():
                if (name, self.temperature) != ("temperature", 0):  # what is greedy stays so
                    setattr(self, name, value)

    def _check_structured(self) -> None:
        if (
            isinstance(form := self.structured_outputs, StructuredOutputsParams)
            and form.bounds_thought
        ):
            return  # what follows the thought has no form
        for name in ("ignore_eos", "min_tokens"):
            if getattr(self, name):
                raise RequestError(
                    f"{name} and structured_outputs exclude each other: the form says where it ends"
                )

    @property
    def is_greedy(self) -> bool:
        """Tell whether the likeliest token is taken at every position."""
        return self.temperature == 0.0

    @property
    def has_filters(self) -> bool:
        """Tell whether some tokens may be left out before one is drawn."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def has_penalties(self) -> bool:
        """Tell whether logits depend on the tokens so far."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


@functools.cache
def _note_hot() -> None:
    _log.warning(
        "temperature above 2 gives hardly more than random text: OpenAI's range ends there"
    )


def _token_id(key: Any) -> Any:
    """Return the id that a key of a JSON object names; any other key as it is."""
    return int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key


def _within(low: float, high: float = math.inf) -> Callable[[Any], bool]:
    return lambda value: low <= value <= high


def allowed(name: str) -> str | None:
    """Say what a parameter may be, for an error; None for one without limits.

    >>> allowed("temperature")
    'from 0 to 100'
    """
    return next((words for field, words, _ in _LIMITS if field == name), None)


_LIMITS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("n", f"a whole number from 1 to {MAX_N}", _within(1, MAX_N)),
    ("temperature", "from 0 to 100", _within(0, 100)),
    ("top_k", "a whole number, -1 or 0 for all", _within(-1)),
    ("top_p", "above 0 and at most 1", lambda v: 0 < v <= 1),
    ("min_p", "from 0 to 1", _within(0, 1)),
    ("repetition_penalty", "above 0 and at most 100", lambda v: 0 < v <= 100),
    ("presence_penalty", "from -2 to 2", _within(-2, 2)),
    ("frequency_penalty", "from -2 to 2", _within(-2, 2)),
    (
        "logit_bias",
        f"at most {MAX_IDS} token ids with values from -100 to 100",
        lambda v: len(v) <= MAX_IDS and all(k >= 0 and -100 <= b <= 100 for k, b in v.items()),
    ),
    ("seed", "a whole number from 0 to 2**63 - 1, or none", _within(0, MAX_SEED)),
    ("stop", f"at most {MAX_STOPS} strings, none empty", lambda v: len(v) <= MAX_STOPS and all(v)),
    (
        "stop_token_ids",
        f"at most {MAX_IDS} token ids",
        lambda v: len(v) <= MAX_IDS and all(t >= 0 for t in v),
    ),
    ("max_tokens", "a whole number from 0, or -1 or none", _within(0)),
    ("min_tokens", "a whole number from 0", _within(0)),
    ("max_draft", "a whole number from 0, or none", _within(0)),
    ("t_max_predict_ms", "a whole number from 0, or none", _within(0)),
    ("samplers", f"an order of {', '.join(SAMPLERS)}", lambda v: {*v} <= {*SAMPLERS}),
    ("pooling", "last, mean or none", lambda v: v in ("last", "mean", "none")),
    ("prediction", "text or token ids", lambda v: True),
    ("logprobs", f"from 0 to {MAX_LOGPROBS}, or none", _within(0, MAX_LOGPROBS)),
    ("prompt_logprobs", f"from 0 to {MAX_LOGPROBS}, or none", _within(0, MAX_LOGPROBS)),
)
"""Of values that have the type of their field; None is not a value."""
_ALLOWED = {name: allowed for name, allowed, _ in _LIMITS} | {
    "structured_outputs": "a StructuredOutputsParams",
    "stop_behind": "a ThoughtMarks",
}
