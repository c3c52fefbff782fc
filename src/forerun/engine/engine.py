"""The engine: `step` is the whole story. It knows no drafter by name and no model by family.

admit -> propose -> pack -> forward -> head -> verify -> keep -> emit -> observe
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from forerun.core.arrays import Floats
from forerun.core.config import EngineConfig
from forerun.core.errors import CapacityError, RequestError, short_repr
from forerun.core.params import SamplingParams
from forerun.core.structured import StructuredOutputsParams
from forerun.core.types import EMPTY_DRAFT, Draft, Event, FinishReason, Seq, TextPiece, TopK
from forerun.decoding.grammar import GrammarState
from forerun.decoding.processors import LogitsPipeline
from forerun.decoding.stops import Detokenizer, StopChecker
from forerun.decoding.verify import Best, verify
from forerun.drafting.base import Drafter
from forerun.drafting.predicted import Prediction
from forerun.engine.batch import Pass, SequenceRows, pack
from forerun.engine.controller import Adaptive, Controller, Fixed
from forerun.engine.failures import Failures
from forerun.engine.memory import LOGIT_ROWS
from forerun.engine.pressure import MemoryPressure, Need
from forerun.engine.proposer import Proposer
from forerun.engine.safe_drafter import SafeDrafter
from forerun.engine.scheduler import Scheduler
from forerun.engine.sequence import SequenceState, StepResult
from forerun.engine.stats import SpecStats, Timers
from forerun.model.cache.base import KVCache
from forerun.model.model import Hidden, Model

NewGrammar = Callable[[StructuredOutputsParams], GrammarState]


class Prepared(NamedTuple):
    """What takes its time before a request can be queued."""

    grammar: GrammarState | None
    predicted_ids: Sequence[int]


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
        kind = Adaptive if config.controller else Fixed
        controller: Controller = kind(config.draft_budget)
        safe = SafeDrafter(drafter, self.stats, model.config.vocab_size)
        self.failures = Failures()
        self.proposer = Proposer(
            safe,
            controller,
            config,
            self.failures,
            cache.max_len,
            cache.draft_rows,
            draft_forced=draft_forced,
        )
        self.config = config
        self.eos_ids = eos_ids
        self.cache = cache
        self._grammars, self._encode = grammars, encode
        self.scheduler = Scheduler(self.cache, reuse=not drafter.features.whole_prompt)
        self.pressure = MemoryPressure(self.cache, self.scheduler, self.stats)
        self.timers = Timers()
        self.sequences: dict[int, SequenceState] = {}
        self._logits: Floats | None = None
        self._logit_rows = logit_rows
        self._next_id = 0
        self._seeds = random.Random(config.seed)

    def prepare(self, prompt: Sequence[int], params: SamplingParams) -> Prepared:
        """Check a request, compile its grammar and encode its prediction: any thread may, while others step.

        Raises RequestError and CapacityError.
        """
        self._check(prompt, params)
        return Prepared(self._grammar(params), self._predicted_ids(params))

    def add(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        detokenizer: Detokenizer | None = None,
        *,
        stream: int = 0,
        prepared: Prepared | None = None,
    ) -> SequenceState:
        """Queue a prompt; `detokenizer` turns its tokens into text, `stream` tells apart sequences of one seed.

        Raises RequestError and CapacityError.
        """
        prepared = prepared or self.prepare(prompt, params)
        seed = self._seeds.getrandbits(63) if params.seed is None else params.seed
        seq = Seq(self._next_id, list(prompt), params, seed, stream)
        room = self.cache.max_len - len(prompt)
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        stops = StopChecker(params, max_tokens, self.eos_ids, detokenizer)
        pipeline = LogitsPipeline(
            params, prompt, noise=seq.noise, eos_ids=self.eos_ids, grammar=prepared.grammar
        )
        predicted = prepared.predicted_ids
        prediction = Prediction(predicted) if predicted else None
        state = SequenceState(seq, stops, pipeline, prediction)
        self._next_id += 1
        self.sequences[seq.id] = state
        self.scheduler.add(seq)
        return state

    @property
    def has_work(self) -> bool:
        """True while a sequence runs or waits."""
        return bool(self.sequences)

    def step(self) -> list[Event]:
        """Run one pass of the target for all running sequences, and return what it made final."""
        self.scheduler.admit()
        if not self.scheduler.running:
            return []
        draft_s, verify_s = self.timers.draft_s, self.timers.verify_s
        with self.timers("propose"):
            drafts = self.proposer.propose(self.sequences[seq.id] for seq in self.scheduler.running)
        with self.timers("pack"):
            work = self._pack(drafts)
        if not work.seq_rows:
            return self._end_failed()
        with self.timers("forward"):
            hidden = self.model.forward(
                work.batch, self.cache, self.proposer.drafter.features.layers
            )
        results = self._verify(work, hidden)
        with self.timers("keep"):
            self._keep(work, results)
        with self.timers("emit"):
            events = [result.state.take(result) for result in results]
        with self.timers("observe"):
            self._observe(results)
        self._learn(work, results, self.timers.draft_s - draft_s, self.timers.verify_s - verify_s)
        return events + self._end_failed()

    def num_read(self, seq: Seq) -> int | None:
        """Count the tokens of its prompt whose rows the cache holds; None for a sequence that does not run."""
        return None if seq.slot < 0 else min(self.cache.length(seq.slot), seq.num_prompt)

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

    def _check(self, prompt: Sequence[int], params: SamplingParams) -> None:
        max_len = self.cache.max_len
        if not prompt:
            raise RequestError("the prompt is empty: give at least one token")
        self._check_ids((*prompt, *params.logit_bias, *params.stop_token_ids))
        if len(prompt) >= max_len:
            raise CapacityError(
                f"the prompt has {len(prompt)} tokens, the context holds {max_len} including the "
                "answer: shorten the prompt or raise --max-model-len"
            )

    def _check_ids(self, token_ids: Sequence[int]) -> None:
        vocab_size = self.model.config.vocab_size
        for token in token_ids:
            if not (isinstance(token, int) and 0 <= token < vocab_size):
                raise RequestError(
                    f"token id {short_repr(token)} is not in the vocabulary of {vocab_size}"
                )

    def _grammar(self, params: SamplingParams) -> GrammarState | None:
        if params.structured_outputs is None:
            return None
        if self._grammars is None:
            message = "structured_outputs must be none: this engine has no grammars"
            raise RequestError(message, option="structured_outputs")
        return self._grammars(params.structured_outputs)

    def _predicted_ids(self, params: SamplingParams) -> Sequence[int]:
        if not params.prediction or params.max_draft == 0:
            return ()
        token_ids: Sequence[int]
        if not isinstance(params.prediction, str):
            token_ids = params.prediction
        elif self._encode is not None:
            token_ids = self._encode(params.prediction)
        else:
            message = "prediction must be none: this engine has no tokenizer"
            raise RequestError(message, option="prediction")
        self._check_ids(token_ids)
        return token_ids

    def _pack(self, drafts: dict[int, Draft]) -> Pass:
        """Pack the tokens and draft of every sequence; prompts share `prefill_chunk` rows, first come first served."""
        needs, room = [], self.config.prefill_chunk
        for seq in self.scheduler.running:
            if seq.id in self.failures:
                continue
            pending = self.scheduler.pending(seq)
            if not self.sequences[seq.id].has_begun:
                pending = pending[:room]
                room -= len(pending)
            if pending:
                needs.append(Need(seq, pending, drafts.get(seq.id, EMPTY_DRAFT)))
        work = []
        for need, draft in zip(needs, self.pressure.fit(needs), strict=True):
            seq = need.seq
            if seq.slot < 0:
                continue  # preempted for one before it
            if not self.cache.reserve(seq.slot, need.pending + len(draft)):
                draft = EMPTY_DRAFT
            if self._make_room(seq, need.pending):
                with self.failures.of(seq.id):
                    base = self.cache.length(seq.slot)
                    work.append(SequenceRows.of(seq, need.tokens, base, draft))
        return pack(work)

    def _make_room(self, seq: Seq, rows: int) -> bool:
        """Preempt the youngest sequences until another has room for its rows; False if it was its own turn."""
        while not self.cache.reserve(seq.slot, rows):
            if self.pressure.reclaim():
                continue
            youngest = self.scheduler.running[-1]
            assert youngest is not seq or len(self.scheduler.running) > 1, (
                "one sequence always fits"
            )
            self.preempt(youngest.id)
            if youngest is seq:
                return False
        return True

    def _verify(self, work: Pass, hidden: Hidden) -> list[StepResult]:
        """Verify the drafts, up to where each sequence ends.

        As many sequences at a time as there are rows of logits for, where they are needed.
        """
        wanted = [*hidden.taps, *([hidden.last] if self.proposer.drafter.features.last else [])]
        features = None  # what the drafter asked to see
        if wanted:
            features = wanted[0] if len(wanted) == 1 else np.concatenate(wanted, -1)
        states = (self.sequences[one.seq.id] for one in work.seq_rows)
        writes = not all(state.needs_only_argmax for state in states)
        results: list[StepResult] = []
        for group in work.groups(self._logit_rows if writes else None):
            results = [result.without_logits() for result in results]  # their memory is used again
            with self.timers("head"):
                rows = range(group[0][2].start, group[-1][2].stop)
                logits, top = self._head(work.head_rows(hidden.last, rows), writes)
            with self.timers("verify"):
                for span in group:
                    with self.failures.of(span[0].seq.id):
                        results += self._verify_one(span, hidden, features, logits, top, rows.start)
        return results

    def _head(self, rows: Floats, writes: bool) -> tuple[Floats | Best, TopK | None]:
        """Return the logits of rows (M, D), or only the likeliest tokens, and what the drafter asked for.

        All come out of one read of the weights. The next call overwrites the logits.
        """
        vocab_size = self.model.config.vocab_size
        k = min(self.proposer.drafter.features.top_k, vocab_size)
        if writes and (self._logits is None or len(self._logits) < len(rows)):
            self._logits = None  # freed before the larger one is there
            self._logits = np.empty((len(rows), vocab_size), np.float32)
        logits = self._logits[: len(rows)] if writes and self._logits is not None else None
        top = self.model.topk(rows, max(k, 1), log_normaliser=k > 0, logits=logits)
        shown = top if k else None
        if logits is not None:
            return logits, shown
        likeliest = np.where(top.values[:, 0] > -np.inf, top.ids[:, 0], -1)
        return tuple(likeliest.tolist()), shown

    def _verify_one(
        self,
        span: tuple[SequenceRows, range, range],
        hidden: Hidden,
        features: Floats | None,
        logits: Floats | Best,
        top: TopK | None,
        first: int,
    ) -> list[StepResult]:
        """Return one sequence's result, none while its prompt is read; `logits` begin with row `first`."""
        seq_rows, rows, logit_rows = span
        logit_rows = range(logit_rows.start - first, logit_rows.stop - first)
        state = self.sequences[seq_rows.seq.id]
        own = features
        if features is not None and len(rows) < len(features):
            own = features[rows.start : rows.stop]
        if own is not None and not state.has_begun:
            if self.proposer.drafter.features.last_row:
                state.prompt_features = [own[-1:].copy()]
            else:
                state.prompt_features.append(own)
        if state.scores_prompt:
            last = hidden.last[rows.start : rows.stop]
            state.score_prompt(seq_rows.segment.base, last, self.model.head)
        if state.seq.params.pooling is not None and not state.has_begun:
            state.pool(seq_rows.segment.base, hidden.last[rows.start : rows.stop])
        if not seq_rows.is_complete:
            return []
        outcome = verify(
            seq_rows.seq,
            seq_rows.draft,
            logits[logit_rows.start : logit_rows.stop],
            state.pipeline,
            hidden=own,
            top=None if top is None else top.part(logit_rows),
        )
        return [StepResult.of(state, seq_rows, outcome)]

    def _keep(self, work: Pass, results: list[StepResult]) -> None:
        """Commit what was fed and what was accepted; the other scratch rows may be overwritten."""
        paths = {result.rows.seq.id: result.outcome.path for result in results}
        for seq_rows in work.seq_rows:
            n = seq_rows.num_pending
            accepted = (n + node for node in paths.get(seq_rows.seq.id, ()))
            self.cache.keep(seq_rows.seq.slot, [*range(n), *accepted])

    def _observe(self, results: list[StepResult]) -> None:
        """Report to the drafter which sequences began and ended, and the outcome of its drafts."""
        observed: list[StepResult] = []
        for result in results:
            state = result.state
            if state.has_begun:
                if state.prediction is not None:
                    state.prediction.learn(result.rows.draft, result.outcome.path)
                state.stats.record(result.rows.draft, result.outcome)
                self.stats.record(result.rows.draft, result.outcome)
            if result.finish_reason is not None:
                self._forget(state)
            elif state.has_begun:
                observed.append(result)
            else:
                state.has_begun = True
                prompt = np.concatenate(state.prompt_features) if state.prompt_features else None
                state.prompt_features.clear()
                self.proposer.drafter.begin(state.seq, replace(result.outcome, hidden=prompt))
        if observed:
            each = ((r.state.seq, r.rows.draft, r.outcome) for r in observed)
            self.proposer.drafter.observe(*map(list, zip(*each, strict=True)))

    def _learn(
        self, work: Pass, results: list[StepResult], draft_s: float, verify_s: float
    ) -> None:
        """Report to the controller what the step emitted and took."""
        read = sum(one.num_pending for one in work.seq_rows) if not work.is_decoding else 0
        emitted = sum(len(r.outcome.emitted) for r in results)
        self.pressure.learn(draft_s + verify_s, emitted, read)
        num_rows = work.batch.num_rows if work.is_decoding else None
        controller = self.proposer.controller
        controller.learn(self.proposer.results(results), num_rows, draft_s, verify_s)

    def _end_drafting(self, state: SequenceState) -> None:
        self.proposer.drafter.end(state.seq)
        state.has_begun = False
        state.prompt_features.clear()

    def _end_failed(self) -> list[Event]:
        """End the sequences that cannot go on; the others do."""
        ended = ((self.abort(seq_id), error) for seq_id, error in self.failures.take().items())
        return [replace(event, error=error) for event, error in ended if event is not None]

    def _forget(self, state: SequenceState) -> None:
        del self.sequences[state.seq.id]
        try:
            self._end_drafting(state)
        finally:
            self.scheduler.release(state.seq)
