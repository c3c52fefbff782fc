"""What all routes share: the model behind its worker, the bounds, and the way from a request to the engine."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request

from forerun.core.errors import RequestError, shown
from forerun.core.params import SamplingParams
from forerun.core.spellings import read_object
from forerun.core.structured import StructuredOutputsParams
from forerun.formats.prompt import Encoded
from forerun.llm import LLM
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError, busy, loading, too_long
from forerun.server.forms import check_bounds, max_draft
from forerun.server.http import read_bytes, stated_nbytes, to_object
from forerun.server.metrics import ServerMetrics
from forerun.server.schema import AnswerRequest, Body, read
from forerun.server.texts import LARGE, Turnstile, check_fits, encoded
from forerun.server.worker import AsyncRequest, Closed, Worker

T = TypeVar("T")


class Service:
    """One model that is served."""

    def __init__(
        self,
        load: Callable[[], LLM],
        model: str,
        config: ServerConfig,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        """`model` is what it is called where `config` has no names for it.

        `sampling` are parameters of requests that do not give them, in place of the model's own.
        """
        self.config = config
        self.sampling = sampling or {}
        given = config.chat_template_kwargs
        self.template_kwargs = {} if given is None else read_object("--chat-template-kwargs", given)
        self.names = config.served_model_name or (_public(model),)
        self.created = int(time.time())
        self.metrics = ServerMetrics(self.names[0])
        self.on_loaded: Callable[[], object] = lambda: None
        """Called by the engine thread when loading has ended, well or not."""
        self.worker = Worker(load, lambda: self.on_loaded())
        self._running: dict[AsyncRequest, int] = {}
        self._turnstile = Turnstile()

    def llm(self) -> LLM:
        """The model. Raises ApiError while it is not there."""
        if self.worker.llm is None:
            raise loading()
        return self.worker.llm

    def drafter(self) -> str:
        """The drafter's name; none while the model is not there."""
        return "none" if self.worker.llm is None else self.worker.llm.drafter_spec.name

    def name(self, asked: str | None) -> str:
        """The name under which a request is answered. Raises ApiError for a model that is not served."""
        if asked is None or asked in self.names:
            return asked or self.names[0]
        if not self.config.strict_model_name:
            return self.names[0]
        served = ", ".join(self.names)
        raise ApiError(
            404,
            f"the model {shown(asked)} is not served here (served: {served})",
            param="model",
            code="model_not_found",
        )

    def defaults(self, **own: Any) -> SamplingParams:
        """What a request leaves out: the server's options, then `own`, then the model's."""
        return replace(self.llm().default_params(), **{**own, **self.sampling})

    def params(
        self, body: AnswerRequest, typed: Mapping[str, str], defaults: SamplingParams | None = None
    ) -> SamplingParams:
        """A request's parameters, what it leaves out from `defaults`. Raises ApiError."""
        llm = self.llm()
        params = body.params(defaults or self.defaults(), typed)
        if body.speculative is not None:
            params.max_draft = max_draft(body.speculative, llm.drafter_spec.name)
        return params

    async def read(self, request: Request, kind: type[Body]) -> tuple[Body, dict[str, str]]:
        """A request's body, and what its fields were called. Raises ApiError."""
        body = await self._turnstile.receive(
            lambda: read_bytes(request, self.config), stated_nbytes(request)
        )
        if len(body) < LARGE:
            return read(kind, to_object(body, self.config))
        return await self._turnstile.run(
            lambda: read(kind, to_object(body, self.config)), len(body)
        )

    async def encode(self, encode: Callable[[], T], nbytes: int) -> T:
        """What is made of a body of so many bytes, in another thread: a long text would keep all others waiting."""
        return await self._turnstile.run(encode, nbytes)

    def check_fits(self, text: str, param: str) -> None:
        """Raise ApiError for a text that is too long whatever its tokens are."""
        llm = self.llm()
        check_fits(text, llm.tokenizer, self._limit(), llm.max_len, param)

    def read_text(self, text: str, param: str, *, bos: bool | None = None) -> Encoded:
        """A text as token ids. Raises ApiError for one that cannot fit."""
        llm = self.llm()
        return encoded(text, llm.tokenizer, self._limit(), llm.max_len, param, bos=bos)

    async def submit(
        self,
        prompts: Sequence[Encoded],
        params: SamplingParams,
        *,
        stream: bool,
        sent: Mapping[str, str],
    ) -> AsyncRequest:
        """Hand prompts to the engine; `sent` is what the client calls our fields, `prompt` and `form` among them.

        Raises ApiError for what is out of bounds, RequestError for what is wrong.
        """
        self._check(prompts, params, sent["prompt"])
        if isinstance(params.prediction, str):  # here and once, not by the engine for each of n
            params.prediction = await self._predicted(params.prediction)
        if params.structured_outputs is not None:
            await self._compile(params.structured_outputs, sent["form"])
        interval_s = self.config.stream_interval if stream else math.inf
        request = self.worker.submit(prompts, params, self._ended, interval_s)
        self._running[request] = len(prompts) * params.n
        await request.accepted()
        return request

    async def _predicted(self, text: str) -> tuple[int, ...]:
        found = await self.encode(
            lambda: self.read_text(text, "prediction", bos=False).token_ids, len(text)
        )
        if len(found) > self._limit():
            raise too_long(len(found), self._limit(), self.llm().max_len, "prediction")
        return tuple(found)

    async def _compile(self, form: StructuredOutputsParams, field: str) -> None:
        """Compile a grammar in another thread; the engine finds it ready. Raises ApiError."""
        check_bounds(form, self.config, field)
        try:
            await asyncio.to_thread(self.llm().grammars.start, form)
        except RequestError as error:
            message = str(error).replace("structured_outputs", field)
            raise ApiError(400, message, param=field) from error

    @property
    def num_running(self) -> int:
        """Requests that have not ended."""
        return len(self._running)

    def cancel_all(self) -> None:
        """End what runs: the time for draining is over."""
        for request in [*self._running]:
            request.cancel(Closed("the server is shutting down"))

    def _check(self, prompts: Sequence[Encoded], params: SamplingParams, param: str) -> None:
        llm, most = self.llm(), self.config.max_n
        if params.n > most:
            message = f"n must be from 1 to {most} (--max-n), got {params.n}"
            raise ApiError(400, message, param="n")
        limit = self._limit()
        for prompt in prompts:
            if len(prompt.token_ids) > limit:
                raise too_long(len(prompt.token_ids), limit, llm.max_len, param)
        num_new, num_slots = len(prompts) * params.n, llm.config.max_num_seqs
        if num_new > num_slots + self.config.max_queue:
            raise ApiError(
                400,
                f"{num_new} completions are more than this server runs and lets wait "
                f"({num_slots} and {self.config.max_queue}): ask for fewer at once",
                param="prompt" if len(prompts) > 1 else "n",
            )
        num_running = sum(self._running.values())
        if num_running + num_new > num_slots + self.config.max_queue:
            raise busy(max(0, num_running - num_slots), self.config.max_queue)

    def _limit(self) -> int:
        """Tokens of a prompt, at most."""
        llm = self.llm()
        return min(self.config.max_prompt_len or llm.max_len, llm.max_len - 1)

    def _ended(self, request: AsyncRequest) -> None:
        self._running.pop(request, None)
        if not request.handles:
            return
        now_s = time.perf_counter()
        self.metrics.finish(request, now_s)


def _public(model: str) -> str:
    """A model's name for clients; of a file, not where it lies."""
    path = Path(model).expanduser()
    return path.name.removesuffix(".gguf") if path.exists() else model
