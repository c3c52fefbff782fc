"""The numbers of `engine.memory`, gathered before anything large is loaded.

A model is made without its weights (`model.loader.blank_model`): their memory is mapped, not touched: its size is that
of the loaded one to the byte. Drafters are built for it as for the real one, and asked what they will hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from operator import sub

from forerun.core import sizes
from forerun.core.config import EngineConfig, Precision
from forerun.core.errors import CapacityError, ConfigError
from forerun.drafters.base.contract import (
    SELF,
    Drafter,
    DrafterBytes,
    LoadedModel,
    Target,
    TreeSize,
)
from forerun.drafters.base.spec import DrafterSpec
from forerun.engine import memory
from forerun.engine.memory import (
    NETWORK_COPIES,
    NETWORK_NBYTES,
    PROCESS_NOISE_NBYTES,
    DrafterNumbers,
    MemoryPlan,
    ModelNumbers,
    Workload,
)
from forerun.hub.names import resolve
from forerun.model.cache.blocks import BLOCK_ROWS, blocks_of
from forerun.model.cache.int4 import fits_int4
from forerun.model.cache.states import DRAFT_ROWS
from forerun.model.config import ModelConfig
from forerun.model.loader import blank_model
from forerun.model.model import Model
from forerun.system.device import num_threads, process_nbytes
from forerun.text.tokenizer import Tokenizer
from forerun.weights.base import Checkpoint
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.identity import identity_of
from forerun.weights.rtn import Scheme

DEFAULT_MAX_LEN = 4096
"""Context of a model that could hold more, unless `max_model_len` asks for it."""
SERVED_MAX_LEN = 32768
"""The same of a server: agents' prompts have 20,000 tokens. It shares the memory of so many short sequences."""
KEPT = 0.35
"""Of the generation memory, with which SpecMemo keeps 96 % of its speed (arXiv 2506.01986)."""
GIVEN_UP = {
    "max_len": "{} tokens of context",
    "num_checkpoints": "{} checkpoint{} of recurrent states",
    "logit_rows": "logits of at most {} row{} at a time, or of one sequence",
    "draft_rows": "drafts of at most {} rows",
    "prefill_rows": "prefill of {} tokens a pass",
    "num_seqs": "{} sequence{} at a time",
}
"""Words for what is less than was asked for in a workload."""


def max_len_of(config: EngineConfig, model: ModelConfig) -> int:
    """Return the tokens of a sequence, at most. Raises ConfigError if more are asked for than the model has.

    Unasked a model of longrope has no more than its original context, which it computes by the short factors.
    """
    requested, longest = config.max_model_len, model.max_position
    default = SERVED_MAX_LEN if config.is_server else DEFAULT_MAX_LEN
    original = model.rope.short_length if model.rope is not None else 0
    max_len = min(longest, default, original or longest) if requested is None else requested
    if not 2 <= max_len <= longest:
        message = f"max_model_len must be from 2 to the model's {longest}, got {max_len}"
        raise ConfigError(message, option="max_model_len")
    return max_len


def num_blocks_of(config: EngineConfig, max_len: int) -> int | None:
    """Return the blocks of keys and values, None for all that the sequences can fill.

    A long context that was not asked for takes no more than sequences of `DEFAULT_MAX_LEN`.
    """
    if config.max_model_len is not None or not config.is_server:
        return None
    return blocks_of(max(config.max_num_seqs * min(max_len, DEFAULT_MAX_LEN), max_len))


def workload_of(config: EngineConfig, max_len: int, model: ModelConfig) -> Workload:
    """Return what a configuration asks for, with sequences of `max_len` tokens."""
    return Workload(
        num_seqs=config.max_num_seqs,
        max_len=max_len,
        min_len=min(max_len, DEFAULT_MAX_LEN) if config.max_model_len is None else max_len,
        num_blocks=num_blocks_of(config, max_len),
        precision=config.kv,
        prefill_rows=config.prefill_chunk,
        is_server=config.is_server,
        num_vectors=config.num_vectors,
        num_checkpoints=config.max_num_seqs if model.is_recurrent else 0,
        draft_rows=min(config.draft_budget, DRAFT_ROWS),
    )


