"""vLLM's `vllm.engine.arg_utils`: the keywords of an LLM, kept until one is made."""

from __future__ import annotations

from typing import Any

from forerun.compat.engine import configure


class EngineArgs:
    """Keywords of `LLM`, as attributes: `LLM(**vars(args))` is the one that they mean."""

    def __init__(self, **given: Any) -> None:
        """Raises ConfigError for what no engine has as an option."""
        configure(given.get("model", ""), given)
        self.__dict__.update(given)


class AsyncEngineArgs(EngineArgs):
    """The same for `AsyncLLM.from_engine_args`."""
