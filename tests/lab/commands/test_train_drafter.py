"""`forerun train drafter` and `train data`, as a user meets them: a drafter from replies, and what cannot be."""

from __future__ import annotations

import json
import shlex
import signal
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from forerun.drafters.base.vocabulary import fingerprint
from forerun.lab.commands import train_draft_model, train_drafter
from forerun.lab.commands._training import command_of
from forerun.lab.store import Store
from forerun.lab.train import answers, session
from forerun.lab.train.session import Data
from forerun.weights.checkpoint import open_checkpoint
from tests.cli.helpers import the_json


@pytest.fixture
def store(default_model, tmp_path):
    """Replies of no sense: enough to learn from."""
    vocabulary = fingerprint(open_checkpoint(default_model).tokenizer())
    origin = {"model": "smollm2-135m-instruct", "vocabulary": vocabulary, "max_tokens": 256}
    store = Store(origin, tmp_path / "a.jsonl")
    tokens = torch.randint(400, (40, 24), generator=torch.Generator().manual_seed(0)).tolist()
    for i, row in enumerate(tokens):
        kind = {"category": "ab"[i % 2], "temperature": float(i % 2)}
        store.add(f"p{i}/0", {**kind, "prompt": row[:4], "answer": row[4:]})
    return store.path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp_speculator", "eagle3", "medusa"])
def test_a_drafter_is_trained_and_says_where_it_is(
    forerun, default_model, store, tmp_path, kind
) -> None:
    out_folder = tmp_path / "out"
    given = ("-m", default_model, "--answers", store, "--kind", kind, "-o", out_folder)
    small = ("--tokens", 400, "--eval-every", 200, "--batch", 100, "--draft-vocab", 200)
    code, out, err = forerun("train", "drafter", *given, *small, "--json")
    assert code == 0, err
    assert "replies held out" in err
    assert "MB on disk" in err
    document = the_json(out)
    assert {*document["held_out"]} == {"a", "b", "all"} or {*document["held_out"]} > {"all"}
    assert document["held_out"]["all"]["tau"] >= 1
    config = json.loads((out_folder / "config.json").read_text())
    assert config["model_type"] == kind
    assert config["target"]["hidden_size"] == 576
    assert len(config["temperature"]) == 3
    record = json.loads((out_folder / "train.json").read_text())
    assert record["tokens"] >= 400
    assert {*record["in_engine"]["tau"]} == {*document["held_out"]}
    assert record["in_engine"] == document["in_engine"]
    assert err.count("in the engine tau") == 2  # after each measurement
    words = shlex.split(record["command"])
    assert words[:5] == ["forerun", "train", "drafter", "-m", "smollm2-135m-instruct"]
    assert words[words.index("--answers") + 1] == "a.jsonl"
    assert words[words.index("--tokens") + 1] == "400"
    assert (out_folder / "out-training.png").stat().st_size > 10_000
    assert (out_folder / "metrics.csv").read_text().startswith("step,tokens,rate,cpu_s,loss")
    code, again, _ = forerun("train", "drafter", *given, *small, "--json")  # all is done
    assert code == 0
    assert the_json(again)["held_out"] == document["held_out"]
    more = ("train", "drafter", "-m", default_model, "--answers", store, "--from", out_folder)
    code, out, err = forerun(
        *more, *small[:-2], "--draft-vocab", 64, "-o", tmp_path / "more", "--json"
    )
    assert code == 0, err
    assert the_json(out)["kind"]["name"] == kind
    assert json.loads((tmp_path / "more" / "config.json").read_text())["draft_vocab_size"] == 64
    assert err.count("in the engine tau") == 3  # before the first step, too
    answer = ("generate", "-m", default_model, "-n", 12, "--temp", 0, "The capital of France is")
    _, plain, _ = forerun(*answer, "-d", "none")
    for folder in (out_folder, tmp_path / "more"):
        code, drafted, err = forerun(*answer, "-d", f"{kind}:model={folder}")
        assert (code, drafted) == (0, plain), err


def test_the_record_of_what_ships_names_the_command_that_makes_it(forerun, monkeypatch) -> None:
    folder = (
        resources.files("forerun.drafters.mlp_speculator") / "shipped" / "smollm2-135m-instruct"
    )
    record = json.loads((folder / "train.json").read_text())
    seen = {}

    def new_trainer(llm, learner, data, settings, states_gb, out, origin, device):
        seen.update(
            origin, model=data.model, settings=asdict(settings) | {"bf16": True}
        )  # the machine's
        raise KeyboardInterrupt

    data = Data(record["model"], record["vocabulary"], Path("x"), [], [], [], np.arange(3))
    llm = SimpleNamespace(model=SimpleNamespace(num_threads=1))
    monkeypatch.setattr("forerun.cli.options.load", lambda config, **_: llm)
    monkeypatch.setattr("forerun.lab.train.session.read_data", lambda *_: data)
    monkeypatch.setattr("forerun.lab.train.networks.new", lambda *_: SimpleNamespace())
    monkeypatch.setattr("forerun.lab.train.session.new_trainer", new_trainer)
    name, *words = shlex.split(record["command"])
    assert name == "forerun"
    assert "--int8" in words
    forerun(*words)
    settings = json.loads(json.dumps(seen["settings"]))
    assert record["settings"].items() <= settings.items()
    assert settings["stage2_rate"] == 0  # newer than the record
    assert seen["model"] == record["model"]
    assert record["kind"].items() <= seen["kind"].items()