def drafter_numbers(
    name: str, drafter: Drafter, model: Model, lengths: Iterable[int]
) -> DrafterNumbers:
    """Measure a built drafter, or several in one, for sequences of each of the `lengths`."""
    features, parts = drafter.features, [*_parts(drafter)]
    width = (len(features.layers) + features.last) * model.config.hidden_size

    def held(num_seqs: int, max_len: int) -> DrafterBytes:
        sizes = [part.memory(num_seqs, max_len) for part in parts]
        kv = sum(size.kv for part, size in zip(parts, sizes) if not part.kv_block_nbytes)
        return DrafterBytes(sum(s.weights for s in sizes), kv, sum(s.tables for s in sizes))

    fixed = held(0, 1)
    of_seq = {n: DrafterBytes(*map(sub, held(1, n), fixed)) for n in lengths}
    network = fixed.weights if width else 0
    return DrafterNumbers(
        name=name,
        fixed=fixed,
        of_seq=of_seq.__getitem__,  # of numbers alone: a plan outlives the drafters that were measured
        kv_block=sum(part.kv_block_nbytes for part in parts),
        num_nodes=drafter.max_nodes,
        feature_width=width,
        is_begun_with_prompt=not features.last_row,
        program=NETWORK_NBYTES * (fixed.weights > 0) + network // 3,
        building=NETWORK_COPIES * network,
    )


def _parts(drafter: Drafter) -> Iterator[Drafter]:
    """Yield the drafters of a combination, one by one."""
    if not drafter.parts:
        yield drafter
    for part in drafter.parts:
        yield from _parts(part)


