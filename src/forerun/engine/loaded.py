"""A model in memory and what its files say: what LLMs with different drafters share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from forerun.core.config import EngineConfig
from forerun.core.device import num_threads
from forerun.core.errors import memory_refused
from forerun.core.opened import OpenedFile
from forerun.core.params import SamplingParams
from forerun.drafting.base import LoadModel, Target
from forerun.drafting.load_draft import load_draft
from forerun.model.backends.base import Progress
from forerun.model.cache.base import KVCache
from forerun.model.loader import load_model
from forerun.model.model import Model
from forerun.text.tokenizer import Tokenizer
from forerun.weights.base import Checkpoint
from forerun.weights.identity import Identity, identity_of

LEAST_NBYTES = 16 << 20
"""Weights of a smaller model are not worth a table of replies."""


@dataclass(frozen=True)
class Loaded:
    """Holds no LLM, which holds who may keep it."""

    model: Model
    path: Path
    tokenizer: Tokenizer
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
        progress: Progress | None,
    ) -> Loaded:
        """Read the weights, telling `progress` how many of their bytes are loaded. Raises LoadError."""
        load = partial(
            load_model,
            device=device,
            num_threads=num_threads(config.threads),
            backend=config.backend,
        )
        facts = (checkpoint.default_params(), tuple(checkpoint.files), checkpoint.names())
        model: Model
        with memory_refused("the weights"):
            if config.tensor_parallel_size > 1:
                from forerun.parallel import load as parallel  # imports torch

                model = parallel.load(checkpoint, config)
            else:
                model = load(
                    checkpoint, quant=config.quant, head_bits=config.head_bits, progress=progress
                )
        return cls(model, path, tokenizer, *facts, identity_of(checkpoint), load)

    @property
    def load_draft(self) -> LoadModel:
        """What loads another model to run with this one."""
        return partial(load_draft, self.path, self.model, self.load)

    def target(
        self, max_len: int, cache: KVCache | None, max_num_seqs: int, *, has_budget: bool
    ) -> Target:
        """Return the target that a drafter is built with. A tiny model, or one within a budget, gets no tables made."""
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
        )
