"""How long accepted drafts would be on held-out replies, without running the engine.

A row's guesses are compared with the target's along the reply's own tokens. Greedy replies are what the target says, so
there a draft is accepted as far as its guesses agree: exact. At temperature 1 a guess is right with a chance between
alpha / (2 - alpha) and alpha = sum min(p, q). The upper one is taken, and what follows is counted along the reply: near
enough to compare drafters.

N rows, K steps, V' draft vocabulary.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.core.arrays import Ids
from forerun.lab.train import batches
from forerun.lab.train.learners import Learner
from forerun.lab.train.replies import Reply
from forerun.lab.train.states import StateReader

TEMPERATURES = tuple(0.5 + 0.05 * i for i in range(31))
"""Tried in calibration."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """On some replies; `tau` and `tau_sampled` are tokens a pass, the target's own included."""

    rows: int
    tau: float
    """On greedy replies; on all if none is."""
    match: tuple[float, ...]
    """By step: shares of rows whose guess is the target's likeliest token, all before it read as in the text."""
    tau_sampled: float
    alpha: tuple[float, ...]
    """By step: mean probability to be accepted at temperature 1."""

    @classmethod
    def of(cls, parts: Sequence[SimulatedReply]) -> Acceptance:
        """Sum up replies that were measured."""
        greedy = [part.match for part in parts if part.is_greedy] or [part.match for part in parts]
        match = torch.cat([part.match for part in parts]).float()
        alpha = torch.cat([part.alpha for part in parts])
        chain = torch.cat(greedy).float().cumprod(1)
        return cls(
            rows=len(match),
            tau=1 + float(chain.sum(1).mean()),
            match=tuple(match.mean(0).tolist()),
            tau_sampled=1 + float(alpha.cumprod(1).sum(1).mean()),
            alpha=tuple(alpha.mean(0).tolist()),
        )


@dataclass(frozen=True, slots=True)
class SimulatedReply:
    """One reply, by row and step."""

    domain: str
    is_greedy: bool
    match: Tensor
    """(N, K) bool."""
    alpha: Tensor
    """(N, K)."""
    right: Tensor
    """(K, temperatures): summed log-probabilities of the target's likeliest token where all before were right."""


@torch.no_grad()
def measure(
    learner: Learner,
    vocab_size: int,
    replies: Iterable[Reply],
    read: StateReader,
    ids: Ids,
    head: Tensor,
) -> list[SimulatedReply]:
    """Run the network along replies. `head` (V', D) are the target's rows of the draft vocabulary `ids`."""
    device = read.device
    measured, tokens = [], torch.from_numpy(ids).to(device)
    index_of = torch.full((vocab_size,), -1, device=device)
    index_of[tokens] = torch.arange(len(ids), device=device)
    for reply in replies:
        if (piece := batches.whole_piece(reply, learner.depth)) is None:
            continue
        batch = batches.pack([piece], learner.depth, read).to(device)
        p = batches.teacher(batch, read, ids).float()
        matches, alphas, right = [], [], []
        reached = torch.ones(len(batch.at), dtype=torch.bool, device=device)
        for index, out in enumerate(learner.outputs(batch)):
            rows = batch.at + 1 + index
            logits = (out.to(head.dtype) @ learner.head_of(index, head).T).float()
            matches.append(tokens[logits.argmax(-1)] == batch.best[rows])
            alphas.append(torch.minimum(logits.softmax(-1), p[rows]).sum(-1))
            right.append(_by_temperature(logits[reached], index_of[batch.best[rows]][reached]))
            reached = reached & matches[-1]
        stacked = torch.stack(matches, 1), torch.stack(alphas, 1), torch.stack(right)
        figures = (each.cpu() for each in stacked)
        measured.append(SimulatedReply(reply.domain, reply.temperature == 0, *figures))
    return measured


def by_domain(parts: Sequence[SimulatedReply]) -> dict[str, Acceptance]:
    """Sum up the replies of each domain, and of `all`."""
    groups: dict[str, list[SimulatedReply]] = defaultdict(list)
    for part in parts:
        groups[part.domain].append(part)
    return {name: Acceptance.of(groups[name]) for name in sorted(groups)} | {
        "all": Acceptance.of(parts)
    }


def temperatures(parts: Sequence[SimulatedReply]) -> list[float]:
    """Return by depth the temperature that calibrates a draft's probabilities best."""
    total = torch.stack([part.right for part in parts]).sum(0)
    return [round(TEMPERATURES[i], 2) for i in total.argmax(-1).tolist()]


def _by_temperature(logits: Tensor, best: Tensor) -> Tensor:
    """Sum the log-probabilities (temperatures,) of the guess being right or not, by q of the likeliest token."""
    sums = []
    for temperature in TEMPERATURES:
        p_accept, guess = (logits / temperature).softmax(-1).max(-1)
        p_accept = p_accept.clamp(1e-6, 1 - 1e-6)
        sums.append(torch.where(guess == best, p_accept.log(), (1 - p_accept).log()).sum())
    return torch.stack(sums)


def bigram_match(
    replies: Iterable[Reply], held_out: Iterable[Reply], read: StateReader, depth: int
) -> float:
    """Return the share of first guesses on held-out replies that a table of the replies' token pairs has right."""
    pairs: dict[int, Counter[int]] = defaultdict(Counter)
    for reply in replies:
        for a, b in zip(reply.tokens[reply.first - 1 :], reply.tokens[reply.first :]):
            pairs[a][b] += 1
    likeliest = {a: follows.most_common(1)[0][0] for a, follows in pairs.items()}
    hits = []
    for reply in held_out:
        if (piece := batches.whole_piece(reply, depth)) is not None:
            states = read(reply)
            hits += [
                likeliest.get(reply.tokens[row + 1]) == int(states.best[row + 1 - states.start])
                for row in range(piece.start, piece.stop)
            ]
    return sum(hits) / max(1, len(hits))