def test_no_replies_and_those_of_another_model_are_a_line(forerun, default_model, tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    given = ("train", "drafter", "-m", default_model, "--answers", path)
    code, _, err = forerun(*given)
    assert (code, err.count("\n")) == (2, 1)
    assert "make replies with forerun train data" in err
    path.write_text('{"origin": {"model": "another"}}\n')
    code, _, err = forerun(*given)
    assert (code, err.count("\n")) == (2, 1)
    assert "another run's results" in err


def test_what_a_trained_drafter_decides_is_not_asked_for(forerun, default_model, store) -> None:
    given = ("train", "drafter", "-m", default_model, "--answers", store, "--from")
    code, _, err = forerun(*given, "auto", "--inner", 64)
    assert (code, err.count("\n")) == (2, 1)
    assert "--from decides --inner itself" in err
    code, _, err = forerun(*given, store.parent)
    assert code == 2
    assert "has no config.json: give a folder that forerun train drafter wrote" in err


def test_data_is_made_once(forerun, default_model, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(answers, "MAX_TOKENS", 12)
    prompts, path = tmp_path / "prompts.jsonl", tmp_path / "a.jsonl"
    prompts.write_text('{"id": "x", "category": "talk", "prompt": "Say hello."}\n')
    given = ("train", "data", "-m", default_model, "-c", 256, "--answers", path, "--tokens", 24)
    code, out, err = forerun(*given, "--prompts", prompts, "--json")
    assert code == 0, err
    assert the_json(out)["tokens"] >= 24
    written = path.read_text()
    assert json.loads(written.splitlines()[1])["category"] == "talk"
    assert forerun(*given, "--prompts", prompts)[0] == 0
    assert path.read_text() == written


@pytest.mark.slow
@pytest.mark.parametrize("source", [(), ("--from",)])
def test_a_draft_is_cut_from_the_model_and_drafts(
    forerun, default_model, store, tmp_path, source
) -> None:
    out_folder = tmp_path / "out"
    given = ("-m", default_model, "--answers", store, "-o", out_folder)
    given += (*source, default_model) if source else ()
    small = ("--tokens", 400, "--eval-every", 200, "--batch", 100, "--draft-vocab", 200)
    code, out, err = forerun("train", "draft-model", *given, *small, "--json")
    assert code == 0, err
    document = the_json(out)
    assert document["layers"] == [0, 14, 29]  # 0.0799 of a pass with so small a head
    assert 0.04 < document["held_out"]["cost"] <= 0.08
    assert 0 < document["held_out"]["measured_cost"] < 1
    assert document["held_out"]["all"]["tau"] >= 1
    answer = ("generate", "-m", default_model, "-n", 12, "--temp", 0, "The capital of France is")
    _, plain, _ = forerun(*answer, "-d", "none")
    code, drafted, err = forerun(*answer, "-d", f"draft_model:model={out_folder}")
    assert code == 0, err
    assert drafted == plain


@pytest.mark.parametrize("cost", [0, 1, -2])
def test_a_draft_cannot_cost_more_than_a_pass(forerun, monkeypatch, cost) -> None:
    monkeypatch.setattr(
        "forerun.cli.options.load", lambda config, **_: pytest.fail("it was loaded")
    )
    code, _, err = forerun("train", "draft-model", "--max-cost", cost)
    assert (code, err.count("\n")) == (2, 1)
    assert "--max-cost must be between 0 and 1" in err


def test_ctrl_c_waits_for_the_end_of_a_step() -> None:
    ended = []

    def steps():
        signal.raise_signal(signal.SIGINT)
        ended.append("step")
        yield None

    with pytest.raises(KeyboardInterrupt):
        session._whole_step(steps())
    assert ended == ["step"]


@pytest.mark.parametrize("option", ["--eval-every", "--tokens"])
def test_a_count_that_is_none_is_named_as_it_was_typed(forerun, tiny_gguf, option):
    code, _, err = forerun("train", "drafter", "-m", tiny_gguf, option, "x")
    assert code == 2
    assert f"{option} must be a count such as 200k or 5M, got 'x'" in err


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--step-weight", 2, "must be from 0 to 1, got 2"),
        ("--stage2-rate", -1, "must be from 0 to 1, got -1"),
        ("--stage2-batch", -1, "must be at least 0, got -1"),
        ("--draft-vocab", 0, "must be at least 1, got 0"),
    ],
)
def test_a_number_out_of_its_range_is_named_as_it_was_typed(
    forerun, tiny_gguf, option, value, why
) -> None:
    code, _, err = forerun("train", "drafter", "-m", tiny_gguf, option, value)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{option} {why}" in err


@pytest.mark.parametrize(
    ("command", "option"), [(train_drafter, "--from-model"), (train_draft_model, "--from")]
)
def test_a_record_names_another_model_without_its_folder(command, option) -> None:
    context = command.command.make_context("train", [option, "/home/me/models/big.Q4_K_M.gguf"])
    words = shlex.split(command_of(context))
    assert words[words.index(option) + 1] == "big.Q4_K_M"


def test_whose_network_it_is_needs_a_network(forerun, default_model, store) -> None:
    given = ("train", "drafter", "-m", default_model, "--answers", store, "--from-model")
    code, _, err = forerun(*given, default_model)
    assert (code, err.count("\n")) == (2, 1)
    assert "--from-model says whose network --from is: give both" in err


@pytest.mark.slow
def test_a_network_is_moved_to_a_model_before_it_goes_on(
    forerun, default_model, store, tmp_path
) -> None:
    given = ("train", "drafter", "-m", default_model, "--answers", store, "--from", "auto")
    small = ("--tokens", 300, "--eval-every", 300, "-o", tmp_path / "out", "--json")
    code, out, err = forerun(*given, *small, "--from-model", default_model)
    assert code == 0, err
    document = the_json(out)
    assert document["from_model"] == "smollm2-135m-instruct"
    assert "--from-model smollm2-135m-instruct" in document["command"]
    assert document["held_out"]["all"]["tau"] > 1
