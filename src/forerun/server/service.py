"""What all routes share: the model behind its worker, the bounds, and the way from a request to the engine."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from starlette.requests import Request

from forerun.compat.tools import call_grammar
from forerun.core.errors import ConfigError, RequestError
from forerun.core.options import read_object
from forerun.core.params import SamplingParams
from forerun.decoding.calls import CallGrammar
from forerun.llm import LLM
from forerun.server.async_request import AsyncRequest, Closed
from forerun.server.bodies import BodyQueue
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError, busy, invalid, is_called, loading, not_served
from forerun.server.http import while_connected
from forerun.server.instructions import LastSeen
from forerun.server.items import LastItems
from forerun.server.limits import HEAD, MARGIN, check_bounds, check_fits, too_long
from forerun.server.metrics import ModelMetrics
from forerun.server.schema import AnswerRequest
from forerun.server.worker import Worker
from forerun.text.chat_template import RESERVED
from forerun.text.fill_in import FillIn
from forerun.text.parsing.forms import AnswerForm, form_of
from forerun.text.parsing.tags import Tools
from forerun.text.prompt import Encoded
from forerun.text.template_process import TemplateProcess

T = TypeVar("T")

DROP_S = 60.0
"""The time that an engine thread without requests has to end."""
RENDERED_AT_ONCE = 2
"""Conversations, each in a process of its own (`TemplateProcess`)."""


class Service:
    """One model that is served."""

    def __init__(
        self,
        load: Callable[[], LLM],
        config: ServerConfig,
        sampling: Mapping[str, Any] | None,
        metrics: ModelMetrics,
        bodies: BodyQueue,
    ) -> None:
        """`config` names the model. `sampling` are parameters of requests that do not give them, for its own.

        Raises ConfigError for variables of the chat template that are none.
        """
        self.config, self.names = config, config.served_model_name
        self.sampling = sampling or {}
        given = config.chat_template_kwargs
        self.template_kwargs = {} if given is None else read_object("--chat-template-kwargs", given)
        for name in sorted(self.template_kwargs.keys() & RESERVED):
            what = "--chat-template-kwargs must be variables of the template"
            raise ConfigError(f"{what}, not {name!r}")
        self.created, self.metrics = int(time.time()), metrics
        self.on_loaded: Callable[[], object] = lambda: None
        """Called by the engine thread when loading has ended, well or not."""
        self.drafter: str | None = None
        self.max_len: int | None = None
        """Which drafter drafts, and the tokens of a sequence at most: known since the model was first loaded."""
        self.last_seen = LastSeen()
        self.items = LastItems()
        self._load = load
        self.worker = self._new_worker()
        self._running: dict[AsyncRequest, int] = {}
        self._num_entering = 0
        """Completions of requests whose prompts are being read: they count in the queue already."""
        self._bodies = bodies
        self._template: TemplateProcess | None = None
        self._call_grammar: Callable[[Tools], CallGrammar] | None = None
        self._renderers = ThreadPoolExecutor(RENDERED_AT_ONCE, "chat-template")

    @property
    def is_loaded(self) -> bool:
        """True if the model is there."""
        return self.worker.llm is not None

    @property
    def state(self) -> str:
        """What /v1/models says of it, in llama-server's words."""
        if self.is_loaded:
            return "failed" if self.worker.has_failed else "loaded"
        return "loading" if self.worker.is_running else "unloaded"

    def start(self) -> None:
        """Begin to load; again, if that failed or the model was dropped."""
        if self.worker.has_begun:
            self.worker = self._new_worker()
        self.worker.start()

    async def drop(self) -> None:
        """Release the model, which must not be in use."""
        worker, self.worker = self.worker, self._new_worker()
        await asyncio.to_thread(worker.close, DROP_S)
        if worker.llm is not None:
            worker.llm.grammars.close()
        worker.llm = None
        if self._template is not None:
            await asyncio.to_thread(self._template.close)
            self._template = self._call_grammar = None

    def close(self, timeout_s: float) -> bool:
        """End all that runs; False if the engine's thread still does after the time."""
        self._renderers.shutdown(wait=False, cancel_futures=True)
        if self._template is not None:
            self._template.close()
        if self.worker.llm is not None:
            self.worker.llm.grammars.close()
        return self.worker.close(timeout_s)

    def _new_worker(self) -> Worker:
        return Worker(self._load, self._loaded)

    def _loaded(self) -> None:
        """Take note that loading has ended, for the engine thread."""
        if (llm := self.worker.llm) is not None:
            self.drafter, self.max_len = llm.drafter_spec.name, llm.max_len
            if llm.config.budget_nbytes is None:
                llm.grammars.read_ahead()
        self.on_loaded()

    def llm(self) -> LLM:
        """Return the model. Raises ApiError while it is not there."""
        if self.worker.llm is None:
            raise loading()
        return self.worker.llm

    def name(self, asked: str | None) -> str:
        """Choose the name under which a request is answered. Raises ApiError for a model that is not served."""
        if asked is None or is_called(asked, self.names):
            return asked or self.names[0]
        if self.config.strict_model_name:
            raise not_served(asked, self.names)
        return self.names[0]

    def defaults(self, **route: Any) -> SamplingParams:
        """Return what a request leaves out: the server's options, then the route's, then the model's."""
        return replace(self.llm().default_params(), **{**route, **self.sampling})

    def params(self, body: AnswerRequest, **route: Any) -> SamplingParams:
        """Make a request's parameters; what it leaves out is as in `defaults`. Raises ApiError."""
        params = body.params(self.defaults(**route), self.llm().drafter_spec.name)
        if params.structured_outputs is not None:
            check_bounds(params.structured_outputs, self.config, body.form_field)
        return params

    @property
    def template(self) -> TemplateProcess:
        """The model's chat template; call it by `render`. Raises ApiError, RequestError if there is none."""
        if self._template is None:
            self._template = self.llm().tokenizer.template(TemplateProcess)
        return self._template

    @property
    def form(self) -> AnswerForm:
        """How the model writes what it thinks and calls. Raises ApiError while it is not there."""
        tokenizer = self.llm().tokenizer
        return form_of(tokenizer.chat_template, tokenizer.encoder.token_to_id)

    async def call_grammar(self) -> Callable[[Tools], CallGrammar]:
        """Return what writes the grammar of calls to tools, as the model's form has them.

        Raises ApiError, RequestError.
        """
        if self._call_grammar is None:
            template, control = self.template, self.llm().tokenizer.special_texts
            reads_tools = await self.render(lambda: template.reads_tools)
            self._call_grammar = call_grammar(self.form, control, reads_tools=reads_tools)
        return self._call_grammar

    async def render(self, render: Callable[[], T]) -> T:
        """Run what renders a conversation in a thread for that alone: a slow template keeps only chats waiting."""
        return await asyncio.get_running_loop().run_in_executor(self._renderers, render)

    async def aside(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work that reads without an answer, in a place of the queue, as long as the client waits.

        Raises ApiError where no place is free, ClientDisconnect.
        """
        try:
            self._check_room(1, 1, "n")
        except ApiError:
            work.close()
            raise
        self._num_entering += 1
        try:
            return await while_connected(request, work)
        finally:
            self._num_entering -= 1

    async def encode(self, encode: Callable[[], T], nbytes: int) -> T:
        """Run what is made of a body of so many bytes in another thread: a long text would keep all others waiting."""
        return await self._bodies.run(encode, nbytes)

    def check_fits(self, text: str, param: str) -> None:
        """Raise ApiError for a text that is too long whatever its tokens are."""
        llm = self.llm()
        check_fits(text, llm.tokenizer, self._limit(), llm.max_len, param)

    def cut(self, text: str) -> str:
        """Return as much of a text as may be read."""
        limit, tokenizer = (
            self._limit() - len(self.llm().tokenizer.suffix_ids),
            self.llm().tokenizer,
        )
        ids = tokenizer.encode(text[: HEAD * limit], bos=None)
        return text if len(ids) <= limit else tokenizer.decode(ids[: max(limit - MARGIN, 1)])

    def read_text(self, text: str, param: str, *, bos: bool | None = None) -> Encoded:
        """Encode a text, after a BOS token as the model wants it for None. Raises ApiError for one that cannot fit."""
        self.check_fits(text, param)
        return Encoded(self.llm().tokenizer.encode(text, bos=bos), text)

    def read_parts(self, parts: Sequence[str | int], param: str) -> Encoded:
        """Encode a prompt of texts and token ids; only a text at its beginning gets a BOS token."""
        if len(parts) == 1 and isinstance(text := parts[0], str):
            return self.read_text(text, param)
        ids: list[int] = []
        for number, part in enumerate(parts):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self.read_text(part, param, bos=False if number else None).token_ids
        return Encoded(ids)

    def fill_in(self, what: str) -> FillIn:
        """Return the tokens for filling in, which a route or field needs. Raises ApiError for a model without."""
        tokens = self.llm().tokenizer.fill_in
        if tokens is None:
            status, param = (501, None) if what.startswith("/") else (400, what)
            message = (
                f"{what} needs a model that was trained to fill text in, such as Qwen2.5-Coder or StarCoder: "
                f"{self.names[0]} has no such tokens (prefix, suffix, middle)"
            )
            raise ApiError(status, message, param, type="not_supported_error")
        return tokens

    def read_infill(
        self,
        tokens: FillIn,
        before: tuple[str, str],
        after: tuple[str, str],
        files: Sequence[tuple[str, str]] = (),
    ) -> list[int]:
        """Make the prompt for the gap between two fields, given as name and text; control tokens are read as text.

        Raises ApiError for one that cannot fit.
        """
        tokenizer = self.llm().tokenizer
        for param, text in (before, after, *(("input_extra", text) for _, text in files)):
            self.check_fits(text, param)

        def encode(text: str) -> list[int]:
            return tokenizer.encode(text, special=False, bos=False) if text else []

        start = tokenizer.encode("", bos=None)
        return [*start, *tokens.prompt(before[1], after[1], files, encode)]

    async def submit(
        self,
        request: Request,
        read: Callable[[], Awaitable[Sequence[Encoded]]],
        num_prompts: int,
        params: SamplingParams,
        field: str,
        body: AnswerRequest | None = None,
    ) -> AsyncRequest:
        """Take places in the queue, then read the prompts and hand them to the engine, to stream what `body` asks for.

        `field` is what the client calls the prompt. Raises ApiError for what is out of bounds, RequestError for what
        is wrong, ClientDisconnect for a client that goes away before the engine has it.
        """
        work = self._submit(read, num_prompts, params, field, body)
        return await while_connected(request, work)

    async def _submit(
        self,
        read: Callable[[], Awaitable[Sequence[Encoded]]],
        num_prompts: int,
        params: SamplingParams,
        field: str,
        body: AnswerRequest | None,
    ) -> AsyncRequest:
        num_new = num_prompts * params.n
        self._check_room(num_new, params.n, "prompt" if num_prompts > 1 else "n")
        self._num_entering += num_new
        try:
            prompts = await read()
            self._check_lengths(prompts, field)
            if isinstance(params.prediction, str):  # here and once, not by the engine for each of n
                params.prediction = await self._predicted(params.prediction)
            compiling = None
            form_field = body.form_field if body else "structured_outputs"
            if (form := params.structured_outputs) is not None:
                with _form_errors(form_field):
                    compiling = await asyncio.to_thread(self.llm().grammars.begin, form)
            stream, progress = (body.stream, body.return_progress) if body else (False, False)
            interval_s = self.config.stream_interval if stream else math.inf
            request = self.worker.submit(
                prompts, params, self._ended, interval_s, with_progress=stream and progress
            )
            self._running[request] = num_new
        finally:
            self._num_entering -= num_new
        await request.accepted()
        del compiling  # it is waited for until the engine does
        with _form_errors(form_field):
            await request.compiled()
        return request

    async def _predicted(self, text: str) -> tuple[int, ...]:
        tokens = await self.encode(
            lambda: self.read_text(text, "prediction", bos=False).token_ids, len(text)
        )
        if len(tokens) > self._limit():
            raise too_long(len(tokens), self._limit(), self.llm().max_len, "prediction")
        return tuple(tokens)

    @property
    def num_running(self) -> int:
        """Requests that have not ended."""
        return len(self._running)

    def cancel_all(self) -> None:
        """End what runs: the time for draining is over."""
        for request in [*self._running]:
            request.cancel(Closed("the server is shutting down"))

    @property
    def num_slots(self) -> int:
        """Sequences that run at a time: of a memory budget fewer than were asked for. Raises ApiError."""
        return self.llm().engine.cache.num_slots

    @property
    def most_at_once(self) -> int:
        """Completions that may run and wait."""
        return self.num_slots + self.config.max_queue

    def _check_room(self, num_new: int, n: int, param: str) -> None:
        """Raise ApiError for more completions than may run and wait, `n` of each prompt."""
        most, num_slots = self.config.max_n, self.num_slots
        if n > most:
            raise invalid(f"n must be from 1 to {most} (--max-n), got {n}", "n")
        if num_new > num_slots + self.config.max_queue:
            what = f"n x prompts = {num_new} exceeds the limit of {self.most_at_once} running or queued completions"
            raise invalid(f"{what} (--max-num-seqs, --max-queue): ask for fewer at once", param)
        num_running = sum(self._running.values(), self._num_entering)
        if num_running + num_new > num_slots + self.config.max_queue:
            raise busy(max(0, num_running - num_slots), self.config.max_queue)

    def _check_lengths(self, prompts: Sequence[Encoded], param: str) -> None:
        limit = self._limit()
        for prompt in prompts:
            if len(prompt.token_ids) > limit:
                raise too_long(len(prompt.token_ids), limit, self.llm().max_len, param)

    def _limit(self) -> int:
        """Return the tokens of a prompt, at most."""
        llm = self.llm()
        return min(self.config.max_prompt_len or llm.max_len, llm.max_len - 1)

    def _ended(self, request: AsyncRequest) -> None:
        self._running.pop(request, None)
        if not request.handles:
            return
        now_s = time.perf_counter()
        self.metrics.finish(request, now_s)


@contextmanager
def _form_errors(field: str) -> Iterator[None]:
    """Raise ApiError that names the request's field, for what is wrong with a grammar."""
    try:
        yield
    except RequestError as error:
        raise invalid(str(error).replace("structured_outputs", field), field) from error
