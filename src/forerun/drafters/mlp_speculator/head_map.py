"""Learning while serving: a network that drafts follows what its target says, in steps taken while nothing else runs.

What is learned is small: a map A, at first one, between the state of the network's cell and its head, so a guess is
`softmax(H A s)`; and which tokens the head knows besides those it shipped with: the last that the target said. Rows
that the target verified, rejected and accepted ones, lie in a ring with the target's own states. A step takes a batch
of them and moves A towards the target's distribution (forward KL over `depth` tokens, Adam); the gradient needs no
graph:  dA = sum_k w^k sum_rows (H^T (q sum p - p)) s^T.

New rows are measured before they are learned from, against the network as it shipped. If the tokens a pass would bring
fall below what it brings, A is one again and the ring is empty. Only a running request sees the network, and steps
are taken when there is none, so no request sees it change.

Source: Online Speculative Decoding (Liu et al., arXiv 2310.07177), which learns from rejected positions alone; here all
that were verified count.

R rows of a batch, K steps, p width of the cell, V' tokens of the head, D width of the target.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from forerun.core.means import DecayedMean
from forerun.core.types import Outcome, Seq
from forerun.drafters.mlp_speculator.adam import Adam
from forerun.drafters.mlp_speculator.drafting import (
    NativeNetwork,
    RecurrentWeights,
    TorchNetwork,
)
from forerun.drafters.mlp_speculator.kept_map import KeptMap
from forerun.drafters.mlp_speculator.state_buffer import StateBuffer, TextRuns
from forerun.drafting.base import Target
from forerun.drafting.vocabulary import fingerprint
from forerun.model.model import Model, head_matrix

ROWS, DEPTH = 4096, 3
BATCH, MIN_BATCH = 64, 8
STEP_S = 0.05
"""Seconds that a step takes at most: batches shrink until it does."""
MEASURE = BATCH // 2
"""Rows of a measure, which takes two networks' guesses and so as long as a step of twice as many."""
VISITS = 2.0
"""Times that each row is learned from."""
RATE, BETAS, CLIP, STEP_WEIGHT = 1e-3, (0.9, 0.99), 1.0, 0.8
MIN_RATE = 1 / 8
"""Lowest share of the rate, after learning was given up several times."""
MAX_HEARD = 512
"""Tokens that are added to the head, at most."""
PUBLISH = 8
"""Steps after which the network drafts with what was learned."""
STEP_HEADS = 3
"""Heads in fp32 that a step's guesses, or the mapped head with its codes, take: measured."""
FADE, MIN_MEASURES, MIN_SHARE = 0.9, 8, 0.98
"""Share of the shipped network's tokens a pass below which what was learned is dropped."""

_log = logging.getLogger(__name__)


class HeadRows(NamedTuple):
    """The rows of a head, and the tokens that they stand for."""

    rows: Tensor
    """Rows of the head, (V', p) fp32, one for each of `ids`."""
    ids: Tensor
    """Token ids of the head's rows, (V',) int64, ascending."""


def new_learner(
    weights: RecurrentWeights, network: NativeNetwork | TorchNetwork, target: Target
) -> HeadMap | None:
    """Make what learns for a network while it serves, going on from what was kept; None if it has not one head."""
    if len(weights.heads) != 1:
        return None
    cell = network if isinstance(network, TorchNetwork) else TorchNetwork(weights, target.model)
    learner = HeadMap(cell, network, target.model, weights)
    if target.path is not None and target.vocabulary is not None:
        vocabulary = fingerprint(target.vocabulary)
        digest = f"{zlib.crc32(weights.heads[0].half().numpy().tobytes()):08x}"
        learner.keep_in(KeptMap(target.path, vocabulary, digest, target.learned_in))
    return learner


class Benefit:
    """Tokens a pass that the learned and the shipped network would bring on recent rows."""

    def __init__(self) -> None:
        self.learned, self.shipped = DecayedMean(FADE), DecayedMean(FADE)
        self.num = 0

    def add(self, learned: float, shipped: float) -> None:
        """Add one measure of both networks on new rows."""
        self.learned.record(learned)
        self.shipped.record(shipped)
        self.num += 1

    @property
    def has_fallen(self) -> bool:
        """Return whether what was learned does harm, by the measures so far."""
        least = MIN_SHARE * self.shipped.value
        return self.num >= MIN_MEASURES and not self.learned.value >= least  # NaN has


