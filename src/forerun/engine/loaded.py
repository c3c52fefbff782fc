"""A model in memory and what its files say: what LLMs with different drafters share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from forerun.core.config import EngineConfig, Quant
from forerun.core.errors import memory_refused
from forerun.core.params import SamplingParams
from forerun.decoding.guidance import Grammars
from forerun.drafters.base.contract import SELF, LoadedModel, Target, TreeSize
from forerun.drafters.base.spec import DrafterSpec
from forerun.engine.engine import Engine
from forerun.engine.intake import text_maker
from forerun.engine.lock import EngineLock
from forerun.engine.loop import EngineLoop
from forerun.engine.memory import Workload
from forerun.hub.names import resolve
from forerun.model.backends.base import Progress
from forerun.model.cache.base import KVCache
from forerun.model.loader import load_model
from forerun.model.model import Model
from forerun.model.prompt_cache import keep_on_disk
from forerun.system.device import num_threads
from forerun.system.opened import OpenedFile
from forerun.text.tokenizer import Tokenizer
from forerun.weights.base import Checkpoint
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.identity import Identity, identity_of

LEAST_NBYTES = 16 << 20
"""Weights of a smaller model are not worth a table of replies."""


@dataclass(frozen=True)
class Loaded:
    """Holds no LLM, which holds who may keep it."""

    model: Model
    path: Path
    tokenizer: Tokenizer
    grammars: Grammars
    default_params: SamplingParams
    """How the files say that it is sampled."""
    files: tuple[OpenedFile, ...]
    """What they were when it was loaded."""
    names: frozenset[str]
    """The tensors of the files."""
    identity: Identity
    load: Callable[..., Model]
    """Loads another model to the same device."""

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        path: Path,
        tokenizer: Tokenizer,
        config: EngineConfig,
        device: str,
        max_len: int,
        progress: Progress | None,
    ) -> Loaded:
        """Read the weights, and call `progress` with the number of bytes loaded. Raises LoadError."""
        load = partial(
            load_model,
            device=device,
            num_threads=num_threads(config.threads),
            max_len=max_len,
        )
        facts = (checkpoint.default_params(), tuple(checkpoint.files), checkpoint.names())
        model: Model
        with memory_refused("the weights"):
            if config.tensor_parallel_size > 1:
                from forerun.parallel import load as parallel  # imports torch

                model = parallel.load(checkpoint, config, max_len)
            else:
                model = load(
                    checkpoint, quant=config.quant, head_bits=config.head_bits, progress=progress
                )
        vocab_size = model.config.vocab_size
        grammars = Grammars(tokenizer, vocab_size, are_strangers=config.is_server)
        return cls(model, path, tokenizer, grammars, *facts, identity_of(checkpoint), load)

    def load_draft(
        self, model: str, *, quant: Quant = "none", head_bits: int | None = None
    ) -> LoadedModel:
        """Load another model to run with this one, which SELF names. It is a `LoadModel`."""
        checkpoint = open_checkpoint(self.path if model == SELF else resolve(model))
        loaded = self.load(checkpoint, shares_with=self.model, quant=quant, head_bits=head_bits)
        return LoadedModel(loaded, checkpoint.tokenizer())

    def target(
        self, max_len: int, cache: KVCache | None, max_num_seqs: int, config: EngineConfig
    ) -> Target:
        """Return the target that a drafter is built with. A tiny model, or one within a budget, gets no tables made."""
        has_budget = config.budget_nbytes is not None
        encode = partial(self.tokenizer.encode, special=False, bos=False)
        return Target(
            self.model,
            self.tokenizer,
            max_num_seqs,
            max_len,
            cache,
            self.load_draft,
            self.path,
            self.names,
            self.identity,
            encode=None if has_budget or self.model.nbytes() < LEAST_NBYTES else encode,
            tree_size=TreeSize.of(config),
        )

    def new_loop(
        self, config: EngineConfig, load: Workload, spec: DrafterSpec, lock: EngineLock
    ) -> tuple[EngineLoop, DrafterSpec]:
        """Build an engine with its cache and its drafter for a workload; also return which drafter it is."""
        config = replace(config, max_num_seqs=load.num_seqs, prefill_chunk=load.prefill_rows)
        cache = self.model.new_cache(
            load.num_seqs,
            load.max_len,
            config.kv,
            load.num_blocks,
            load.num_checkpoints,
            load.draft_rows,
        )
        keep_on_disk(cache, self.model, config, self.path.stem, self.files)
        target = self.target(load.max_len, cache, load.num_seqs, config)
        spec = spec.for_target(target)
        engine = Engine(
            self.model,
            cache,
            spec.build(target),
            config,
            eos_ids=self.tokenizer.eos_ids,
            grammars=self.grammars.begin,
            logit_rows=load.logit_rows,
            draft_forced=spec.name != "none",
            encode=partial(self.tokenizer.encode, bos=False),
        )
        loop = EngineLoop(engine, text_maker(self.tokenizer), lock, self.tokenizer.text_of)
        return loop, spec
