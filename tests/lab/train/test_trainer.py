"""A run learns, goes on bit for bit after a kill, shares its work, and says in a line what is wrong."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from forerun.core.errors import CapacityError, ConfigError, ForerunError, LoadError
from forerun.drafters.base.contract import Target
from forerun.drafters.base.spec import DrafterSpec
from forerun.lab.store import Store
from forerun.lab.torch.decoder import Decoder
from forerun.lab.train import batches, networks, replies, session, trainer
from forerun.lab.train.learners import Kind, new_learner, write_network
from forerun.lab.train.replies import Reply
from forerun.lab.train.session import digest_of
from forerun.lab.train.states import KEYS, StateReader
from forerun.lab.train.trainer import CHECKPOINT, Trainer, TrainSettings
from forerun.model.random_model import random_config
from forerun.system import files
from tests.lab.torch.random_tensors import random_tensors
from tests.tiny import tiny_model

VOCAB, LENGTH, FIRST, DEPTH = 48, 60, 10, 2
TARGET = tiny_model(1, sharpness=3.0, vocab_size=VOCAB, num_layers=3)


def counting_model() -> Decoder:
    """Says token x + 1 after token x, nearly surely: its layers add nothing to the embedding."""
    shape = replace(random_config(VOCAB, 3), tied_head=False)
    weights = random_tensors(0, shape, sharpness=2.0)
    for name, weight in weights.items():
        if name.endswith((".o", ".down")):
            weight.zero_()
    weights["head"] = weights["embed"].roll(1, 0)
    return Decoder(shape, weights)


IDS = np.arange(VOCAB)[:-4]
SETTINGS = TrainSettings(
    tokens=6000, batch=100, eval_every=2000, bf16=False, lr=0.05, vector_lr=0.01
)
SHORT = replace(SETTINGS, tokens=2400, eval_every=1200)
"""Where nothing has to be learned."""


def texts(num: int, seed: int = 0) -> list[Reply]:
    tokens = torch.randint(VOCAB, (num, LENGTH), generator=torch.Generator().manual_seed(seed))
    return [
        Reply(f"r{seed}.{i}/0", "ab"[i % 2], tuple(row), FIRST, float(i % 2))
        for i, row in enumerate(tokens.tolist())
    ]


def new(
    folder, kind="mlp_speculator", settings=SETTINGS, target=TARGET, learner=None, ids=IDS, **more
) -> Trainer:
    torch.manual_seed(0)
    what = Kind(kind, DEPTH, **more)
    learner = learner or new_learner(what, target, ids, {})
    read = StateReader(
        target,
        learner.layers,
        all_rows=learner.piece is None,
        max_len=64,
        folder=folder / "states",
        max_nbytes=1 << 20,
    )
    return Trainer(learner, target, ids, settings, read, folder, origin={"kind": kind})


def counted(num: int) -> list[Reply]:
    rows = [tuple((start * 5 + i) % VOCAB for i in range(LENGTH)) for start in range(num)]
    return [Reply(f"c{i}/0", "count", row, FIRST, 0.0) for i, row in enumerate(rows)]


def run(trained_: Trainer, limit: int | None = None, make=texts) -> Trainer:
    for _ in itertools.islice(trained_.run((), make(60), make(8)), limit):
        pass
    return trained_


@pytest.mark.parametrize("kind", ["mlp_speculator", "eagle3", "medusa"])
def test_it_learns_and_a_shift_by_one_shows(kind, tmp_path, monkeypatch) -> None:
    done = run(new(tmp_path, kind, target=counting_model()), make=counted)
    losses = [line["loss"] for line in done.progress.history]
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    acceptance = done.acceptance(counted(8))
    assert acceptance.rows == 8 * (LENGTH - FIRST - DEPTH)
    assert acceptance.match[0] > 0.3
    assert 1 < acceptance.tau < 1 + DEPTH
    pack = batches.pack

    def shifted(*given):
        batch = pack(*given)
        return replace(batch, best=batch.best.roll(1), log_normaliser=batch.log_normaliser)

    monkeypatch.setattr(batches, "pack", shifted)
    assert max(done.acceptance(counted(8)).match) < 0.1


def test_a_killed_run_goes_on_bit_for_bit(tmp_path) -> None:
    whole = run(new(tmp_path / "whole", settings=SHORT))
    run(new(tmp_path / "parts", settings=SHORT), 16)  # some steps after the checkpoint
    parts = run(new(tmp_path / "parts", settings=SHORT))
    assert whole.progress.tokens == parts.progress.tokens >= SHORT.tokens
    weights = parts.learner.net.state_dict()
    for name, weight in whole.learner.net.state_dict().items():
        assert torch.equal(weight, weights[name])
    assert [line["loss"] for line in whole.progress.history] == [
        line["loss"] for line in parts.progress.history
    ]
    again = run(new(tmp_path / "parts", settings=SHORT))
    assert again.progress.step == whole.progress.step  # nothing is left


def test_a_run_whose_measurements_are_far_apart_is_kept_by_the_clock(tmp_path, monkeypatch) -> None:
    settings = replace(SHORT, eval_every=SHORT.tokens)
    run(new(tmp_path / "lost", settings=settings), 5)
    assert not (tmp_path / "lost" / CHECKPOINT).exists()
    monkeypatch.setattr(trainer, "SAVE_EVERY_S", 0.0)
    run(new(tmp_path / "kept", settings=settings), 5)
    again = new(tmp_path / "kept", settings=settings)
    again.resume()
    assert again.progress.step == 5


def test_states_are_the_same_whether_they_were_kept_or_not(tmp_path) -> None:
    def reader(max_nbytes: int, max_len: int = 64) -> StateReader:
        what = {"max_len": max_len, "folder": tmp_path / "states", "max_nbytes": max_nbytes}
        return StateReader(TARGET, (0, 2), all_rows=False, **what)

    few, never = texts(3), reader(0)
    expected = [never(reply) for reply in (*few, *few)]
    assert never.num_computed == 6 * (LENGTH - 1), (
        "all but the last token, whose row guesses nothing"
    )
    keeping = reader(1 << 20)
    again = [keeping(reply) for reply in (*few, *few)]
    assert keeping.num_computed == 3 * (LENGTH - 1)
    later = reader(1 << 20)
    files = sorted((tmp_path / "states").iterdir())
    files[0].write_bytes(files[0].read_bytes()[:100])
    last = [later(reply) for reply in (*few, *few)]
    assert later.num_computed == LENGTH - 1, "only the damaged one is computed again"
    for states in (again, last):
        for one, other in zip(states, expected, strict=True):
            assert one.start == other.start
            for name in KEYS:
                assert torch.equal(getattr(one, name), getattr(other, name))
    size = sum(path.stat().st_size for path in files)
    small = reader(size - 1)
    for reply in texts(3, seed=1):
        small(reply)
    assert len([*(tmp_path / "states").iterdir()]) == 3, "there was no room"
    with pytest.raises(CapacityError, match="60 tokens does not fit 16"):
        reader(0, max_len=16)(texts(1, seed=2)[0])


def test_texts_whose_short_digests_are_equal_have_states_of_their_own(tmp_path) -> None:
    by_digest: dict[str, tuple[int, ...]] = {}
    for i in itertools.count():
        tokens = tuple(i // VOCAB**digit % VOCAB for digit in range(6))
        other = by_digest.setdefault(digest_of([tokens, 2]), tokens)
        if other != tokens:
            break
    what = {"all_rows": False, "max_len": 64, "folder": tmp_path, "max_nbytes": 1 << 20}
    read = StateReader(TARGET, (), **what)
    one, two = (read(Reply(str(key), "", key, 3, 0.0)) for key in (other, tokens))
    assert not torch.equal(one.last, two.last)
    assert len([*tmp_path.iterdir()]) == 2


def test_an_epoch_has_every_row_once_and_its_seed_decides() -> None:
    few = texts(5)
    for width in (16, None):
        plans = [[*batches.epoch(few, DEPTH, width, 40, (0, seed))] for seed in (1, 1, 2)]
        assert plans[0] == plans[1] != plans[2]
        rows = [
            (piece.reply.key, row)
            for pieces in plans[0]
            for piece in pieces
            for row in range(piece.start, piece.stop)
        ]
        assert len(rows) == len({*rows}) == batches.lengths(few, DEPTH)
        assert {row for _, row in rows} == {*range(FIRST - 1, LENGTH - 1 - DEPTH)}


def test_two_stages_share_the_steps(tmp_path) -> None:
    settings = replace(SETTINGS, tokens=2100, stages=(5, 2), batch=100, eval_every=10_000)
    both = new(tmp_path, settings=settings)
    stages = [p.stage for p in both.run(texts(9, 7), texts(9), texts(3, 1))]
    assert stages == sorted(stages)
    assert stages.count(0) == pytest.approx(5 / 7 * len(stages), abs=1.5)


def test_the_rate_of_the_second_stage_starts_again(tmp_path) -> None:
    settings = replace(SETTINGS, tokens=2100, stages=(5, 2), batch=100, eval_every=10_000)
    settings = replace(settings, stage2_rate=0.5, warm_up=0.3)
    both = new(tmp_path, settings=settings)
    stages = [p.stage for p in both.run(texts(9, 7), texts(9), texts(3, 1))]
    rates = [line["rate"] for line in both.progress.history]
    first = stages.index(1)
    assert rates[first - 1] < 0.3
    assert rates[first + 1] > rates[first - 1]
    assert max(rates[:first]) == 1
    assert max(rates[first:]) == 0.5


@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param({"cell": "mlp"}, marks=pytest.mark.slow),
        {"cell": "mlp", "tied": False, "own_embedding": True},
    ],
)
def test_the_texts_own_tokens_can_be_learned_alone(more, tmp_path) -> None:
    """IBM's loss: what the target thinks likely is not looked at."""
    settings = replace(SETTINGS, loss="token")
    model = counting_model()
    done = run(new(tmp_path, settings=settings, target=model, **more), make=counted)
    assert done.acceptance(counted(8)).match[0] > 0.5
    other = new(tmp_path / "other", settings=settings, target=model, **more)
    pieces = next(batches.epoch(counted(9), DEPTH, 64, 100, (0,)))
    batch = batches.pack(pieces, DEPTH, other.read)
    ones = batches.own_tokens(batch, IDS)
    known = np.isin(batch.following.numpy(), IDS)
    assert ones.sum(-1).tolist() == known.astype(float).tolist()
    assert np.array_equal(IDS[ones.argmax(-1).numpy()[known]], batch.following.numpy()[known])


