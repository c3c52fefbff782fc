"""The contract, checked over every file in `drafters/`: a new one is tested by being there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from forerun.core import registry
from forerun.core.errors import ConfigError
from forerun.core.types import EMPTY_DRAFT, Draft, Seq
from forerun.drafters.suffix import Options, Suffix
from forerun.lab.contract import contract
from forerun.lab.contract.candidate import Candidate, ContractError
from forerun.lab.contract.contract import CHECKS, run
from tests.tiny import tiny_model

DRAFTERS = [
    *(name for name in registry.names("drafters") if name != "none"),
    "draft_model:num_draft=10",
    "draft_model:num_draft=10,draft_vocab=3",
    "suffix:shared_tokens=0",
    "suffix++draft_model",
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_contract(drafter: str, check: Callable[[Candidate], None]) -> None:
    check(Candidate.of(drafter, tiny_model))


class Lookup(Suffix):
    """A drafter that keeps the contract, to be broken in one way each."""

    def __init__(self, target):
        super().__init__(Options(shared_tokens=0))


class IgnoresBudgets(Lookup):
    def propose(self, seqs, budgets):
        return super().propose(seqs, [7 for _ in budgets])


class ForgetsASequence(Lookup):
    def propose(self, seqs, budgets):
        return super().propose(seqs, budgets)[:2]


class ReturnsTokens(Lookup):
    def propose(self, seqs, budgets):
        return [list(draft.tokens) for draft in super().propose(seqs, budgets)]


class MakesCycles(Lookup):
    def propose(self, seqs, budgets):
        return [Draft((1, 2), (1, 0)) if budget > 1 else EMPTY_DRAFT for budget in budgets]


class InventsTokens(Lookup):
    def propose(self, seqs, budgets):
        drafts = super().propose(seqs, budgets)
        return [Draft(tuple(t + 24 for t in draft.tokens), draft.parents) for draft in drafts]


class IsTooSure(Lookup):
    def propose(self, seqs, budgets):
        drafts = super().propose(seqs, budgets)
        return [Draft(d.tokens, d.parents, (1.5,) * len(d)) for d in drafts]


class Raises(Lookup):
    def observe(self, seqs, drafts, outcomes):
        raise KeyError("lost")


class NeverEnds(Lookup):
    def end(self, seq):
        pass


class KeepsIds(Lookup):
    """Neither `end` nor `begin` resets the index of an id."""

    def __init__(self, target):
        super().__init__(target)
        self.known = set()

    def begin(self, seq, outcome):
        if seq.id not in self.known:
            super().begin(seq, outcome)
        self.known.add(seq.id)

    def end(self, seq):
        pass


class MixesSequences(Lookup):
    """Copies from the sequence that began first, whichever is asked about."""

    running: Sequence[Seq] = ()

    def begin(self, seq, outcome):
        super().begin(seq, outcome)
        self.running = [*self.running, seq]

    def end(self, seq):
        super().end(seq)
        self.running = [other for other in self.running if other is not seq]

    def propose(self, seqs, budgets):
        return [super(MixesSequences, self).propose(self.running[:1], [b])[0] for b in budgets]


class HoldsMore(Lookup):
    def begin(self, seq, outcome):
        super().begin(seq, outcome)
        self.kept = [*range(1 << 17)]


class Silent(Lookup):
    def propose(self, seqs, budgets):
        return [EMPTY_DRAFT for _ in seqs]


BROKEN = [
    (IgnoresBudgets, contract.check_budgets, "nodes, its budget was"),
    (ForgetsASequence, contract.check_batch, "propose returned 2 drafts for 3 sequences"),
    (ReturnsTokens, contract.check_greedy, "propose returned a list instead of a Draft"),
    (MakesCycles, contract.check_greedy, "node 0 has parent 1; it must be -1 or an earlier node"),
    (InventsTokens, contract.check_greedy, "not in the vocabulary of 24"),
    (IsTooSure, contract.check_greedy, "which is not a probability from 0 to 1"),
    (Raises, contract.check_greedy, "observe raised KeyError: 'lost'"),
    (NeverEnds, contract.check_end, "`end` must forget"),
    (KeepsIds, contract.check_end, "gets other drafts than one with an id of its own"),
    (MixesSequences, contract.check_batch_acceptance, "does one sequence see another's state"),
    (HoldsMore, contract.check_memory, "`memory` says"),
    (Silent, contract.check_greedy, "no token was drafted"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "check", "message"), BROKEN, ids=lambda x: getattr(x, "__name__", "")
)
def test_a_broken_drafter_is_caught_and_told_how(broken, check, message):
    with pytest.raises(ContractError) as caught:
        check(Candidate(broken, tiny_model))
    assert message in str(caught.value)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_ones_that_are_broken_keep_the_contract_otherwise(check):
    """What is caught is the one thing that is wrong."""
    check(Candidate(Lookup, tiny_model))


def test_every_check_is_reported_and_one_that_fails_stops_no_other():
    results = list(run(Candidate(IgnoresBudgets, tiny_model)))
    assert len(results) == len(CHECKS)
    assert [what for what, broken in results if broken] == [
        "Drafts are trees of known tokens within their budgets"
    ]


def test_options_that_must_be_given_are_named():
    with pytest.raises(ConfigError, match="unknown option 'wide'"):
        contract.check_greedy(Candidate.of("suffix:wide=3", tiny_model))
