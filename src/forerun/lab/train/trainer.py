"""Trains a drafter of any kind on its target's replies; it can be interrupted at any time and goes on bit for bit.

What a run does next follows from its settings and its counters alone: batches are planned from the seed, and states
are the same whenever they are computed. A checkpoint is written whole, often, and at the end; the best weights so far
lie next to it. Under `torchrun` every process takes its share of each batch's pieces, and gradients are summed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, distributed

from forerun.core.arrays import Ids
from forerun.core.errors import ConfigError, ForerunError
from forerun.lab.output import writing
from forerun.lab.train import batches, simulated
from forerun.lab.train.batches import Piece, TrainBatch
from forerun.lab.train.learners import Learner
from forerun.lab.train.losses import Loss, through_head
from forerun.lab.train.optimizer import Optimizer, OptimizerName, all_finite, rate
from forerun.lab.train.replies import Reply
from forerun.lab.train.simulated import Acceptance, bigram_match
from forerun.lab.train.states import NoStates, StateReader
from forerun.model.model import Model
from forerun.system import files

CHECKPOINT = "checkpoint.pt"
SAVE_EVERY_S = 120
"""What a run that is killed loses at most; measurements are further apart where tokens are slow."""
LIVE = 80
"""Held-out replies that are measured on while it runs."""
GATE_TOKENS = 300_000
"""After so many a drafter must guess better than a table of token pairs."""


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Of a run; a checkpoint goes on only with the same ones."""

    tokens: int
    """Rows to learn from, those seen again included."""
    stages: tuple[int, ...] = (0, 1)
    """Shares of the steps: on texts, on replies."""
    batch: int = 256
    lr: float = 0.02
    vector_lr: float = 0.002
    optimizer: OptimizerName = "muon"
    loss: Literal["kl", "lk", "ce", "kl+lk", "token"] = "kl+lk"
    """`kl+lk` turns to LK-hybrid when the rate begins to fall; `token`: cross-entropy of the text's own tokens."""
    stage2_rate: float = 0.0
    """The second stage's rate, a share of the first's, which warms up and falls again; 0: one rate over both."""
    stage2_batch: int = 0
    """Tokens of a step on replies; 0: `batch`."""
    stage2_length: int = 0
    """Tokens of each reply that are learned from, at most; 0: all."""
    step_weight: float = 0.8
    """Of each step's loss, as a share of the step's before."""
    warm_up: float = 0.02
    decay: float = 0.35
    eval_every: int = 100_000
    patience: int = 8
    """Measurements without a better tau, after which it stops; 0 for never."""
    seed: int = 0
    bf16: bool = True


@dataclass(slots=True)
class Progress:
    """How far a run is: counters, and a line of history for each step that was noted."""

    step: int = 0
    tokens: int = 0
    stage: int = 0
    epoch: int = 0
    batch: int = 0
    cpu_s: float = 0.0
    best_tau: float = 0.0
    best_tokens: int = 0
    num_worse: int = 0
    is_over: bool = False
    history: list[dict[str, float]] = field(default_factory=list)