def test_heads_of_its_own_learn_alone_what_the_targets_need_a_map_for(tmp_path) -> None:
    """IBM's network: embedding, matrix, norm and head for each step, all of them stepped."""
    settings = replace(SETTINGS, loss="token", step_weight=1.0)
    ibm = {"cell": "mlp", "tied": False, "own_embedding": True, "own_head": True}
    begun = new(tmp_path, settings=settings, target=counting_model(), **ibm)
    before = {name: weight.clone() for name, weight in begun.learner.net.named_parameters()}
    assert {name.rpartition(".")[0] for name in before} == {
        f"{part}.{step}" for part in ("emb", "proj", "ln", "head") for step in range(DEPTH)
    }
    assert before["head.1.weight"].shape == (len(IDS), TARGET.config.hidden_size)
    done = run(begun, make=counted)
    for name, weight in done.learner.net.named_parameters():
        assert not torch.equal(weight, before[name]), name
    assert min(done.acceptance(counted(8)).match) > 0.5


def test_an_untied_network_has_a_map_before_the_head_for_each_step(tmp_path) -> None:
    net = new(tmp_path, cell="mlp", tied=False).learner.net
    names = {name for name, _ in net.named_parameters() if name.startswith("head_map")}
    assert names == {"head_map.0.weight", "head_map.1.weight"}


