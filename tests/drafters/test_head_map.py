"""What is learned while serving makes drafts better, never other tokens; what does harm or is damaged is given up."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from forerun.core.params import SamplingParams
from forerun.core.types import Outcome, Seq, TopK
from forerun.drafters.mlp_speculator import Options, build, head_map
from forerun.drafters.mlp_speculator.adam import Adam
from forerun.drafters.mlp_speculator.drafting import TorchNetwork
from forerun.drafters.mlp_speculator.files import read
from forerun.drafters.mlp_speculator.state_buffer import CHUNK, StateBuffer
from forerun.drafting import learned
from forerun.drafting.base import Target
from forerun.drafting.networks import folder
from forerun.drafting.networks.drafter import LastStateDrafter
from forerun.engine.engine import Engine
from tests.drafters.helpers import Words
from tests.drafters.test_mlp_speculator import LSTM, LSTM_TENSORS, VOCAB, WIDTH
from tests.engine.harness import complete, engine_for, plain
from tests.tiny import tiny_model

MODEL = tiny_model(3, sharpness=3.0)
PATH = Path("models/tiny.gguf")
GREEDY = SamplingParams(temperature=0, max_tokens=40)
SEEDED = SamplingParams(temperature=1.0, max_tokens=40, seed=5)
PROMPTS = [[random.Random(i).randrange(VOCAB) for _ in range(6)] for i in range(12)]


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch) -> None:
    """Steps that a tiny network notices, and as many on a busy machine as on an idle one."""
    monkeypatch.setattr(head_map, "RATE", 0.02)
    monkeypatch.setattr(head_map, "STEP_S", 3600.0)
    monkeypatch.setattr(head_map, "VISITS", 12.0)
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))


@pytest.fixture
def new(tmp_path) -> Callable[..., LastStateDrafter]:
    """A drafter of one network, as a process builds it."""

    def make(
        *, learn: bool = True, quant: str = "none", ids=range(0, VOCAB), **target
    ) -> LastStateDrafter:
        tensors = LSTM_TENSORS | {"draft_ids": torch.tensor([*ids])}
        folder.write(tmp_path / "network", LSTM, tensors)
        here = Target(MODEL, Words(vocab_size=VOCAB), 4, 256, path=PATH, learn=learn, **target)
        options = Options(model=str(tmp_path / "network"), quant=quant, min_chance=0.01)
        return build(options, here)

    return make


def serve(drafter: LastStateDrafter, params=GREEDY, prompts=PROMPTS) -> Engine:
    """Answer prompts one by one, learning between them."""
    engine = engine_for(MODEL, drafter)
    for prompt in prompts:
        complete(engine, [prompt], params)
        while engine.idle():
            assert not engine.has_work
    return engine


def tau(drafter: LastStateDrafter) -> float:
    """Tokens a pass on all prompts, without learning between them."""
    engine = engine_for(MODEL, drafter)
    complete(engine, PROMPTS[:4], GREEDY)
    assert 0 < engine.stats.accepted < engine.stats.drafted
    return engine.stats.tau


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("quant", "params"),
    [("int8", GREEDY), ("int8", SEEDED)]
    + [pytest.param("none", p, marks=SLOW) for p in (GREEDY, SEEDED)],
)
def test_drafts_get_better_and_tokens_stay(new, params, quant) -> None:
    drafter, wanted = new(quant=quant), plain(MODEL, PROMPTS, params)
    before = tau(drafter)
    engine = engine_for(MODEL, drafter)
    for prompt, tokens in zip(PROMPTS, wanted, strict=True):
        (run,) = complete(engine, [prompt], params)
        assert run.seq.generated == tokens
        while engine.idle():
            pass
    assert engine.stats.drafted > engine.stats.accepted > 0 < engine.stats.rejected
    assert drafter.learner.num_steps > 20
    assert drafter.learner.num_returns == 0
    assert tau(drafter) > before + 0.1
    assert drafter.learner.benefit.learned.value > drafter.learner.benefit.shipped.value


@pytest.mark.parametrize("quant", ["int8", pytest.param("none", marks=SLOW)])
def test_tokens_that_the_head_lacks_are_learned_from_the_text(new, quant, monkeypatch) -> None:
    monkeypatch.setattr(head_map, "MAX_HEARD", 10)
    few = range(0, VOCAB, 3)
    drafter = new(quant=quant, ids=few)
    engine = serve(drafter)
    learner = drafter.learner
    said = {token for prompt in plain(MODEL, PROMPTS, GREEDY) for token in prompt}
    assert len(said - {*few}) > 10 == len(learner.head.ids) - len(few)
    assert torch.equal(learner.head.ids, learner.head.ids.unique())
    wanted = MODEL.head_rows(torch.eye(WIDTH), learner.head.ids).T
    assert torch.allclose(learner.head.rows, wanted, atol=1e-4)
    guessed = [
        token
        for prompt in PROMPTS
        for token in drafter.network.draft(MODEL.embed(torch.tensor([prompt[0]])), [1], [8], 3, 0)[
            0
        ][0]
    ]
    assert {*guessed} - {*few}, "the network guesses what it did not ship with"
    assert {*guessed} <= {*learner.head.ids.tolist()}
    assert engine.stats.drafted > engine.stats.accepted > 0 < engine.stats.rejected
    learner.keep()
    assert torch.equal(new(quant=quant, ids=few).learner.head.ids, learner.head.ids)
    learner._return()
    assert learner.head is learner.shipped


def test_without_learn_nothing_is_held_and_there_is_nothing_to_do(new) -> None:
    drafter = new(learn=False)
    assert type(drafter) is LastStateDrafter
    assert not serve(drafter).idle()
    assert drafter.features.top_k == 0
    assert (
        new().memory(1, 64).total
        > drafter.memory(1, 64).total + StateBuffer(head_map.ROWS, WIDTH).nbytes()
    )


def test_no_step_is_taken_while_a_request_runs(new) -> None:
    drafter = new()
    engine = serve(drafter, prompts=PROMPTS[:4])
    complete(engine, PROMPTS[4:8], GREEDY)
    steps, engine_run = drafter.learner.num_steps, engine.add(PROMPTS[9], GREEDY)
    assert not engine.idle()
    engine.step()
    assert not engine.idle()
    assert drafter.learner.num_steps == steps
    engine.abort(engine_run.seq.id)
    assert engine.idle()


def poisoned(drafter: LastStateDrafter, rows: int = 512) -> None:
    """States of no text, with what is least likely after them."""
    learner, generator = drafter.learner, torch.Generator().manual_seed(1)
    states = 3 * torch.randn(rows, WIDTH, generator=generator)
    for first in range(0, rows, CHUNK):
        hidden = states[first : first + CHUNK]
        logits = -4 * MODEL.head(hidden)
        top = TopK(
            logits.argmax(-1)[:, None].numpy(),
            logits.amax(-1)[:, None].numpy(),
            logits.logsumexp(-1).numpy(),
        )
        tokens = tuple(torch.randint(VOCAB, (len(hidden),), generator=generator).tolist())
        outcome = Outcome((), tokens, hidden=hidden, top=top)
        learner.saw(Seq(-1, [], GREEDY, 0), outcome, range(len(hidden)))
        learner.end(Seq(-1, [], GREEDY, 0))


def test_a_poisoned_buffer_is_noticed_and_given_up(new, monkeypatch) -> None:
    drafter = new()
    serve(drafter)
    learner = drafter.learner
    rows = (learner.head.rows @ learner.map).detach()
    learner.shipped = learner.shipped._replace(rows=rows)  # as if that had shipped
    learner._return()
    before, says = tau(drafter), learner._teacher
    with monkeypatch.context() as patch:  # away from what the target says
        patch.setattr(learner, "_teacher", lambda *given: (1 - says(*given)) / (VOCAB - 1))
        poisoned(drafter)
        learner._seen = learner.buffer.count
        for _ in range(60):
            learner._owed = head_map.BATCH
            learner._train()
        learner._publish()
    assert tau(drafter) < before - 0.1
    returns = learner.num_returns
    monkeypatch.setattr(head_map, "VISITS", 0.0)  # it does not learn its way back
    engine = serve(drafter, prompts=PROMPTS)
    assert learner.num_returns == returns + 1
    assert engine.stats.drafted > engine.stats.accepted > 0 < engine.stats.rejected
    assert tau(drafter) == pytest.approx(before, abs=0.02)


def test_what_is_no_number_is_given_up(new) -> None:
    drafter = new()
    before = tau(drafter)
    with torch.no_grad():
        drafter.learner.map.fill_(torch.nan)
    drafter.learner._publish()
    assert drafter.learner.num_returns == 1
    assert bool(drafter.learner.map.isfinite().all())
    assert tau(drafter) == before


def test_the_next_process_goes_on_where_this_one_was(new) -> None:
    drafter = new()
    before = tau(drafter)
    serve(drafter)
    after = tau(drafter)
    drafter.learner.keep()
    path = drafter.learner.kept.path
    assert path.stat().st_size < 2 * WIDTH * WIDTH + 500
    assert [entry.path for entry in learned.entries()] == [path]
    assert learned.entries()[0].model == PATH.resolve()
    assert tau(new()) == pytest.approx(after, abs=0.02)
    learned.remove(learned.entries())
    assert tau(new()) == before


@pytest.mark.parametrize("kind", ["another network", "no numbers"])
def test_a_file_that_cannot_be_used_is_told_and_written_anew(new, kind, caplog) -> None:
    drafter = new()
    before = tau(drafter)
    serve(drafter, prompts=PROMPTS[:6])
    kept = drafter.learner.kept
    drafter.learner.keep()
    held = kept.path.read_bytes()
    if kind == "another network":
        kept.path.write_bytes(held.replace(b'"network": "', b'"network": "0'))
    else:
        drafter.learner.map.data.fill_(torch.nan)
        drafter.learner.num_steps += 1
        drafter.learner.keep()
    with caplog.at_level(logging.WARNING):
        again = new()
    assert "cannot be used" in caplog.text
    assert tau(again) == before
    serve(again, prompts=PROMPTS[:6])
    again.learner.keep()
    caplog.clear()
    new()
    assert "cannot be used" not in caplog.text


def test_runs_never_cross_a_sequence_or_what_was_overwritten() -> None:
    """Token t of sequence s is 100 s + t, and so is its state: whatever is read has to fit together."""
    buffer, depth = StateBuffer(200, 1), 3
    chooser = random.Random(0)
    at = dict.fromkeys(range(5), 0)
    for _ in range(400):
        seq = chooser.randrange(5)
        num = chooser.randint(1, 4)
        numbers = [100 * seq + (at[seq] + i) % 100 for i in range(num)]
        hidden = torch.tensor(numbers).float()[:, None]
        top = TopK(hidden.long().numpy(), hidden.numpy(), hidden[:, 0].numpy())
        outcome = Outcome((), tuple(numbers), hidden=hidden, top=top)
        buffer.add(seq, outcome, [*range(num)], outcome.emitted)
        at[seq] += num
        if chooser.random() < 0.02:
            buffer.end(seq)
    starts = buffer.starts(depth)
    assert 0 < len(starts) <= 200
    assert buffer.count > 400  # it went round
    run = buffer.runs(starts, depth)
    first = run.first[:, 0].long()
    steps = torch.arange(depth)
    wanted = first[:, None] // 100 * 100 + (first[:, None] % 100 + steps) % 100
    following = first[:, None] // 100 * 100 + (first[:, None] % 100 + steps + 1) % 100
    assert torch.equal(run.tokens, wanted)
    assert torch.equal(run.after[..., 0].long(), following)
    assert torch.equal(run.best, following)
    assert torch.equal(run.log_normaliser.long(), following)
    assert not len(buffer.starts(depth, buffer.count))
    buffer.clear()
    assert not len(buffer.starts(depth))


def test_the_step_is_the_gradient_of_the_loss(new, monkeypatch) -> None:
    drafter = new()
    complete(engine_for(MODEL, drafter), PROMPTS[:4], GREEDY)
    learner = drafter.learner
    starts = learner.buffer.starts(head_map.DEPTH)
    assert len(starts) > 50
    learner._some = lambda given, _: given
    learner._seen = learner.buffer.count
    run = learner.buffer.runs(starts, head_map.DEPTH)
    map = torch.eye(WIDTH, requires_grad=True)
    teacher = learner._teacher(run, learner.head.ids)
    loss = torch.zeros(())
    for index, state in enumerate(learner.cell.unroll(run.first, run.tokens)):
        log_q = (state @ map.T @ learner.head.rows.T).log_softmax(-1)
        loss = loss - 0.8**index * (teacher[:, index] * log_q).sum(-1).mean()
    loss.backward()
    seen = []
    monkeypatch.setattr(learner._adam, "step", lambda map, gradient, rate: seen.append(gradient))
    learner._train()
    wanted = map.grad / max(1.0, float(map.grad.norm()))
    assert torch.allclose(seen[0], wanted, atol=1e-5)


def test_steps_are_those_of_torchs_adam() -> None:
    map, wanted = torch.eye(5), torch.eye(5, requires_grad=True)
    ours, theirs = Adam((0.9, 0.99)), torch.optim.Adam([wanted], 0.01, (0.9, 0.99))
    for seed in range(20):
        gradient = torch.randn(5, 5, generator=torch.Generator().manual_seed(seed))
        wanted.grad = gradient
        theirs.step()
        ours.step(map, gradient, 0.01)
    assert torch.allclose(map, wanted, atol=1e-6)


def test_states_of_many_rows_are_those_of_one(new) -> None:
    here = Target(MODEL, None, 1, 64)
    weights = read("untrained", here)
    network = TorchNetwork(weights, MODEL)
    first = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(0))
    tokens = torch.arange(15).reshape(5, 3)
    together = network.unroll(first, tokens)
    for row in range(5):
        alone = network.unroll(first[row : row + 1], tokens[row : row + 1])
        for many, one in zip(together, alone, strict=True):
            assert torch.allclose(many[row], one[0], atol=1e-5)
