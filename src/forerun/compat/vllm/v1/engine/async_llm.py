"""vLLM's `vllm.v1.engine.async_llm`."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from forerun.compat import absent
from forerun.compat.vllm.engine.arg_utils import EngineArgs
from forerun.server.async_llm import AsyncLLM as Ours
from forerun.text.hub_tokenizer import HubTokenizer


class AsyncLLM(Ours):
    """`forerun.AsyncLLM` with the methods that vLLM's has besides."""

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **others: Any) -> Self:
        """Make it of keywords that were kept."""
        return cls(**vars(engine_args))

    def shutdown(self, timeout: float | None = None) -> None:
        """End all requests and the thread, and release the model."""
        self.close()

    async def get_tokenizer(self) -> HubTokenizer:
        """Return the model's tokenizer."""
        return (await self.ready()).get_tokenizer()

    async def reset_prefix_cache(self) -> bool:
        """Forget the prompts and answers that are kept in memory."""
        return await asyncio.to_thread((await self.ready()).reset_prefix_cache)

    async def check_health(self) -> None:
        """Raise what keeps the model from answering."""
        await self.ready()

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(absent.message("AsyncLLM", name, dir(type(self)), {}))


__all__ = ["AsyncLLM"]