@pytest.mark.parametrize("cell", ["mlp", "lstm"])
def test_without_tokens_the_state_alone_decides(cell, tmp_path) -> None:
    done = run(new(tmp_path, settings=SHORT, cell=cell, zero_tokens=True, own_embedding=True))
    learner = done.learner
    assert not learner.net.emb_map.weight.any()
    pieces = next(batches.epoch(counted(9), DEPTH, 64, 100, (0,)))
    batch = batches.pack(pieces, DEPTH, done.read)
    other = replace(batch, tokens=batch.tokens.roll(1))
    for one, two in zip(learner.outputs(batch), learner.outputs(other), strict=True):
        assert torch.equal(one, two)


def test_the_second_stage_has_steps_and_replies_of_its_own_length(tmp_path) -> None:
    settings = replace(SETTINGS, tokens=2100, stages=(5, 2), eval_every=10_000, patience=0)
    both = new(tmp_path, settings=replace(settings, stage2_batch=200, stage2_length=20))
    stages = [p.stage for p in both.run(texts(9, 7), texts(60), texts(3, 1))]
    first, second = both.progress.history[stages.index(1) - 1], both.progress.history[-2:]
    assert first["tokens"] / first["step"] < 150
    assert second[1]["tokens"] - second[0]["tokens"] >= 200
    reply = texts(1)[0]
    assert reply.cut(20).num_learned == 20
    assert reply.cut(999) == reply


