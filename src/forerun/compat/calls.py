"""Arguments that vLLM's `LLM` takes with a request and that do nothing here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from forerun.core.errors import RequestError, reject
from forerun.core.params import SamplingParams

_ALL: Mapping[str, tuple[object, ...]] = {
    "lora_request": (None, []),
    "mm_processor_kwargs": (None, {}),
    "priority": (None, 0),
    "tokenization_kwargs": (None, {}),
}
_POOLING: Mapping[str, tuple[object, ...]] = {
    **_ALL,
    "pooling_params": (None,),
    "truncate_prompt_tokens": (None,),
}
_NEUTRAL: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "chat": {
        **_ALL,
        "chat_template_content_format": ("auto", "string"),
    },
    "embed": _POOLING,
    "encode": _POOLING,
    "score": {**_POOLING, "chat_template": (None,)},
}
"""By method, with the values that ask for nothing."""


def check(method: Callable[..., object], others: Mapping[str, object]) -> None:
    """Raise RequestError for arguments besides a method's own, unless they ask for nothing."""
    known = inspect.signature(method).parameters.keys() - {"others"}
    if "sampling_params" in known:
        given = {name for name, value in others.items() if value not in _ALL.get(name, ())}
        for name in sorted(given & SamplingParams.__dataclass_fields__.keys()):
            raise RequestError(f"{name} is a sampling parameter: give SamplingParams({name}=...)")
    reject(others, _NEUTRAL.get(method.__name__, _ALL), "argument", known)
