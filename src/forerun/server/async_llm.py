"""AsyncLLM: the engine for programs that use asyncio.

    async with AsyncLLM("smollm2-135m-instruct") as llm:
        async for event in llm.stream("The capital of France is", SamplingParams(max_tokens=8)):
            print(event.text, end="")

A thread of its own runs the model, so the event loop stays free; requests made at once share the passes.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Self, Unpack

from forerun.compat.chats import ChatForm, stopped_behind_thought
from forerun.compat.keywords import Keywords
from forerun.core.config import DEFAULT_MODEL, EngineConfig
from forerun.core.params import SamplingParams
from forerun.core.types import Event
from forerun.engine.outputs import RequestOutput, parsed
from forerun.llm import LLM
from forerun.server.async_request import AsyncRequest, StreamEvent
from forerun.server.worker import Worker
from forerun.text.messages import Message, Tools
from forerun.text.prompt import Encoded, Prompt, encode, encode_chat

Read = Callable[[LLM], Encoded]
"""Encodes a prompt, in a thread beside the event loop."""
Adapt = Callable[[Encoded, SamplingParams], SamplingParams]
"""Changes a prompt's parameters, in such a thread too."""


class AsyncLLM:
    """A model that answers many requests at once. The loading begins with it and is waited for by the first request."""

    def __init__(
        self, model: str | EngineConfig | LLM = DEFAULT_MODEL, **overrides: Unpack[Keywords]
    ) -> None:
        """The arguments are those of `LLM`; one that is loaded already is taken as it is."""
        self._is_own = not isinstance(model, LLM)
        self._worker = Worker(_loader(model, overrides))
        self._worker.start()
        self._finalizer = weakref.finalize(
            self, self._worker.close, 0
        )  # the thread holds the model

    async def ready(self) -> LLM:
        """Wait until the model is loaded; the LLM that answers. Raises LoadError, ConfigError."""
        if (llm := self._worker.llm) is not None:
            return llm
        return await asyncio.to_thread(self._worker.wait_until_loaded)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> AsyncStream:
        """Complete one prompt, yielding what each step made final, as `LLM.stream`.

        Leaving the loop cancels the rest before the engine's next step, where nothing else holds the stream; else
        `aclose` does. The first event raises RequestError, CapacityError.
        """
        return AsyncStream(
            lambda: self._submit(lambda llm: encode(prompt, llm.tokenizer), sampling_params)
        )

    async def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> RequestOutput:
        """Complete one prompt to the end; `asyncio.gather` of several runs them together.

        Cancelling the task ends the request. Raises RequestError, CapacityError.
        """
        return await self._output(lambda llm: encode(prompt, llm.tokenizer), sampling_params)

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Tools | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        tool_choice: str | Mapping[str, object] | None = None,
        parallel_tool_calls: bool | None = None,
        response_format: Mapping[str, object] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> RequestOutput:
        """Answer a conversation, as `LLM.chat`; all else is as in `generate`."""
        form = ChatForm.of(tools, tool_choice, parallel_tool_calls, response_format)
        read = partial(
            encode_chat,
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=form.tools,
            chat_template=chat_template,
            variables=chat_template_kwargs,
            continue_final_message=continue_final_message,
        )
        llm = await self.ready()
        own = (llm.max_len, llm.tokenizer, chat_template)

        def adapted(prompt: Encoded, params: SamplingParams) -> SamplingParams:
            return form.params(params, prompt.text or "", *own)

        output = await self._output(lambda llm: read(llm.tokenizer), sampling_params, adapted)
        return parsed(llm.tokenizer, output, chat_template=chat_template, tools=form.tools)

    def close(self) -> None:
        """End all requests and the thread, and release the model; a model that was passed in stays open."""
        self._finalizer.detach()
        llm = self._worker.llm
        if self._worker.close() and self._is_own and llm is not None:
            self._worker.llm = None
            llm.close()

    def __repr__(self) -> str:
        return f"Async{llm!r}" if (llm := self._worker.llm) is not None else "AsyncLLM(no model)"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)

    async def _output(
        self, read: Read, params: SamplingParams | None, adapted: Adapt = lambda prompt, own: own
    ) -> RequestOutput:
        request = await self._submit(read, params, adapted)
        async for _ in request.events():
            pass
        return request.handles[0].output()

    async def _submit(
        self, read: Read, params: SamplingParams | None, adapted: Adapt = lambda prompt, own: own
    ) -> AsyncRequest:
        llm = await self.ready()
        encoded = await asyncio.to_thread(read, llm)
        params = await asyncio.to_thread(adapted, encoded, params or llm.default_params())
        if encoded.is_chat:
            params = stopped_behind_thought(params, encoded.text or "", llm.tokenizer)
        if params.structured_outputs is not None:  # compiled here, not between two steps
            await asyncio.to_thread(llm.grammars.begin, params.structured_outputs)
        request = self._worker.submit([encoded], params)
        await request.accepted()
        await request.compiled()
        return request


class AsyncStream(AsyncIterator[Event]):
    """The events of a request, which ends when this does: by `aclose`, or when it is garbage-collected."""

    def __init__(self, submit: Callable[[], Awaitable[AsyncRequest]]) -> None:
        """`submit` is called with the first event."""
        self._submit = submit
        self._request: AsyncRequest | None = None
        self._batches: AsyncIterator[list[StreamEvent]] | None = None
        self._waiting: deque[Event] = deque()
        self._is_closed = False

    async def __anext__(self) -> Event:
        if self._is_closed:
            raise StopAsyncIteration
        try:
            if self._batches is None:
                self._request = await self._submit()
                self._batches = self._request.events()
            while not self._waiting:
                self._waiting.extend(one.event for one in await anext(self._batches))
        except BaseException:
            self._end()
            raise
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """End the request before the engine's next step; harmless if it has ended."""
        self._end()

    def __del__(self) -> None:
        self._end()

    def _end(self) -> None:
        self._is_closed = True
        if self._request is not None:
            self._request.cancel()


def _loader(model: str | EngineConfig | LLM, overrides: Keywords) -> Callable[[], LLM]:
    if isinstance(model, LLM):
        return lambda: model
    return lambda: LLM(model, **overrides)
