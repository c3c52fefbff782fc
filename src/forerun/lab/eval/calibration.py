"""Calibration: the probability that drafters state of their nodes, against the share that the target accepts.

Both count nodes whose parent was right, as `Draft.confidence` does. Every draft is made in full: without the
controller, which corrects its drafter's confidence and cuts by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forerun.core import tree
from forerun.core.params import SamplingParams
from forerun.core.types import Draft, Outcome, Seq, TaskPrompt
from forerun.drafting.base import Drafter
from forerun.lab.output import Column, show_table
from forerun.llm import LLM

NUM_BINS = 10
"""Of probabilities, equally wide."""
MAX_DEPTH = 6
"""Nodes from here on down are counted together."""
Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class JudgedNode:
    """A node whose parent was right; `confidence` is None where its drafter states none."""

    depth: int
    confidence: float | None
    is_right: bool


class NodeRecorder(Drafter):
    """Passes all on to a drafter, and records whether its nodes were accepted."""

    def __init__(self, drafter: Drafter) -> None:
        self.inner, self.nodes = drafter, list[JudgedNode]()
        self.features, self.max_nodes = drafter.features, drafter.max_nodes
        self.begin, self.end = drafter.begin, drafter.end  # type: ignore[method-assign]
        self.propose, self.memory = drafter.propose, drafter.memory  # type: ignore[method-assign]

    def observe(
        self, seqs: Sequence[Seq], drafts: Sequence[Draft], outcomes: Sequence[Outcome]
    ) -> None:
        """Compare the drafts with what came."""
        for draft, outcome in zip(drafts, outcomes, strict=True):
            depths, confidence = tree.depths(draft.parents), draft.confidence
            self.nodes += [
                JudgedNode(
                    min(depths[i] + 1, MAX_DEPTH),
                    None if confidence is None else confidence[i],
                    is_right,
                )
                for i, is_right in draft.matches(outcome.emitted)
            ]
        self.inner.observe(seqs, drafts, outcomes)


def measure(
    llm: LLM, drafters: Sequence[str], prompts: Sequence[TaskPrompt], params: SamplingParams
) -> Iterator[tuple[str, list[JudgedNode], float]]:
    """Answer the prompts' first turns in order; yields each drafter's name, its nodes and its tokens a pass."""
    for name in drafters:
        drafting = llm.with_drafter(name)
        recorder = NodeRecorder(drafting.engine.proposer.drafter)
        drafting.engine.proposer.drafter = recorder
        for prompt in prompts:
            drafting.chat([{"role": "user", "content": prompt.turns[0]}], params)
        yield drafting.drafter_spec.text(), recorder.nodes, drafting.engine.stats.tau or 1.0


def table(name: str, nodes: Sequence[JudgedNode], tau: float) -> list[Row]:
    """Return a row for all nodes, with its bins, and one for each depth."""
    rows = [_row(name, "all", nodes) | {"tau": tau, "bins": bins(nodes)}]
    for depth in sorted({node.depth for node in nodes}):
        shown = f"{depth}+" if depth == MAX_DEPTH else str(depth)
        rows.append(_row(name, shown, [node for node in nodes if node.depth == depth]))
    return rows


def bins(nodes: Sequence[JudgedNode]) -> list[tuple[float, float, int]]:
    """Return mean confidence, share accepted and number of the nodes in each bin that has some."""
    parts: list[list[JudgedNode]] = [[] for _ in range(NUM_BINS)]
    for node in nodes:
        if node.confidence is not None:
            parts[min(int(NUM_BINS * node.confidence), NUM_BINS - 1)].append(node)
    return [(_mean_confidence(part), _right(part), len(part)) for part in parts if part]


def show(rows: Sequence[Row]) -> None:
    """Print a line a drafter and depth."""
    columns: dict[str, Column] = {"drafter": "drafter", "depth": "depth", "nodes": ("nodes", 0)}
    for name in ("said", "accepted", "gap", "tau"):
        columns[name] = (name, 3)
    show_table([{"tau": None} | row for row in rows], columns, num_left=2)


def _row(name: str, depth: str, nodes: Sequence[JudgedNode]) -> Row:
    stated = [node for node in nodes if node.confidence is not None]
    row: Row = {"drafter": name, "depth": depth, "nodes": len(nodes)}
    row["said"] = _mean_confidence(stated) if stated else None
    row["accepted"] = _right(nodes) if nodes else None
    parts = bins(stated)
    row["gap"] = sum(n * abs(s - r) for s, r, n in parts) / len(stated) if stated else None
    return row


def _mean_confidence(nodes: Sequence[JudgedNode]) -> float:
    return sum(node.confidence or 0.0 for node in nodes) / len(nodes)


def _right(nodes: Sequence[JudgedNode]) -> float:
    return sum(node.is_right for node in nodes) / len(nodes)