@dataclass(frozen=True)
class Planner:
    """What a configuration will take, and what a budget makes of it. Raises LoadError and ConfigError."""

    config: EngineConfig
    device: str
    spec: DrafterSpec
    """The drafter that is asked for."""
    checkpoint: Checkpoint
    tokenizer: Tokenizer

    @classmethod
    def of(cls, config: EngineConfig, device: str) -> Planner:
        """Make the planner of a model that is not open yet."""
        process_nbytes()  # first of all
        spec = DrafterSpec.of_config(config)
        checkpoint = open_checkpoint(resolve(config.model))
        return cls(config, device, spec, checkpoint, checkpoint.tokenizer())

    @cached_property
    def model(self) -> Model:
        """The model without its weights, or what the first process holds of it, which is the most."""
        if self.config.tensor_parallel_size > 1:
            from forerun.parallel import load as parallel  # imports torch

            return parallel.blank(self.checkpoint, self.config)
        return self._blank(self.checkpoint, self.config.quant, self.config.head_bits)

    @cached_property
    def numbers(self) -> ModelNumbers:
        """The model's sizes."""
        model = self.model
        states = model.new_cache(1, BLOCK_ROWS, self.config.kv, num_checkpoints=0).states
        memory_of = None if states is None else states.memory
        return ModelNumbers(
            hidden_size=model.config.hidden_size,
            vocab_size=model.config.vocab_size,
            scratch=self._scratch_nbytes,
            process=process_nbytes(),
            weights=model.nbytes(),
            num_tokens=self.tokenizer.vocab_size,
            kv_blocks={
                kv: model.new_cache(1, BLOCK_ROWS, kv).block_nbytes
                for kv in (self.config.kv, *self._others())
            },
            state=0 if memory_of is None else memory_of.state_nbytes,
            state_row=0
            if memory_of is None
            else memory_of.rows_nbytes // (BLOCK_ROWS + DRAFT_ROWS),
        )

    @cached_property
    def workload(self) -> Workload:
        """All that is asked for."""
        model = self.model.config
        return workload_of(self.config, max_len_of(self.config, model), model)

    @cached_property
    def drafters(self) -> list[DrafterNumbers]:
        """The drafter that is asked for, smaller ones, and none, each once."""
        return [*{drafter.name: drafter for drafter in self._drafters()}.values()]

    def plan(self) -> MemoryPlan:
        """Return the plan of all that is asked for, whatever it takes."""
        return memory.plan(self.numbers, self.drafters[0], self.workload)

    def smallest(self) -> MemoryPlan:
        """Return the plan with the fewest bytes that works."""
        return memory.smallest(self.numbers, self.drafters, self.workload)

    def smallest_budget(self, kv: Precision | None = None) -> int:
        """Return the smallest budget that works in any process of this program: two differ by a little."""
        load = replace(self.workload, precision=kv or self.workload.precision)
        least = memory.smallest(self.numbers, self.drafters, load)
        return least.total + PROCESS_NOISE_NBYTES

    def drafting_budget(self) -> int:
        """Return the budget from which drafting keeps its speed: `KEPT` of its memory, and nothing of it given up.

        With so much, 94 to 100 % of the speed were measured (docs/memory.md).
        """
        whole = self.plan()
        least = memory.drafting(self.numbers, self.drafters[0], self.workload).total
        return max(least, whole.total - round((1 - KEPT) * whole.generation)) + PROCESS_NOISE_NBYTES

    def rounded(self) -> dict[Precision, int]:
        """Return the smallest budgets with keys and values in fewer bits, the user's choice: they change tokens."""
        blocks, asked = self.numbers.kv_blocks, self.workload.precision
        fewer = (kv for kv in self._others() if blocks[kv] < blocks[asked])
        return {kv: self.smallest_budget(kv) for kv in fewer}

    def fitting(self, budget: int) -> MemoryPlan | None:
        """Return the plan within the budget; None if nothing works."""
        return memory.fit(self.numbers, self.drafters, self.workload, budget)

    def fit(self, budget: int) -> MemoryPlan:
        """Return the plan within the budget. Raises CapacityError that names the smallest budget that works."""
        plan = self.fitting(budget)
        if plan is None:
            least = sizes.shown_up(self.smallest_budget())
            allowing = (kv for kv, nbytes in self.rounded().items() if nbytes <= budget)
            kv = next(allowing, None)
            raise CapacityError(
                f"a memory budget of {sizes.mebibytes(budget)} is too small for {self.config.model} with "
                f"{self.smallest().workload.max_len} tokens of context: the smallest that works is {least}; "
                + ("" if kv is None else f"--kv {kv} fits, which may change tokens; ")
                + "a shorter max_model_len needs less"
            )
        return plan

    def given_up(self, chosen: MemoryPlan) -> list[str]:
        """Describe how a plan differs from what was asked for, besides the number of blocks."""
        name = chosen.drafter.name
        words = []
        if name != self.drafters[0].name:
            words.append("no drafter" if name == "none" else f"drafter {name}")
        for field, what in GIVEN_UP.items():
            number = getattr(chosen.workload, field)
            if number < getattr(self.workload, field):
                words.append(what.format(number, "" if number == 1 else "s"))
        return words

    def _scratch_nbytes(self, load: Workload, num_rows: int, num_nodes: int) -> int:
        cache = self.model.new_cache(
            1, load.max_len, load.precision, num_checkpoints=0, draft_rows=load.draft_rows
        )
        head_rows = load.num_seqs * (1 + num_nodes)
        return self.model.scratch_nbytes(cache, num_rows, num_nodes, head_rows)

    def _others(self) -> list[Precision]:
        """Return how keys and values may be kept instead, the best first."""
        config = self.model.config
        layers = range(config.num_layers)
        fits = self.device == "cpu" and all(
            fits_int4(config.heads(i)[1], config.value_dim(i)) for i in layers
        )
        grouped: list[Precision] = ["k8v4", "int4"] if fits else []
        return [kv for kv in ("fp16", "int8", *grouped) if kv != self.config.kv]

    def _drafters(self) -> Iterator[DrafterNumbers]:
        target, built = self.target(), dict[str, Drafter]()
        spec: DrafterSpec | None = self.spec.for_target(target)
        lengths = {load.max_len for load in memory.halved(self.numbers, self.workload)}
        program = 0
        while spec is not None:
            drafter = spec.build(target, built)  # a smaller one differs in some of its parts
            numbers = drafter_numbers(spec.text(), drafter, self.model, lengths)
            # What a network was the first to use stays, also where a smaller drafter is taken.
            program = max(program, numbers.program)
            yield replace(numbers, program=program)
            spec = spec.smaller()
        yield DrafterNumbers(name="none", program=program)

    def target(self) -> Target:
        """Return what drafters are built with."""
        load, config = self.workload, self.config
        max_len = load.max_len
        cache = self.model.new_cache(config.max_num_seqs, max_len, num_blocks=load.num_blocks)
        return Target(
            self.model,
            self.tokenizer,
            config.max_num_seqs,
            max_len,
            cache,
            self._load,
            self.checkpoint.path,
            self.checkpoint.names(),
            identity_of(self.checkpoint),
            tree_size=TreeSize.of(config),
        )

    def _load(
        self, model: str, *, quant: Scheme = "none", head_bits: int | None = None
    ) -> LoadedModel:
        checkpoint = self.checkpoint if model == SELF else open_checkpoint(resolve(model))
        return LoadedModel(self._blank(checkpoint, quant, head_bits), checkpoint.tokenizer())

    def _blank(self, checkpoint: Checkpoint, quant: Scheme, head_bits: int | None) -> Model:
        return blank_model(
            checkpoint,
            device=self.device,
            num_threads=num_threads(self.config.threads),
            quant=quant,
            head_bits=head_bits,
        )