class Trainer:
    """One run. `texts` are read in the first stage, `replies` in the second; the best of `held_out` is kept."""

    def __init__(
        self,
        learner: Learner,
        target: Model,
        ids: Ids,
        settings: TrainSettings,
        read: StateReader,
        folder: Path,
        *,
        origin: Mapping[str, object],
    ) -> None:
        self.learner, self.target, self.ids, self.depth = learner, target, ids, learner.depth
        self.settings, self.read, self.folder = settings, read, folder
        self.origin = dict(origin) | {"settings": asdict(settings)}
        self.device = read.device
        learner.net.to(self.device)
        rows = torch.from_numpy(learner.source.head_weights(ids)).to(self.device)
        self.head = rows.bfloat16() if settings.bf16 else rows
        self.optimizer = Optimizer(learner.net, settings.optimizer, settings.lr, settings.vector_lr)
        self.progress = Progress()
        self.best: dict[str, Tensor] = _copy(learner.net.state_dict())
        self._gate: float | None = None
        self._saved_s = time.monotonic()

    def run(
        self, texts: Sequence[Reply], replies: Sequence[Reply], held_out: Sequence[Reply]
    ) -> Iterator[Progress]:
        """Train to the end, from where a checkpoint in the folder is; yields after each step.

        Raises ForerunError if the loss is not a number, or the drafter no better than a table of token pairs.
        """
        self.resume()
        settings, done = self.settings, self.progress
        begin_s = time.process_time() - done.cpu_s
        if self.learner.is_trained and not done.step:
            done.history.append({"step": 0, "tokens": 0, "rate": 0.0, "cpu_s": 0.0})
            self._measure(held_out, replies)
            yield done
        for pieces in self._batches(texts, replies):
            share = self._rate()
            losses = self._step(pieces, share, self._loss(share))
            done.step, done.batch = done.step + 1, done.batch + 1
            before = done.tokens
            done.tokens += sum(piece.stop - piece.start for piece in pieces)
            done.cpu_s = time.process_time() - begin_s
            done.history.append(
                {"step": done.step, "tokens": done.tokens, "rate": share, "cpu_s": done.cpu_s}
                | losses
            )
            is_end = done.tokens >= settings.tokens
            if is_end or before // settings.eval_every != done.tokens // settings.eval_every:
                self._measure(held_out, replies)
                done.cpu_s = time.process_time() - begin_s
                done.is_over = is_end or 0 < settings.patience <= done.num_worse
                self.save()
            elif time.monotonic() - self._saved_s > SAVE_EVERY_S:
                self.save()
            yield done
            if done.is_over:
                return

    def resume(self) -> None:
        """Take up the folder's checkpoint, if there is one. Raises ConfigError if it is another run's or damaged."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return
        try:
            checkpoint: Any = torch.load(path, weights_only=True, map_location="cpu")
            origin, progress = checkpoint["origin"], Progress(**checkpoint["progress"])
        except Exception as error:  # torch raises what its unpickler meets
            raise _damaged(path, error) from error
        differing = [key for key in self.origin if not _is_same(origin.get(key), self.origin[key])]
        if differing:
            raise ConfigError(
                f"{path} is of a run with another {', '.join(differing)}: choose another -o, or delete it"
            )
        try:
            self.learner.net.load_state_dict(checkpoint["net"])
            self.optimizer.load(checkpoint["optimizer"])
        except Exception as error:  # of a version with another optimizer
            raise _damaged(path, error) from error
        self.best, self.progress = checkpoint["best"], progress

    def save(self) -> None:
        """Write the checkpoint, whole or not at all. Raises ForerunError if there is no room."""
        if rank():
            return
        state = {
            "origin": self.origin,
            "progress": asdict(self.progress),
            "net": self.learner.net.state_dict(),
            "best": self.best,
            "optimizer": self.optimizer.state(),
        }
        path = self.folder / CHECKPOINT
        with writing(path), files.replacing(path) as file:
            torch.save(state, file)
        self._saved_s = time.monotonic()

    def _batches(self, texts: Sequence[Reply], replies: Sequence[Reply]) -> Iterator[list[Piece]]:
        """What is left of the run, in order."""
        done, total = self.progress, sum(self.settings.stages)
        until = 0.0
        if longest := self.settings.stage2_length:
            replies = [reply.cut(longest) for reply in replies]
        sizes = self.settings.batch, self.settings.stage2_batch or self.settings.batch
        for stage, (share, texts_of_stage) in enumerate(
            zip(self.settings.stages, (texts, replies), strict=True)
        ):
            until += self.settings.tokens * share / total
            if stage < done.stage or not share:
                continue
            if stage > done.stage:
                done.stage, done.epoch, done.batch = stage, 0, 0
            for epoch in count(done.epoch):
                seed = (self.settings.seed, stage, epoch)
                args = (texts_of_stage, self.depth, self.learner.piece, sizes[stage], seed)
                if epoch > done.epoch:
                    done.epoch, done.batch = epoch, 0
                for pieces in islice(batches.epoch(*args), done.batch, None):
                    if done.tokens >= until:
                        break
                    yield pieces
                if done.tokens >= until:
                    break

    def _step(self, pieces: Sequence[Piece], share: float, loss: Loss) -> dict[str, float]:
        """One step of the weights; the loss a row and alpha by step."""
        ours = pieces[rank() :: world()]
        num_rows = sum(piece.stop - piece.start for piece in pieces)
        sums = torch.zeros(1 + self.depth, device=self.device)
        if ours:
            is_pretraining = self.learner.is_pretrained and not self.progress.stage
            read = NoStates() if is_pretraining else self.read
            batch = batches.pack(ours, self.depth, read).to(self.device)
            is_own = is_pretraining or self.settings.loss == "token"
            p = (
                batches.own_tokens(batch, self.ids)
                if is_own
                else batches.teacher(batch, self.read, self.ids)
            )
            total, alphas = self._losses(batch, p, loss)
            (total / num_rows).backward()
            sums = torch.stack([total.detach(), *alphas])
        self._share(sums)
        if not bool(sums.isfinite().all()):
            raise self._broken()
        self.optimizer.step(share)
        value, *by_step = (sums / num_rows).tolist()
        return {"loss": value} | {f"alpha_{i}": alpha for i, alpha in enumerate(by_step, 1)}

    def _losses(self, batch: TrainBatch, p: Tensor, loss: Loss) -> tuple[Tensor, list[Tensor]]:
        """Return the summed loss of all steps against the target's p (R, V'), and the sum of alpha of each."""
        total, alphas = torch.zeros((), device=self.device), []
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.bf16):
            outputs = self.learner.outputs(batch)
        for index, out in enumerate(outputs):
            head = self.learner.head_of(index, self.head)
            value, alpha = through_head(out, head, p[batch.at + 1 + index], loss)
            total = total + self.settings.step_weight**index * value
            alphas.append(alpha.sum())
        return total, alphas

    def _share(self, sums: Tensor) -> None:
        """Sum gradients and figures over all processes."""
        weights = self.optimizer.all
        for weight in weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        if world() == 1:
            return
        flat = torch.cat([sums, *(w.grad.flatten() for w in weights if w.grad is not None)])
        distributed.all_reduce(flat)
        sums.copy_(flat[: len(sums)])
        at = len(sums)
        for weight in weights:
            assert weight.grad is not None
            weight.grad.copy_(flat[at : at + weight.numel()].view_as(weight))
            at += weight.numel()

    def _measure(self, held_out: Sequence[Reply], replies: Sequence[Reply]) -> None:
        """Measure on held-out replies, keep the best weights, and check that something is learned."""
        if not all_finite(self.learner.net.parameters()):
            raise self._broken()
        held_out = held_out[:LIVE]
        acceptance, done = self.acceptance(held_out), self.progress
        done.history[-1] |= {"tau": acceptance.tau, "tau_sampled": acceptance.tau_sampled}
        if acceptance.tau + acceptance.tau_sampled > done.best_tau:
            done.best_tau, done.best_tokens = acceptance.tau + acceptance.tau_sampled, done.tokens
            done.num_worse = 0
            self.best = _copy(self.learner.net.state_dict())
        else:
            done.num_worse += 1
        if done.stage and done.tokens >= GATE_TOKENS:
            if self._gate is None:
                self._gate = bigram_match(replies, held_out, self.read, self.depth)
            if acceptance.match[0] <= self._gate:
                raise ForerunError(
                    f"after {done.tokens} tokens the first guess is right {acceptance.match[0]:.3f} of the time, a "
                    f"table of token pairs {self._gate:.3f}: the replies are not this model's, or --lr does not fit"
                )

    def acceptance(self, replies: Sequence[Reply]) -> Acceptance:
        """Measure the acceptance of the weights as they are now."""
        return Acceptance.of(self.measure(replies))

    def measure(self, replies: Sequence[Reply]) -> list[simulated.SimulatedReply]:
        """Measure reply by reply; raises ConfigError if none is long enough."""
        measured = simulated.measure(
            *(self.learner, self.target.config.vocab_size, replies),
            *(self.read, self.ids, self.head),
        )
        if not measured:
            raise ConfigError(f"no reply that is held out has more than {self.depth + 1} tokens")
        return measured

    def _rate(self) -> float:
        """Return the share of the full rate in the coming step."""
        settings, done = self.settings, self.progress
        if not settings.stage2_rate or not all(settings.stages):
            return rate(done.tokens / settings.tokens, settings.warm_up, settings.decay)
        share = settings.tokens / sum(settings.stages)
        first = sum(settings.stages[: done.stage]) * share
        is_done = (done.tokens - first) / (settings.stages[done.stage] * share)
        of_stage = settings.stage2_rate if done.stage else 1.0
        return of_stage * rate(min(1.0, max(0.0, is_done)), settings.warm_up, settings.decay)

    def _loss(self, share: float) -> Loss:
        if self.settings.loss == "token":
            return "kl"  # of one token, which is its cross-entropy
        if self.settings.loss != "kl+lk":
            return self.settings.loss
        done = self.progress.tokens / self.settings.tokens
        return "lk" if done > 1 - self.settings.decay else "kl"

    def _broken(self) -> ForerunError:
        path = self.folder / CHECKPOINT
        left = f"{path} is as it was" if path.exists() else "nothing was written"
        return ForerunError(
            f"the loss is not a number after {self.progress.tokens} tokens: start again with a smaller --lr and "
            f"another -o; {left}"
        )


def _damaged(path: Path, error: Exception) -> ConfigError:
    why = (str(error) or type(error).__name__).splitlines()[0]
    return ConfigError(f"{path} is damaged ({why}): delete it, or choose another -o")


def rank() -> int:
    """Return the number of this process among those of `torchrun`."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def world() -> int:
    """Return how many processes train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def _copy(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy them to the host."""
    return {name: weight.detach().cpu().clone() for name, weight in weights.items()}


def _is_same(known: object, ours: object) -> bool:
    """Tell whether a run goes on as it was; what it multiplies in follows from its device, which may be another."""
    if isinstance(known, dict) and isinstance(ours, dict):
        return known | {"bf16": None} == ours | {"bf16": None}
    return known == ours
