"""The measuring: the same prompts for all, plain first, fresh engines a round, interrupted runs that go on."""

import pytest

from forerun.core.params import SamplingParams
from forerun.core.types import TaskPrompt
from forerun.drafters.suffix import Options, Suffix
from forerun.lab.bench.measurement import Measurement, Round
from forerun.lab.bench.run import Bench, EngineSystem, PeerError
from forerun.lab.bench.workload import PromptGroup
from forerun.lab.store import Store
from tests.engine.harness import LOOPING, complete, engine_for
from tests.lab.bench.samples import ORIGIN, Bytes
from tests.tiny import tiny_model

MODEL = tiny_model(3, sharpness=3.0)
PARAMS = SamplingParams(temperature=0, max_tokens=12)
GROUPS = [
    PromptGroup((TaskPrompt(f"p{i}", "toy", ("", "") if i == 0 else ("",)),)) for i in range(3)
]


def encode(messages):
    """Prompts that grow with the conversation: a token for every message, answers by their length."""
    return [*LOOPING[0], *(1 + len(m["content"]) % 20 for m in messages)]


def system(name="none", drafter=lambda: None):
    return EngineSystem(name, lambda: engine_for(MODEL, drafter()), Bytes(), PARAMS)


class Peer:
    """Answers what it is told to, noting what it was asked."""

    name, peer, quant = "peer plain", "peer", "int4"

    def __init__(self, fails_at=None):
        self.asked, self.lengths, self.restarts, self.fails_at = [], [], 0, fails_at

    def restart(self, warm_up):
        self.restarts += 1

    def answer(self, prompts, lengths):
        if len(self.asked) == self.fails_at:
            raise PeerError("no more")
        self.asked.append([list(p) for p in prompts])
        self.lengths.append(lengths)
        return Measurement(
            self.name,
            token_ids=[[0] * n for n in lengths],
            ttft_s=[0.1] * len(lengths),
            prefill_s=0.1,
            decode_s=0.2,
            decode_tokens=sum(lengths) - len(lengths),
        )

    def close(self):
        pass


def run(bench):
    return [group.id for group in bench.steps()]


def measurements(store):
    """Of all rounds, everyone's."""
    rounds = [Round.from_json(result) for result in store.results.values()]
    return [measurement for each in rounds for measurement in each.measurements]


def test_everyone_gets_the_same_prompts_and_peers_the_plain_lengths():
    peer, store = Peer(), Store(ORIGIN)
    run(Bench(GROUPS, [system(), system("suffix", lambda: Suffix(Options())), peer], encode, store))
    plain = [m for m in measurements(store) if m.system == "none"]
    assert [len(asked) for asked in peer.asked] == [1, 1, 1, 1], "two steps of the first group"
    assert len(peer.asked[1][0]) == len(peer.asked[0][0]) + 2, (
        "the second step holds the plain answer"
    )
    assert [n for (n,) in peer.lengths] == [len(ids) for m in plain for ids in m.token_ids]
    drafted = [m for m in measurements(store) if m.system == "suffix"]
    assert [m.token_ids for m in drafted] == [m.token_ids for m in plain]
    assert sum(m.stats.accepted for m in drafted) > 0


def test_a_conversation_that_has_ended_is_not_asked_again():
    prompts = (TaskPrompt("x", "toy", ("", "")), TaskPrompt("y", "toy", ("",)))
    peer = Peer()
    run(Bench([PromptGroup(prompts)], [system(), peer], encode, Store(ORIGIN)))
    assert [len(asked) for asked in peer.asked] == [2, 1]
    assert len(peer.asked[1][0]) == len(peer.asked[0][0]) + 2


def test_figures_are_what_the_engine_counts():
    store = Store(ORIGIN)
    run(Bench(GROUPS[1:2], [system()], encode, store))
    (m,) = measurements(store)
    (reference,) = complete(engine_for(MODEL), [encode([{"content": ""}])], PARAMS)
    assert m.token_ids == [list(reference.seq.generated)]
    assert (m.decode_tokens, m.stats.passes, m.stats.drafted) == (11, 11, 0)
    assert 0 < m.verify_s < m.decode_s
    assert m.ttft_s[0] <= m.prefill_s


def test_prompts_of_a_batch_share_the_clock_but_keep_their_tokens():
    group = PromptGroup(
        tuple(TaskPrompt(f"p{i}", "toy", (text,)) for i, text in enumerate(("", "x", "xy")))
    )
    store = Store(ORIGIN)
    run(Bench([group], [system()], encode, store))
    (m,) = measurements(store)
    alone = [
        complete(engine_for(MODEL), [encode([{"content": p.turns[0]}])], PARAMS)[0].seq.generated
        for p in group.prompts
    ]
    assert m.token_ids == alone
    assert m.decode_tokens == sum(len(ids) - 1 for ids in alone)


def test_an_interrupted_run_goes_on_and_measures_nothing_twice(tmp_path):
    path = tmp_path / "run.jsonl"
    first = Peer()
    steps = Bench(GROUPS, [system(), first], encode, Store(ORIGIN, path), num_rounds=2).steps()
    for _ in range(2):
        next(steps)
    steps.close()
    second = Peer()
    store = Store(ORIGIN, path)
    assert (
        run(Bench(GROUPS, [system(), second], encode, store, num_rounds=2))
        == ["p0", "p1", "p2"] * 2
    )
    assert len(first.asked) + len(second.asked) == 2 * 4
    assert len(measurements(store)) == 2 * 2 * len(GROUPS)


def test_each_round_begins_with_fresh_engines():
    peer, built = Peer(), []
    ours = EngineSystem("none", lambda: built.append(0) or engine_for(MODEL), Bytes(), PARAMS)
    run(Bench(GROUPS[1:], [ours, peer], encode, Store(ORIGIN), num_rounds=3))
    assert (len(built), peer.restarts) == (3, 3)


@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_a_peer_that_fails_is_reported_and_the_others_go_on(fails_at):
    store = Store(ORIGIN)
    run(Bench(GROUPS, [system(), Peer(fails_at)], encode, store))
    errors = [m.error for m in measurements(store) if m.peer]
    assert errors[-1] == "no more"
    assert len([m for m in measurements(store) if m.peer is None]) == len(GROUPS)