class HeadMap:
    """Learns the map A between the cell and the head of one network, in small steps."""

    def __init__(
        self,
        cell: TorchNetwork,
        network: NativeNetwork | TorchNetwork,
        target: Model,
        weights: RecurrentWeights,
    ) -> None:
        """Take a `cell` that makes the states before the head, in fp32; `weights` are what the network drafts with."""
        self.cell, self.network, self.target = cell, network, target
        self._head_map, rows = weights.head_map, weights.heads[0].float()
        all_ids = torch.arange(target.config.vocab_size)
        self.shipped = HeadRows(rows, all_ids if weights.tokens is None else weights.tokens)
        self._is_shipped = torch.zeros(len(all_ids), dtype=torch.bool)
        self._is_shipped[self.shipped.ids] = True
        self.buffer = StateBuffer(ROWS, target.config.hidden_size)
        self.benefit = Benefit()
        self.num_steps = self.num_returns = 0
        """Steps that were taken, and how often what was learned was given up."""
        self.kept: KeptMap | None = None
        self._random = torch.Generator().manual_seed(0)
        self._batch = BATCH
        self._seen = 0  # rows of the buffer that were measured
        self._owed = 0.0  # rows still to be learned from
        self._unpublished = 0
        self._begin()

    def keep_in(self, kept: KeptMap) -> None:
        """Go on from what a file holds, and keep it there."""
        self.kept = kept
        held = kept.load(len(self.map), self.target.config.vocab_size)
        if held is not None:
            self.map += torch.from_numpy(held[0])
            self._hear(held[1])
            self._widen()
            self._publish()

    def saw(self, seq: Seq, outcome: Outcome, rows: Sequence[int]) -> None:
        """Store the rows of a pass that became part of the text."""
        tokens = outcome.emitted[: len(rows)]
        self.buffer.add(seq.id, outcome, [*rows], tokens)
        self._hear(tokens)

    def end(self, seq: Seq) -> None:
        """Store the remaining rows of a sequence."""
        self.buffer.end(seq.id)

    def step(self) -> bool:
        """Take one small step; return whether there is more to do."""
        num_new = self.buffer.count - self._seen
        if self._owed >= self._batch and self._unpublished < PUBLISH:
            self._train_in_time()
        elif self._unpublished:
            self._publish()
        elif num_new >= MEASURE:
            self._measure(num_new)
        else:
            return False
        return True

    def keep(self) -> None:
        """Write what was learned, if something was since."""
        if self.kept is not None:
            matrix = self.map - torch.eye(len(self.map))
            self.kept.keep(matrix.numpy(), [*self._heard], self.num_steps + self.num_returns)

    def nbytes(self) -> int:
        """Count the ring, the map with its moments, the fp32 weights, added tokens' rows, a step's buffers."""
        head = self.shipped.rows.nbytes * (1 + MAX_HEARD / len(self.shipped.ids) + STEP_HEADS)
        return self.buffer.nbytes() + 4 * self.map.nbytes + self.cell.nbytes() + round(head)

    def _begin(self) -> None:
        self.head = self.shipped
        self._heard: dict[int, None] = {}
        self.map = torch.eye(self.head.rows.shape[1])
        self._adam = Adam(BETAS)

    def _hear(self, tokens: Sequence[int]) -> None:
        """Remember tokens that the head did not ship with; those not said for longest give way."""
        if self._head_map is None:
            return
        for token in tokens:
            if not self._is_shipped[token]:
                self._heard.pop(token, None)
                self._heard[token] = None
        while len(self._heard) > MAX_HEARD:
            del self._heard[next(iter(self._heard))]

    def _widen(self) -> None:
        """Make the head anew, with the tokens of recent answers."""
        more = torch.tensor([*self._heard], dtype=torch.int64)
        ids, order = torch.cat([self.shipped.ids, more]).sort()
        if torch.equal(ids, self.head.ids):
            return
        assert self._head_map is not None
        rows = head_matrix(self.target, more, self.cell.device).cpu() @ self._head_map
        self.head = HeadRows(torch.cat([self.shipped.rows, rows])[order], ids)

    def _measure(self, num_new: int) -> None:
        """Measure both networks on the newest rows, which may be learned from next."""
        starts = self.buffer.starts(DEPTH, self._seen)
        self._seen = self.buffer.count
        if not len(starts):
            return
        self._owed = min(self._owed + VISITS * num_new, VISITS * ROWS)
        run = self.buffer.runs(self._some(starts, MEASURE), DEPTH)
        states = self.cell.unroll(run.first, run.tokens)
        mapped = [state @ self.map.T for state in states]
        figures = (
            self._tokens_a_pass(*each, run)
            for each in ((mapped, self.head), (states, self.shipped))
        )
        self.benefit.add(*figures)
        if self.benefit.has_fallen:
            self._return()
        else:
            self._widen()

    def _train_in_time(self) -> None:
        """Train one step of A, and choose how large the next one may be."""
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        self._train()
        # Of the two the shorter: time that other processes took shrinks no batch.
        took_s = min(time.perf_counter() - start_s, time.process_time() - start_cpu_s)
        if took_s > STEP_S:
            self._batch = max(MIN_BATCH, self._batch // 2)
        elif took_s < STEP_S / 3:
            self._batch = min(BATCH, self._batch * 2)

    def _train(self) -> None:
        """Train one step of A."""
        starts = self.buffer.starts(DEPTH)
        starts = starts[starts < self._seen]  # measured
        self._owed -= self._batch
        if not len(starts):
            return
        run = self.buffer.runs(self._some(starts, self._batch), DEPTH)
        states, teacher = self.cell.unroll(run.first, run.tokens), self._teacher(run, self.head.ids)
        slope = torch.zeros_like(self.map)
        for index, state in enumerate(states):
            p = teacher[:, index]
            q = (state @ self.map.T @ self.head.rows.T).softmax(-1)
            error = torch.addcmul(-p, q, p.sum(-1, keepdim=True)) @ self.head.rows
            slope += STEP_WEIGHT**index / len(state) * error.T @ state
        gradient = slope * min(1.0, CLIP / (float(slope.norm()) + 1e-12))
        # A row moves A as far in small steps as in large ones; what had to be given up, less far.
        rate = RATE * self._batch / BATCH * max(0.5**self.num_returns, MIN_RATE)
        self._adam.step(self.map, gradient, rate)
        self.num_steps, self._unpublished = self.num_steps + 1, self._unpublished + 1

    def _publish(self) -> None:
        """Let the network draft with the map from now on."""
        self._unpublished = 0
        if bool(self.map.isfinite().all()):
            self.network.set_head(self.head.rows @ self.map, self.head.ids)
        else:
            self._return()
        if self.kept is not None and self.kept.is_time:
            self.keep()

    def _return(self) -> None:
        """Go back to the shipped network, and drop the rows that were learned from."""
        _log.info("what was learned of the model's drafts did not help: it starts anew")
        self._begin()
        self.buffer.clear()
        self.benefit, self._owed, self._unpublished = Benefit(), 0.0, 0
        self.num_returns += 1
        self.network.set_head(*self.shipped)

    def _teacher(self, run: TextRuns, ids: Tensor) -> Tensor:
        """Compute the target's probabilities (R, K, V') of some tokens."""
        states = run.after.flatten(0, 1).to(self.cell.device)
        logits = self.target.head_rows(states, ids.to(states.device)).cpu()
        chances = (logits - run.log_normaliser.flatten()[:, None]).exp_()
        return chances.view(*run.best.shape, -1)

    def _tokens_a_pass(self, states: Sequence[Tensor], head: HeadRows, run: TextRuns) -> float:
        """Estimate tokens a pass of chains of K guesses: the mean of greedy decoding's and of sampling's."""
        teacher, right = self._teacher(run, head.ids), torch.ones(2, len(run.first))
        total = right.clone()
        for index, state in enumerate(states):
            logits = state @ head.rows.T
            is_best = head.ids[logits.argmax(-1)] == run.best[:, index]
            accepted = torch.minimum(logits.softmax(-1), teacher[:, index]).sum(-1)
            right = right * torch.stack([is_best.float(), accepted])
            total = total + right
        return float(total.mean())

    def _some(self, starts: Tensor, num: int) -> Tensor:
        chosen = torch.randint(len(starts), (num,), generator=self._random)
        return starts[chosen]