def test_a_steps_loss_counts_by_its_weight(tmp_path) -> None:
    losses = [
        run(new(tmp_path / str(w), settings=replace(SHORT, step_weight=w)), 1).progress.history
        for w in (0.0, 0.5, 1.0)
    ]
    none, half, whole = (history[0]["loss"] for history in losses)
    assert 0 < half - none == pytest.approx((whole - none) / 2, rel=1e-4)


def test_an_lstm_is_tied(tmp_path) -> None:
    with pytest.raises(ConfigError, match="--untied is for --cell mlp"):
        new(tmp_path, tied=False)


def test_a_loss_that_is_no_number_ends_the_run_and_the_checkpoint_stays(tmp_path) -> None:
    broken = new(tmp_path, settings=replace(SETTINGS, eval_every=20))
    steps = broken.run((), texts(60), texts(8, 1))
    next(steps)
    before = (tmp_path / CHECKPOINT).read_bytes()
    with torch.no_grad():
        next(iter(broken.learner.net.parameters())).fill_(torch.nan)
    with pytest.raises(ForerunError, match="not a number after"):
        next(steps)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_worse_than_token_pairs_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(trainer, "GATE_TOKENS", 100)
    monkeypatch.setattr(trainer, "bigram_match", lambda *_: 0.99)
    with pytest.raises(ForerunError, match=r"table of token pairs 0\.990"):
        run(new(tmp_path))


def test_it_stops_when_nothing_is_gained(tmp_path) -> None:
    settings = replace(SETTINGS, tokens=60_000, lr=0.0, vector_lr=0.0, patience=2, eval_every=500)
    done = run(new(tmp_path, settings=settings)).progress
    assert done.is_over
    assert done.num_worse == 2
    assert done.tokens < 4000


def test_checkpoints_of_others_and_damaged_ones_are_refused(tmp_path) -> None:
    run(new(tmp_path, settings=replace(SETTINGS, eval_every=20)), 5)
    with pytest.raises(ConfigError, match="of a run with another settings"):
        new(tmp_path, settings=replace(SETTINGS, lr=0.5)).resume()
    checkpoint = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    torch.save(checkpoint | {"optimizer": {"adam": {}, "momenta": []}}, tmp_path / CHECKPOINT)
    with pytest.raises(ConfigError, match="is damaged"):
        new(tmp_path, settings=replace(SETTINGS, eval_every=20)).resume()
    (tmp_path / CHECKPOINT).write_bytes(b"no checkpoint")
    with pytest.raises(ConfigError, match="is damaged"):
        new(tmp_path).resume()


def test_a_full_disk_is_a_line_and_leaves_what_was_there(tmp_path, monkeypatch) -> None:
    done = new(tmp_path)
    done.save()
    before = (tmp_path / CHECKPOINT).read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "replacing", full)
    with pytest.raises(ForerunError, match="No space left"):
        done.save()
    with pytest.raises(ForerunError, match="No space left"):
        write_network(tmp_path, {}, done.best, IDS)
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_a_folder_has_weights_in_fp16_and_a_line_a_step(tmp_path) -> None:
    net = nn.Linear(3, 2, bias=False)
    lines = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25, "tau": 1.5}]
    session.write_record(tmp_path, {"tokens": 7}, lines)
    write_network(tmp_path, {"model_type": "x"}, net.state_dict(), IDS)
    stored = load_file(tmp_path / "model.safetensors")
    assert torch.equal(stored["weight"], net.weight.detach().half())
    assert stored["draft_ids"].tolist() == IDS.tolist()
    assert (tmp_path / "metrics.csv").read_text() == "step,loss,tau\n1,2.5,\n2,2.25,1.5\n"
    assert json.loads((tmp_path / "config.json").read_text()) == {"model_type": "x"}


