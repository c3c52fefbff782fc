"""The engine: `step` is the whole story. It knows no drafter by name and no model by family.

admit -> propose -> pack -> forward -> head -> verify -> keep -> emit -> observe

Each sequence goes through it as one `SequenceStep`.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache

import numpy as np

from forerun.core import tree
from forerun.core.arrays import Floats
from forerun.core.config import EngineConfig
from forerun.core.errors import DeviceMemoryError
from forerun.core.params import SamplingParams
from forerun.core.types import Event, FinishReason, Seq, TextPiece, TopK
from forerun.decoding.stops import Detokenizer
from forerun.decoding.verify import Best, verify
from forerun.drafters.base.contract import Drafter
from forerun.engine.controller import Adaptive, Controller, Fixed
from forerun.engine.intake import Intake, NewGrammar
from forerun.engine.memory import LOGIT_ROWS
from forerun.engine.prefill import PrefillPace, rank, shares
from forerun.engine.proposer import Proposer
from forerun.engine.scheduler import RowBudgets, Scheduler
from forerun.engine.sequence import SLOW_MASKS_S, SequenceState, SequenceStep, pack
from forerun.engine.stats import SpecStats, Timers
from forerun.model.cache.base import KVCache
from forerun.model.cache.blocks import BLOCK_ROWS
from forerun.model.kernels import native
from forerun.model.model import Draws, Hidden, Model, Noises, attention_cost

MOMENT_S = 0.01

Watch = Callable[[Seq, int, Floats], object]
"""Called with a sequence, a position, and the states (n, D) of its tokens from there on, which a pass made final."""


class Engine:
    """Runs sequences over one model, one cache and one drafter."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        drafter: Drafter,
        config: EngineConfig,
        *,
        eos_ids: frozenset[int] = frozenset(),
        grammars: NewGrammar | None = None,
        logit_rows: int = LOGIT_ROWS,
        draft_forced: bool = True,
        encode: Callable[[str], Sequence[int]] | None = None,
    ) -> None:
        """`cache` is the model's; its slots and their length are how many sequences run at once and how long they get.

        `grammars` makes the grammar of a structured output, whose forced tokens are drafted unless `draft_forced` is
        false; `encode` reads predictions.
        """
        self.model = model
        self.stats = SpecStats()
        self.budgets = RowBudgets.of(config, cache.draft_rows)
        controller: Controller = Fixed(config.draft_budget)
        if config.controller and native.available():  # without them all drafts are taken whole
            step_cost = 0.0 if drafter.asking is None else drafter.asking.step_cost
            controller = Adaptive(
                config.draft_budget, row_cost=_attention_cost(model), model_step_cost=step_cost
            )
        self.proposer = Proposer(
            drafter,
            controller,
            config,
            self.stats,
            model.config.vocab_size,
            cache.max_len,
            self.budgets.draft,
            draft_forced=draft_forced,
        )
        self.config = config
        self.cache = cache
        self.intake = Intake(
            model.config.vocab_size,
            cache.max_len,
            eos_ids,
            random.Random(config.seed),
            grammars,
            encode,
        )
        self.scheduler = Scheduler(self.cache, reuse=not drafter.features.whole_prompt)
        if cache.disk is not None and drafter.features.reads_rows:
            cache.disk.rows_left = BLOCK_ROWS  # so that it sees some states of the prompt
        self.pace = PrefillPace(self.budgets.prefill)
        self.timers = Timers()
        self.sequences: dict[int, SequenceState] = {}
        self.watch: Watch | None = None
        """Sees the model's last states, after each pass."""
        self._draws = model if isinstance(model, Draws) else None
        self._logits: Floats | None = None
        self._logit_rows = logit_rows

    def add(
        self, prompt: Sequence[int], params: SamplingParams, text: Detokenizer | None = None
    ) -> SequenceState:
        """Queue one sequence of a prompt, whose tokens `text` turns into text. Raises RequestError, CapacityError."""
        state = next(self.intake.sequences(prompt, params, lambda own: text))
        self.queue(state)
        return state

    def queue(self, state: SequenceState) -> None:
        """Queue a sequence that `intake` has made."""
        seq = state.seq
        self.sequences[seq.id] = state
        self.scheduler.add(seq)

    @property
    def has_work(self) -> bool:
        """True while a sequence runs or waits."""
        return bool(self.sequences)

    def step(self) -> list[Event]:
        """Run one pass of the target for all running sequences, and return what it made final."""
        if self.scheduler.waiting:
            self.scheduler.admit()
        steps, clock = self._steps(), self.timers.clock
        if not steps:
            self._await_grammar()
        begun_s = clock()
        self.proposer.propose(steps)
        proposed_s = clock()
        healthy = [step for step in steps if step.error is None]
        ready, hidden = self._forward(self.scheduler.fit(healthy, self.preempt))
        if not ready:
            return self._end_failed(steps)
        num_rows = ready[-1].rows.stop
        num_read = sum(len(step.tokens) for step in ready if not step.state.has_begun)
        self._verify(ready, hidden)
        for step in ready:  # the other scratch rows may be overwritten
            n = len(step.tokens)
            kept = [*range(n), *[n + node for node in step.outcome.path]]
            self.cache.keep(step.seq.slot, kept)
            if self.watch is not None:
                self.watch(step.seq, step.base, hidden.last[step.rows.start :][kept])
        verified_s = clock()
        finished = [step for step in ready if step.outcome.emitted]
        events = [step.emit() for step in finished]
        emitted_s = clock()
        going_on = self._begin_and_end(finished)
        began_s = clock()
        self.proposer.observe(going_on)
        ask_s, verify_s = proposed_s - begun_s + clock() - began_s, verified_s - proposed_s
        timers = self.timers
        timers.draft_s += ask_s + began_s - emitted_s
        timers.verify_s += verify_s
        timers.num_rows += num_rows
        if num_read:
            self._learn_of_reading(num_rows, num_read, verify_s)
        else:
            self.pace.pass_s = verify_s
        self.proposer.controller.learn(finished, num_rows, ask_s, verify_s, num_read)
        if any(step.error is not None for step in steps):
            events += self._end_failed(steps)
        return events

    def num_read(self, seq: Seq) -> int | None:
        """Count the tokens of its prompt whose rows the cache holds; None for a sequence that does not run."""
        slot = seq.slot  # it may end meanwhile: any thread may ask
        return None if slot < 0 else min(self.cache.length(slot), seq.num_prompt)

    def abort(self, seq_id: int) -> Event | None:
        """Cancel a sequence, keeping what it has emitted; its last event, or None if it has ended before."""
        state = self.sequences.get(seq_id)
        if state is None:
            return None
        state.seq.finish_reason = FinishReason.ABORT
        text = ""
        with suppress(Exception):  # of a tokenizer, perhaps for the second time
            text = state.stops.close()
        state.text += text
        pieces = (TextPiece(text, from_draft=False),) if text else ()
        self._forget(state)
        return Event(seq_id, (), pieces, None, FinishReason.ABORT)

    def preempt(self, seq_id: int) -> None:
        """Take a running sequence's slot away; it goes on later, exactly where it was."""
        state = self.sequences[seq_id]
        self._end_drafting(state)
        self.scheduler.preempt(state.seq)

    def _steps(self) -> list[SequenceStep]:
        """Begin a step of every running sequence; prompts share the budget of their rows."""
        steps, reading, now_s = list[SequenceStep](), list[SequenceStep](), time.perf_counter()
        running, from_disk = self.scheduler.running, self.budgets.prefill
        rested = [seq for seq in running if self.sequences[seq.id].rests_until_s <= now_s]
        for seq in rested or running:
            state = self.sequences[seq.id]
            if not state.has_begun:
                from_disk = max(0, from_disk - self.scheduler.read_from_disk(seq, from_disk))
            base = self.cache.length(seq.slot)
            tokens = seq.tokens[base:]
            if not state.has_begun and not state.grammar_is_ready():
                tokens = tokens[:-1]  # the last one's row says what comes first
            if tokens:
                step = SequenceStep(seq, state, tokens, base)
                steps.append(step)
                if not state.has_begun:
                    reading.append(step)
        if reading:
            is_decoding = len(reading) < len(steps)
            budget = min(from_disk, self.pace.budget(is_decoding=is_decoding))
            lengths = [len(step.tokens) for step in reading]
            ranks = [rank(step.seq, left) for step, left in zip(reading, lengths, strict=True)]
            for step, rows in zip(reading, shares(lengths, budget, ranks), strict=True):
                step.tokens = step.tokens[:rows]
        return [step for step in steps if step.tokens]

    def _learn_of_reading(self, num_rows: int, num_read: int, pass_s: float) -> None:
        """Count the rows of prompts in a pass, and learn what they cost."""
        self.scheduler.num_computed += num_read
        self.pace.learn(num_rows, num_read, pass_s)
        if self.cache.disk is not None:
            self.cache.disk.store.learn(num_rows, pass_s)

    def _await_grammar(self) -> None:
        """Wait a moment where there is nothing to do before a grammar is compiled; others may submit in between."""
        for seq in self.scheduler.running[:1]:
            self.sequences[seq.id].grammar_is_ready(MOMENT_S)

    def _forward(self, steps: Sequence[SequenceStep]) -> tuple[list[SequenceStep], Hidden]:
        """Compute the rows of all sequences that can be packed, and return these and the rows' states.

        Where a device has no memory for a pass, the sequence that asks most of it fails, and the others go on: until
        their rows are kept, nothing in the cache has changed.
        """
        ready, batch = pack(steps)
        while ready:
            try:
                layers = self.proposer.drafter.features.layers
                return ready, self.model.forward(batch, self.cache, layers)
            except DeviceMemoryError as error:
                most = max(reversed(ready), key=_memory_asked)
                most.error = error
                ready, batch = pack([step for step in ready if step is not most])
        return [], Hidden(np.empty((0, 0), np.float32))

    def _verify(self, steps: Sequence[SequenceStep], hidden: Hidden) -> None:
        """Verify the drafts, up to where each sequence ends.

        If logits are needed, it takes as many sequences at a time as the logits buffer has rows for.
        """
        self.timers.num_passes += 1
        asked, features = self.proposer.drafter.features, None
        writes = not all(step.state.needs_only_argmax for step in steps)
        draws = writes and self._draws is not None and all(s.needs_only_tokens for s in steps)
        writes = writes and not draws
        verified: list[SequenceStep] = []
        for group in _groups(steps, self._logit_rows) if writes else [steps]:
            for step in verified:
                step.drop_logits()  # their memory is used again
            rows = [row for step in group for row in step.logit_rows]
            noises = [each for step in group for each in step.noises()] if draws else []
            logits, best, top = self._head(hidden, rows, writes, noises)
            if features is None and (asked.last or asked.layers):  # a device is done by now
                wanted = [*hidden.aux, hidden.last] if asked.last else hidden.aux
                features = wanted[0] if len(wanted) == 1 else np.concatenate(wanted, -1)
            first = 0
            for step in group:
                own = range(first, first + len(step.logit_rows))
                first = own.stop
                try:
                    shown = top if top is None or len(group) == 1 else top.part(own)
                    mine = logits[own.start : own.stop]
                    likeliest = None if best is None else best[own.start : own.stop]
                    self._verify_one(step, hidden, features, mine, likeliest, shown)
                except Exception as error:
                    step.fail(error)
            verified += group

    def _head(
        self, hidden: Hidden, rows: Sequence[int], writes: bool, noises: Noises
    ) -> tuple[Floats | Best, Best | None, TopK | None]:
        """Return the logits of rows (M,), or tokens, with the likeliest if they are drawn, and what drafters ask for.

        All come out of one read of the weights. The next call overwrites the logits. A device is waited for here.
        """
        vocab_size = self.model.config.vocab_size
        k = min(self.proposer.drafter.features.top_k, vocab_size)
        if writes and (self._logits is None or len(self._logits) < len(rows)):
            self._logits = None  # freed before the larger one is there
            self._logits = np.empty((len(rows), vocab_size), np.float32)
        logits = self._logits[: len(rows)] if writes and self._logits is not None else None
        if self._draws is not None:
            top, drawn = self._draws.topk_and_draw(
                hidden, rows, max(k, 1), noises, log_normaliser=k > 0, logits=logits
            )
        else:
            states = hidden.last
            if len(rows) < len(states):
                states = states[rows]
            top = self.model.topk(states, max(k, 1), log_normaliser=k > 0, logits=logits)
        shown = top if k else None
        if logits is not None:
            return logits, None, shown
        pairs = zip(top.ids[:, 0].tolist(), top.values[:, 0].tolist(), strict=True)
        best = tuple([token if value > -math.inf else -1 for token, value in pairs])
        if not noises:
            return best, None, shown
        each = zip(best, drawn, noises, strict=True)
        return tuple([token if noise else own for own, token, noise in each]), best, shown

    def _verify_one(
        self,
        step: SequenceStep,
        hidden: Hidden,
        features: Floats | None,
        logits: Floats | Best,
        best: Best | None,
        top: TopK | None,
    ) -> None:
        """Verify one sequence's draft, or take up a part of its prompt."""
        state, rows = step.state, slice(step.rows.start, step.rows.stop)
        seen = None if features is None else features[rows]
        if not state.has_begun:
            last_row = self.proposer.drafter.features.last_row
            state.read_prompt(step.base, hidden, rows, seen, self.model, last_row=last_row)
        if not step.logit_rows:
            return
        pipeline = state.pipeline
        pipeline.mask_s = 0.0
        step.finish(verify(step.seq, step.draft, logits, pipeline, hidden=seen, top=top, best=best))
        state.has_slow_masks = pipeline.mask_s >= SLOW_MASKS_S
        if state.has_slow_masks:
            state.rests_until_s = time.perf_counter() + pipeline.mask_s

    def _begin_and_end(self, steps: list[SequenceStep]) -> list[SequenceStep]:
        """Count what was drafted, and tell the drafter which sequences begin and end; return those that go on."""
        going_on = []
        for step in steps:
            state = step.state
            if state.has_begun:
                if state.prediction is not None:
                    state.prediction.learn(step.draft, step.outcome.path)
                num_levels = 1 + max(tree.depths(step.draft.parents), default=-1)
                for stats in (state.stats, self.stats):
                    stats.record(len(step.draft.tokens), num_levels, step.outcome)
            if step.seq.finish_reason is not None:
                self._forget(state)
            elif state.has_begun:
                going_on.append(step)
            else:
                state.has_begun = True
                prompt = np.concatenate(state.prompt_features) if state.prompt_features else None
                state.prompt_features.clear()
                self.proposer.begin(state.seq, step.outcome._replace(hidden=prompt))
        return going_on

    def _end_drafting(self, state: SequenceState) -> None:
        self.proposer.end(state.seq)
        state.has_begun = False
        state.prompt_features.clear()

    def _end_failed(self, steps: list[SequenceStep]) -> list[Event]:
        """End the sequences that cannot go on; the others do."""
        ended = ((self.abort(step.seq.id), step.error) for step in steps if step.error is not None)
        return [event._replace(error=error) for event, error in ended if event is not None]

    def _forget(self, state: SequenceState) -> None:
        del self.sequences[state.seq.id]
        try:
            self._end_drafting(state)
        finally:
            self.scheduler.release(state.seq)


def _memory_asked(step: SequenceStep) -> int:
    """Return what the memory for a sequence's rows in a pass grows with: their number and their context."""
    return len(step.rows) * (step.base + len(step.rows))


def _groups(steps: Sequence[SequenceStep], most: int) -> Iterator[list[SequenceStep]]:
    """Yield the sequences in order, in groups of `most` rows with logits, or of one sequence."""
    group, num_rows = list[SequenceStep](), 0
    for step in steps:
        num_rows += len(step.logit_rows)
        if group and num_rows > most:
            yield group
            group, num_rows = [], len(step.logit_rows)
        group.append(step)
    if group:
        yield group


def _attention_cost(model: Model) -> Callable[[int], float]:
    """Return what a row's attention costs above the whole blocks of a context, each computed once."""
    above = cache(attention_cost(model))
    return lambda context: above(context - context % BLOCK_ROWS)
