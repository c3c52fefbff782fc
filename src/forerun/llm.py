"""LLM: a model, a drafter and an engine behind three verbs: generate, stream, chat.

    from forerun import LLM, SamplingParams

    llm = LLM("smollm2-135m-instruct", drafter="suffix")
    for out in llm.generate(["The capital of France is"], SamplingParams(temperature=0)):
        print(out.outputs[0].text)

Parameter names are vLLM's; `assistant_model`, `prompt_lookup_num_tokens` and `speculative_config` are read as well.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, Unpack

from forerun.compat import calls
from forerun.compat import engine as compat
from forerun.compat.chats import ChatForm, stopped_behind_thought
from forerun.compat.keywords import Keywords
from forerun.core import sizes
from forerun.core.config import AUTO, DEFAULT_MODEL, EngineConfig, Quant
from forerun.core.errors import RequestError, given_as
from forerun.core.params import SamplingParams
from forerun.core.pickling import OfOneProcess
from forerun.drafters.base.contract import Drafter, LoadedModel, Target
from forerun.drafters.base.spec import DrafterSpec
from forerun.engine import metrics, request_batch, vectors
from forerun.engine.engine import Engine
from forerun.engine.loaded import Loaded
from forerun.engine.lock import EngineLock
from forerun.engine.loop import EngineLoop, Request, Sink
from forerun.engine.memory import MemoryPlan
from forerun.engine.metrics import Metric
from forerun.engine.outputs import RequestOutput, parsed
from forerun.engine.planner import Planner, max_len_of, workload_of
from forerun.engine.vectors import EmbeddingRequestOutput, ScoringRequestOutput
from forerun.hub.names import resolve
from forerun.model.backends.base import Progress
from forerun.model.cache import store
from forerun.model.cache.base import KVCache
from forerun.model.loader import device_of, read_config
from forerun.parallel.launch import Launch
from forerun.system.device import (
    collector_paused,
    process_nbytes,
    return_at_once,
    return_freed,
    trim_heap,
)
from forerun.text import reranker
from forerun.text.hub_tokenizer import HubTokenizer
from forerun.text.messages import Message, Tools
from forerun.text.prompt import (
    Encoded,
    Prompt,
    conversations,
    encode,
    encode_all,
    encode_chat,
    end_texts,
)
from forerun.text.tokenizer import Tokenizer
from forerun.weights.base import Checkpoint
from forerun.weights.checkpoint import open_checkpoint

_log = logging.getLogger(__name__)


class LLM(OfOneProcess):
    """Loads a model once and answers many requests, of several threads too; they share the passes over its weights."""

    instead = "make one in each"

    def __init__(
        self, model: str | EngineConfig = DEFAULT_MODEL, **overrides: Unpack[Keywords]
    ) -> None:
        """Load a model (a path, a known name or a hub name) and build the drafter, or do so as a configuration says.

        Keywords are `EngineConfig`'s fields, `speculative_config`, and what other engines call them
        (docs/compatibility.md). `drafter` may also be a `Drafter` of your own, which then serves this
        LLM alone. Raises LoadError, ConfigError.
        """
        config, typed = compat.configure(model, overrides)
        with given_as(typed), collector_paused():
            self._open(config)

    @classmethod
    def checked(
        cls,
        check: Callable[[Tokenizer], object],
        config: EngineConfig,
        progress: Progress | None = None,
        **overrides: Unpack[Keywords],
    ) -> Self:
        """Load as `LLM(config)`; what `check` raises of the tokenizer comes before weights are read.

        `progress` is told how many of their bytes are loaded.
        """
        self, (config, typed) = cls.__new__(cls), compat.configure(config, overrides)
        with given_as(typed), collector_paused():
            self._open(config, check, progress)
        return self

    def _open(
        self,
        config: EngineConfig,
        check: Callable[[Tokenizer], object] | None = None,
        progress: Progress | None = None,
    ) -> None:
        process_nbytes()  # before anything is loaded
        self.config, self.device = config, device_of(config)
        if config.tensor_parallel_size > 1 and Launch.of().rank > 0:
            from forerun.parallel import load as parallel  # imports torch

            parallel.follow(config)
            raise SystemExit
        self.drafter_spec = DrafterSpec.of_config(config)
        self.path = resolve(config.model)
        checkpoint = open_checkpoint(self.path)
        self.tokenizer = checkpoint.tokenizer()
        if check is not None:
            check(self.tokenizer)
        # A wrong one is refused before weights are read.
        self.max_len = max_len_of(config, read_config(checkpoint)[0])
        self.plan = self._planned(self.drafter_spec, checkpoint)
        if self.plan is None and self.drafter_spec.names_a_file:
            planner = Planner(config, self.device, self.drafter_spec, checkpoint, self.tokenizer)
            self.drafter_spec.check(planner.target())
        self._loaded = Loaded.of(
            checkpoint,
            self.path,
            self.tokenizer,
            config,
            self.device,
            self.max_len,
            progress,
        )
        self.model, self.grammars = self._loaded.model, self._loaded.grammars
        self._default_params = self._loaded.default_params
        del checkpoint  # before a drafter takes memory to be built
        self._loop: EngineLoop | None = self._new_loop(EngineLock())
        trim_heap()

    def with_drafter(self, drafter: str | Mapping[str, object] | Drafter, **options: object) -> LLM:
        """Return the same weights with another drafter and an engine of its own; `none` is plain decoding.

        It has the same memory budget, or its own `memory_budget`, without regard to this LLM. Raises CapacityError that
        names the smallest that works.
        """
        typed: dict[str, str] = {}
        budget = options.pop("memory_budget", self.config.memory_budget)
        ours = compat.drafter(options, typed)
        method = ours.pop("method", drafter)
        given = compat.drafter(method if drafter == AUTO else drafter, typed)
        with given_as(typed):
            return self._with(DrafterSpec.of(given, **ours), memory_budget=budget)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        **others: object,
    ) -> list[RequestOutput]:
        """Complete one prompt or many; the outputs come in the prompts' order.

        Text is completed as it is, as by `forerun generate --raw`; `chat` and `forerun generate` answer it through the
        chat template. Without `sampling_params` the model's own settings hold, with at most 16 tokens
        (`default_params`). `use_tqdm` shows the progress on stderr; in a terminal and a notebook many
        prompts have it. Raises RequestError, CapacityError.
        """
        calls.check(self.generate, others)
        requests = self._run(encode_all(prompts, self.tokenizer), sampling_params, use_tqdm)
        return [request.output() for request in requests]

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Literal["last", "mean"] = "last",
        use_tqdm: bool | None = None,
        **others: object,
    ) -> list[EmbeddingRequestOutput]:
        """Compute a vector of length 1 of each prompt: of its last token's state, or the mean of all.

        It is the state that the model's head reads. Raises RequestError, CapacityError.
        """
        calls.check(self.embed, others)
        encoded = end_texts(encode_all(prompts, self.tokenizer), self.tokenizer)
        requests = self._run(encoded, vectors.params(pooling), use_tqdm)
        return [EmbeddingRequestOutput.of(request) for request in requests]

    def score(
        self,
        text_1: Prompt | Sequence[Prompt],
        text_2: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool | None = None,
        **others: object,
    ) -> list[ScoringRequestOutput]:
        """Compare texts, one with one or with many, or as many with each other: by the vectors of `embed`.

        A reranker, by the model's name, says instead how likely `text_2` answers the query `text_1`; a query in the
        whole form of its model card stands before the text as it is. Raises RequestError, CapacityError.
        """
        calls.check(self.score, others)
        if not reranker.is_reranker(self.path):
            both = [self.embed(given, use_tqdm=use_tqdm) for given in (text_1, text_2)]
            return vectors.scores(*both)
        ranker, encoded = reranker.questions(self.tokenizer, text_1, text_2)
        requests = self._run(encoded, vectors.params("last"), use_tqdm)

        def score(states: vectors.Vectors) -> vectors.Vectors:
            with self.loop.lock():
                return ranker.scores(self.model.head(states))

        return [*vectors.judged(requests, score)]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Tools | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        tool_choice: str | Mapping[str, object] | None = None,
        parallel_tool_calls: bool | None = None,
        response_format: Mapping[str, object] | type | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        use_tqdm: bool | None = None,
        **others: object,
    ) -> list[RequestOutput]:
        """Answer a conversation or a list of them, through the model's chat template or the given one.

        `tools`, `tool_choice`, `parallel_tool_calls` and `response_format` are as OpenAI's chat completions have them,
        the last also a pydantic class;
        tools and `chat_template_kwargs` are handed to the template. With `continue_final_message` the answer goes on
        with the last message, which is the assistant's. Turns that were computed before are reused, not computed again.
        What an answer thinks, says and calls is apart in its `message`. All else is as in `generate`.
        """
        calls.check(self.chat, others)
        form = ChatForm.of(tools, tool_choice, parallel_tool_calls, response_format)
        encoded = [
            encode_chat(
                chat,
                self.tokenizer,
                add_generation_prompt=add_generation_prompt,
                tools=form.tools,
                chat_template=chat_template,
                variables=chat_template_kwargs,
                continue_final_message=continue_final_message,
            )
            for chat in conversations(messages)
        ]
        own = (self.tokenizer, chat_template)

        def adapted(prompt: Encoded, params: SamplingParams) -> SamplingParams:
            return form.params(params, prompt.text or "", self.max_len, *own)

        requests = self._run(encoded, sampling_params, use_tqdm, adapted)
        parse = partial(parsed, self.tokenizer, chat_template=chat_template, tools=form.tools)
        return [parse(each.output()) for each in requests]

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, **others: object
    ) -> Request:
        """Complete one prompt, yielding what each step made final. Leaving the loop early cancels the rest.

        Chat messages go through the model's template; all else is as in `generate`.
        """
        calls.check(self.stream, others)
        return self.submit(prompt, sampling_params or self.default_params())

    def submit(
        self, prompt: Prompt | Encoded, sampling_params: SamplingParams, sink: Sink | None = None
    ) -> Request:
        """Queue a prompt without running anything: a caller that waits for one request advances all of them.

        So does this, where a grammar takes its time. Raises RequestError, CapacityError.
        """
        return self._submit(encode(prompt, self.tokenizer), sampling_params, sink)

    def default_params(self) -> SamplingParams:
        """Return how requests without parameters are sampled: as generation_config.json or the GGUF's metadata say.

        Greedy where they say nothing. At most 16 tokens, as in every SamplingParams.
        """
        return copy.copy(self._default_params)

    get_default_sampling_params = default_params

    def get_tokenizer(self) -> HubTokenizer:
        """Return the Hugging Face library's tokenizer, with the methods of transformers'."""
        return HubTokenizer.of(self.tokenizer)

    def get_metrics(self) -> list[Metric]:
        """Return the counts since this LLM was made, under vLLM's names with the prefix `forerun:`."""
        with self.loop.lock():
            return metrics.read(self.engine, self.loop.served, self.config.model)

    def reset_prefix_cache(self) -> bool:
        """Forget the prompts and answers that are kept in memory; True if no request uses any of them just now."""
        with self.loop.lock():
            pool = self.engine.cache.pool
            pool.clear()
            return not pool.num_used

    def close(self) -> None:
        """End its requests and release the weights: they are freed with the last LLM that shares them.

        `with LLM(...) as llm:` does so at the end of the block. Nothing can be asked any more. Harmless if done before.
        Waits for prompts that are being written.
        """
        if self._loop is None:
            return
        self._loop.end_all()
        self._loop = None
        store.finish_writing()
        del self.model, self.grammars, self._loaded
        return_freed()

    def __repr__(self) -> str:
        model, drafter = self.config.model, self.drafter_spec.text()
        state = ", closed" if self._loop is None else ""
        return f"LLM({model!r}, drafter={drafter!r}, max_model_len={self.max_len}{state})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def loop(self) -> EngineLoop:
        """What runs the requests. Raises RequestError after `close`."""
        if self._loop is None:
            raise RequestError("this LLM is closed: make another one")
        return self._loop

    @property
    def engine(self) -> Engine:
        """The engine; nothing else may use this LLM while it is stepped."""
        return self.loop.engine

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the token ids of text, of chat messages (through the template), or the ids themselves."""
        return encode(prompt, self.tokenizer).token_ids

    def load(
        self, model: str, *, quant: Quant = "none", head_bits: int | None = None
    ) -> LoadedModel:
        """Load another model to run with this one, as a draft. `self` is this one's own file, perhaps rounded."""
        return self._loaded.load_draft(model, quant=quant, head_bits=head_bits)

    def target(self, cache: KVCache | None = None, max_num_seqs: int = 1) -> Target:
        """Return the target that a drafter is built with."""
        return self._loaded.target(self.max_len, cache, max_num_seqs, self.config)

    def _with(self, spec: DrafterSpec, **changes: Any) -> LLM:
        """Return the same weights with an engine of its own."""
        lock, other = self.loop.model_lock, copy.copy(self)
        other.drafter_spec = spec
        other.config = replace(self.config, **changes)
        other.max_len = max_len_of(other.config, self.model.config)
        other.plan = other._planned(spec)
        other._loop = other._new_loop(lock)
        return other

    def _submit(
        self, prompt: Encoded, sampling_params: SamplingParams, sink: Sink | None = None
    ) -> Request:
        if prompt.is_chat:
            text, tokenizer = prompt.text or "", self.tokenizer
            sampling_params = stopped_behind_thought(sampling_params, text, tokenizer)
        request = self.loop.submit(
            prompt.token_ids,
            sampling_params,
            sink,
            prompt=prompt.text,
            num_instructions=prompt.num_instructions,
        )
        return request.wait_for_grammar()

    def _run(
        self,
        prompts: Sequence[Encoded],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool | None,
        adapted: Callable[[Encoded, SamplingParams], SamplingParams] = lambda prompt, own: own,
    ) -> list[Request]:
        """Run the prompts together to the end, each with its parameters `adapted`; if one cannot be run, none is."""
        params = self.default_params() if sampling_params is None else sampling_params

        def submit(prompt: Encoded, own: SamplingParams) -> Request:
            return self._submit(prompt, adapted(prompt, own))

        return request_batch.run(submit, prompts, params, use_tqdm=use_tqdm)

    def _planned(
        self, spec: DrafterSpec, checkpoint: Checkpoint | None = None
    ) -> MemoryPlan | None:
        """Plan within the memory budget, if there is one, and log what was given up. Raises CapacityError."""
        budget = self.config.budget_nbytes
        if budget is None:
            return None
        return_at_once()
        opened = checkpoint or open_checkpoint(self.path)
        planner = Planner(self.config, self.device, spec, opened, self.tokenizer)
        plan = planner.fit(budget)
        if given_up := planner.given_up(plan):
            what = sizes.mebibytes(budget)
            _log.warning("reduced to fit the memory budget of %s: %s", what, "; ".join(given_up))
        return plan

    def _new_loop(self, lock: EngineLock) -> EngineLoop:
        """Build what was asked for, as far as the plan has room for it; may change `max_len` and `drafter_spec`."""
        if (plan := self.plan) is None:
            load = workload_of(self.config, self.max_len, self.model.config)
        else:
            load = replace(plan.workload, num_blocks=plan.num_blocks)
            if plan.drafter.name != self.drafter_spec.text():
                self.drafter_spec = DrafterSpec.of(plan.drafter.name)
        self.max_len = load.max_len
        loop, self.drafter_spec = self._loaded.new_loop(self.config, load, self.drafter_spec, lock)
        return loop


def planner_of(config: EngineConfig) -> Planner:
    """Plan what `LLM(config)` will take, before it is loaded. Raises LoadError, ConfigError."""
    return Planner.of(config, device_of(config))
