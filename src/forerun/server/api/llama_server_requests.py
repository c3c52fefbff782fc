"""llama-server's requests: prompts of texts and token ids, biases by text, infill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from forerun.server.errors import invalid, must_be
from forerun.server.schema import NestedFields, SampledAnswer
from forerun.text.tokenizer import Tokenizer

_FORMS = (
    "a text, token ids, a list of texts and ids, "
    '{"prompt_string": TEXT}, {"content": [{"type": "text", "text": TEXT}]}, or a list of these'
)
NEVER = -100.0
"""The bias of a token that is ruled out: what a request may ask for, and what llama-server writes as `false`."""
_BIASES = "pairs of a token id or text and a number (false: never), or an object of them"


class NativeRequest(SampledAnswer):
    """A text to continue, in llama-server's form."""

    prompt: Any
    """A text, token ids, a list that mixes them, or a list of prompts."""
    logit_bias: dict[str, Any] | list[Any] | None = None
    """By token id or by text, whose tokens then get it each; `false` rules a token out."""
    n_probs: int | None = None
    """Log-probabilities of the tokens and of this many likeliest ones."""
    return_tokens: bool = False
    """Add the ids of the answer's tokens."""
    response_fields: list[str] | None = None
    """Only these fields of the answer; `a/b` is the field b of the object a."""

    def scores(self) -> dict[str, int | None]:
        """Read `n_probs`."""
        return {"logprobs": self.n_probs} if self.n_probs else {}

    def check(self) -> None:
        """Check all but the biases, which are written with the tokens of a model. Raises ApiError."""
        unbiased = self.model_copy()
        unbiased.logit_bias = None
        super(NativeRequest, unbiased).check()

    def read_biases(self, tokenizer: Tokenizer) -> None:
        """Make `logit_bias` an object of token ids and numbers. Raises ApiError."""
        if self.logit_bias is None:
            return
        given = self.logit_bias
        biases: dict[str, Any] = {}
        for pair in given.items() if isinstance(given, dict) else given:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise must_be("logit_bias", _BIASES, pair)
            token, value = pair
            value = NEVER if value is False else value
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise must_be("logit_bias", _BIASES, pair)
            biases |= dict.fromkeys(_ids(token, tokenizer), float(value))
        self.logit_bias = biases


def _ids(token: object, tokenizer: Tokenizer) -> list[str]:
    """Find the ids that a token is, as it is written in a bias."""
    if isinstance(token, str) and not token.isdecimal():
        return [str(one) for one in tokenizer.encode(token, bos=False)]
    if not (isinstance(token, str) or _is_id(token)):
        raise must_be("logit_bias", _BIASES, token)
    return [str(token)]


class ExtraFile(NestedFields):
    """A file that says something about the one that is filled in."""

    text: str
    filename: str = ""


class InfillRequest(NativeRequest):
    """A gap in a text to fill, in llama-server's form."""

    prompt: str = ""
    """What stands before the gap already, after `input_prefix`."""
    input_prefix: str = ""
    """The text before."""
    input_suffix: str = ""
    """The text after."""
    input_extra: list[ExtraFile] = Field(default_factory=list)
    """Other files."""


def split_prompts(given: object, field: str) -> list[list[str | int]]:
    """Split a field into prompts, each as texts and token ids in their order. Raises ApiError.

    A list with a token id in it is one prompt, a list without one is a list of prompts.
    """
    if isinstance(given, list) and not any(_is_id(one) for one in given):
        if not given:
            raise invalid(f"{field} is empty: it must be {_FORMS}", field)
        return [_one(each, field) for each in given]
    return [_one(given, field)]


def _one(given: object, field: str) -> list[str | int]:
    if isinstance(given, str | Mapping):
        return [given if isinstance(given, str) else _text_of(given, field)]
    parts = given if isinstance(given, list) else []
    if not parts or not all(_is_id(one) or isinstance(one, str) for one in parts):
        raise must_be(field, _FORMS, given)
    return parts


def _text_of(given: Mapping[str, Any], field: str) -> str:
    """Find the text of a prompt that is an object."""
    if given.get("multimodal_data"):
        raise invalid(f"{field} must be text: this server does not accept images or audio", field)
    text, parts = given.get("prompt_string"), given.get("content")
    if text is None and isinstance(parts, list) and parts:
        text = "".join(_part(one, field) for one in parts)
    if not isinstance(text, str):
        raise must_be(field, _FORMS, given)
    return text


def _part(given: object, field: str) -> str:
    text = given.get("text") if isinstance(given, Mapping) and given.get("type") == "text" else None
    if not isinstance(text, str):
        raise must_be(f"a part of {field}", '{"type": "text", "text": TEXT}', given, field)
    return text


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