def test_int8_is_what_eight_bits_run_and_smaller(tmp_path) -> None:
    net = nn.Linear(64, 8, bias=False)
    for name, int8 in (("fp16", False), ("int8", True)):
        write_network(tmp_path / name, {}, net.state_dict(), IDS, int8=int8)
    codes = load_file(tmp_path / "int8" / "model.safetensors")
    assert codes["weight"].dtype == torch.int8
    assert codes["draft_ids"].tolist() == IDS.tolist()
    half = load_file(tmp_path / "fp16" / "model.safetensors")["weight"].float()
    again = codes["weight"].unflatten(1, (-1, 32)) * codes["weight.scales"].float()[..., None]
    assert (again.flatten(1) - half).abs().max() <= half.abs().max() / 127


def test_replies_that_loop_or_come_twice_are_left_out_and_prompts_held_out() -> None:
    store = Store({})
    rows = {f"p{i}/0": [i, *range(i, i + 12)] for i in range(100)}
    rows |= {"twice/0": rows["p3/0"], "loop/0": [1, *([5, 6, 7, 8] * 12)], "short/0": [1, 2, 3]}
    for key, (first, *answer) in rows.items():
        row = {"prompt": [first], "answer": answer, "category": key[0], "temperature": 0.0}
        store.add(key, row)
    usable = replies.of_store(store)
    assert {reply.key for reply in usable} == {f"p{i}/0" for i in range(100)}
    train, held_out = replies.split(usable)
    assert 0 < len(held_out) < 15
    assert len(train) + len(held_out) == 100
    assert replies.split(usable[:60])[1] == [r for r in held_out if r in usable[:60]]
    with pytest.raises(ConfigError, match="replies to 100 prompts or more"):
        replies.split(usable[:1])
    with pytest.raises(ConfigError, match="no replies"):
        replies.of_store(Store({}))


@pytest.mark.parametrize("kind", ["mlp_speculator", "eagle3", "medusa"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"inner_dim": 32, "num_layers": 2, "for_gguf": True},
        {"cell": "mlp", "tied": False, "own_embedding": True},
        {"cell": "mlp", "tied": False, "own_embedding": True, "own_head": True},
        {"cell": "mlp", "tied": False},
    ],
)
def test_what_was_trained_can_be_read_and_drafts(kind, more, tmp_path) -> None:
    trainer_ = new(tmp_path, kind, **more)
    learner = trainer_.learner
    learner.write(tmp_path, learner.net.state_dict(), IDS, {}, [1.0] * DEPTH)
    drafter = DrafterSpec.of(f"{kind}:model={tmp_path}").build(Target(TARGET, None, 1, 64))
    assert drafter.memory(1, 64).total > 0


# Heads go on as the others do: it is the trainer that goes on.
@pytest.mark.parametrize(
    "kind", ["mlp_speculator", "eagle3", pytest.param("medusa", marks=pytest.mark.slow)]
)
def test_a_trained_network_goes_on_from_where_it_was(kind, tmp_path) -> None:
    model, ids = counting_model(), IDS[1:]
    done = run(new(tmp_path, kind, SHORT, target=model), make=counted)
    target = Target(model, None, 1, 64)
    weights = done.learner.net.state_dict()
    done.learner.write(tmp_path, weights, ids, {}, [1.0] * DEPTH)
    session.write_record(tmp_path, {"kind": {"name": kind, "depth": DEPTH}}, [])
    learner, what, vocabulary = networks.trained(target, tmp_path)
    assert (what, vocabulary.tolist()) == (Kind(kind, DEPTH), ids.tolist())
    for name, weight in learner.net.state_dict().items():
        assert torch.equal(weight, weights[name].half().float())
    settings = replace(SETTINGS, tokens=500, eval_every=100, lr=0.0, vector_lr=0.0)
    again = new(tmp_path / "again", kind, settings, model, learner, ids)
    run(again, make=counted)
    assert again.progress.history[0]["tokens"] == again.progress.best_tokens == 0
    assert again.progress.num_worse == again.progress.step
    assert all(torch.equal(again.best[name], weights[name].half().float()) for name in weights)
    (tmp_path / "train.json").unlink()
    with pytest.raises(LoadError, match=r"no train\.json that says its kind"):
        networks.trained(target, tmp_path)
