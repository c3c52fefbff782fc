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
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeGuard, cast

import torch

from forerun.cache.base import KVCache
from forerun.core.config import DEFAULT_MODEL, EngineConfig, Quant
from forerun.core.device import choose_device, set_threads
from forerun.core.errors import ConfigError, ForerunError, RequestError
from forerun.core.params import SamplingParams
from forerun.core.types import Event
from forerun.drafters._spec import AUTO_CHOICE, DrafterSpec
from forerun.drafters.base import SELF, Drafter, LoadedModel, Target
from forerun.engine.engine import Engine
from forerun.engine.loop import EngineLoop, RequestHandle, Sink, Turns
from forerun.engine.outputs import RequestOutput
from forerun.formats.checkpoint import open_checkpoint
from forerun.formats.hub import resolve
from forerun.formats.tokenizer import TextStream
from forerun.nn.loader import load_model
from forerun.tune import profile

DEFAULT_MAX_LEN = 4096
"""Context of a model that could hold more, unless `max_model_len` asks for it."""

_DTYPES = {"auto": None, "fp16": torch.float16, "fp32": torch.float32}

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or chat messages (which go through the model's template)."""


_log = logging.getLogger(__name__)


def is_prompt(value: Prompt | Sequence[Prompt]) -> TypeGuard[Prompt]:
    """True for one prompt, False for a list of prompts."""
    return isinstance(value, str) or (bool(value) and isinstance(value[0], int | Mapping))


class LLM:
    """Loads a model once and answers many requests, of several threads too; they share the passes over its weights."""

    def __init__(self, model: str | EngineConfig = DEFAULT_MODEL, **overrides: Any) -> None:
        """Load a model (a path, a known name or a hub name) and build the drafter, or do so as a configuration says.

        Keywords are `EngineConfig`'s fields, and `speculative_config`, `assistant_model` and
        `prompt_lookup_num_tokens` as elsewhere. `drafter` may also be a `Drafter` of your own, which then serves this
        LLM alone. Raises LoadError, ConfigError.
        """
        self.config = config = EngineConfig.of(model, **overrides)
        self.drafter_spec = DrafterSpec.of_config(config)
        if config.threads is not None:  # else as many as torch uses already
            set_threads(config.threads)
        self.device = choose_device(config.device)
        self.path = resolve(config.model)
        checkpoint = open_checkpoint(self.path)
        self.tokenizer = checkpoint.tokenizer()
        self._load_model = partial(
            load_model, device=self.device, backend=config.backend, weight_cache=config.weight_cache
        )
        self.model = self._load_model(checkpoint, quant=config.quant, head_bits=config.head_bits)
        longest, asked = self.model.config.max_position, config.max_model_len
        self.max_len = min(longest, DEFAULT_MAX_LEN) if asked is None else asked
        if not 2 <= self.max_len <= longest:
            raise ConfigError(
                f"max_model_len must be from 2 to the model's {longest}, got {self.max_len}"
            )
        self.subject = profile.Subject.of(
            self.path, config, device=str(self.device), backend=type(self.model).__name__
        )
        self.profile = profile.load(self.subject)
        self.loop = self._new_loop(Turns())

    def with_drafter(self, drafter: str | Mapping[str, object] | Drafter, **options: object) -> LLM:
        """The same weights with another drafter and an engine of its own; `none` is plain decoding."""
        other = copy.copy(self)
        other.drafter_spec = DrafterSpec.of(drafter, **options)
        other.loop = other._new_loop(self.loop.turns)
        return other

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Complete one prompt or many; the outputs come in the prompts' order. Raises RequestError, CapacityError."""
        batch = [prompts] if is_prompt(prompts) else [*cast(Sequence[Prompt], prompts)]
        if not isinstance(params, Sequence):
            params = [params or SamplingParams()] * len(batch)
        if len(params) != len(batch):
            raise RequestError(f"{len(batch)} prompts but {len(params)} sampling params")
        requests: list[RequestHandle] = []
        try:
            for prompt, wanted in zip(batch, params, strict=True):
                requests.append(self.submit(prompt, wanted))
            for request in requests:
                request.wait()
        finally:
            for request in requests:
                request.cancel()
        return [request.output() for request in requests]

    def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> RequestOutput:
        """Answer a conversation. Turns that were computed before are reused, not computed again."""
        return self.generate([messages], params)[0]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Event]:
        """Complete one prompt, yielding what each step made final. Leaving the loop early cancels the rest."""
        return self.submit(prompt, params or SamplingParams()).events()

    def submit(
        self, prompt: Prompt, params: SamplingParams, sink: Sink | None = None
    ) -> RequestHandle:
        """Queue a prompt without running anything: whoever waits for a request moves all of them on."""
        return self.loop.submit(self.encode(prompt), params, sink)

    @property
    def engine(self) -> Engine:
        """The engine; who steps it must be the only one to use this LLM meanwhile."""
        return self.loop.engine

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of text, of chat messages (through the template), or the ids themselves."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if prompt and isinstance(prompt[0], Mapping):
            messages = cast(Sequence[Message], prompt)
            return self.tokenizer.encode(self.tokenizer.apply_chat_template(messages), bos=False)
        return [*cast(Sequence[int], prompt)]

    def load(
        self, model: str, *, quant: Quant = "none", head_bits: int | None = None
    ) -> LoadedModel:
        """Another model, to run beside this one: a draft. `self` is this one's own file, such as with fewer bits."""
        checkpoint = open_checkpoint(self.path if model == SELF else resolve(model))
        loaded = self._load_model(checkpoint, beside=self.model, quant=quant, head_bits=head_bits)
        return LoadedModel(loaded, checkpoint.tokenizer())

    def target(self, cache: KVCache | None = None, max_num_seqs: int = 1) -> Target:
        """What a drafter is built with."""
        return Target(self.model, self.tokenizer, max_num_seqs, self.max_len, cache, self.load)

    def _new_loop(self, turns: Turns) -> EngineLoop:
        num_seqs = self.config.max_num_seqs
        cache = self.model.new_cache(num_seqs, self.max_len, _DTYPES[self.config.kv])
        drafter = self._new_drafter(self.target(cache, num_seqs))
        known = None
        if self.profile is not None:
            known = self.profile.prior(self.drafter_spec.text(), num_seqs)
        eos_ids = self.tokenizer.eos_ids
        engine = Engine(self.model, cache, drafter, self.config, eos_ids=eos_ids, prior=known)
        return EngineLoop(engine, lambda: TextStream(self.tokenizer), turns)

    def _new_drafter(self, target: Target) -> Drafter:
        """The one asked for; if none was, what the profile chose, or else our own choice."""
        if self.drafter_spec.is_auto and self.profile is not None:
            try:
                spec = DrafterSpec.of(self.profile.drafter)
                drafter = spec.build(target)
            except ForerunError as error:
                _log.warning(
                    "the profile's drafter cannot be used, taking %s: %s", AUTO_CHOICE, error
                )
            else:
                self.drafter_spec = spec
                return drafter
        return self.drafter_spec.build(target)
