"""`forerun tune`: a table that the default drafter finds; with `-d` it prints what `-d` takes, and writes nothing."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from forerun import LLM, SamplingParams
from forerun.drafters.base.spec import DrafterSpec
from forerun.drafters.mlp_speculator.files import networks_dir
from forerun.drafters.recycling import shared_replies, table_file
from forerun.engine.stats import SpecStats
from forerun.lab.train import answers
from forerun.lab.train.trainer import Trainer
from forerun.lab.tune import learn, outcome, report
from forerun.lab.tune.training import NetworkRun
from tests.cli.helpers import FEW, assert_private, the_json

ONE = "suffix:num_draft=2,factor=2,min_token_prob=0.2,max_depth=16"
"""Every option that could be tuned is given: one setting is scored."""
SPELLED = "suffix:max_depth=16,num_draft=2,factor=2.0,min_token_prob=0.2"
SHORT = ("--prompts", FEW, "--limit", 1, "-n", 8, "--repeats", 1, "-c", 256, "-t", 1)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few passes to time."""
    monkeypatch.setattr(report, "CONTEXTS", (16, 32))
    monkeypatch.setattr(report, "WIDTHS", (1, 4))


def test_the_search_scores_what_is_asked(forerun, default_model):
    code, out, _ = forerun("tune", "-m", default_model, "-d", ONE, *SHORT, "--json")
    document = the_json(out)
    assert code == 0
    assert [row["drafter"] for row in document["drafters"]] == [SPELLED]
    assert document["drafter"] in (SPELLED, "none")
    measured = document["measured"]
    if measured:
        assert measured["identical"] == measured["prompts"] == 1
        assert measured["speedup"] > 0


def test_what_it_prints_is_what_d_takes(forerun, default_model):
    code, out, _ = forerun("tune", "-m", default_model, "-d", ONE, *SHORT)
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("-d ")]
    printed = line.removeprefix("-d ").partition("  ")[0]
    assert DrafterSpec.of(printed).text() in (SPELLED, "none")


NUM_PROBED = 2
"""Steps of learning that are timed."""
TAKES = "M weights takes about 1 minute to "
LEARN = ("--tokens", "60", "--limit", 1, "-n", 8, "-c", 128, "-t", 1)


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three prompts, an empty cache, and few replies that ship."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shared_replies, "replies", lambda: iter(["Hello world."]))
    path = tmp_path / "prompts.txt"
    path.write_text("Say hello.\nCount to ten.\nName a tree.\n")
    return path


@pytest.fixture
def many(prompts: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """So many prompts that a network can be made, with short answers."""
    monkeypatch.setattr(answers, "MAX_TOKENS", 24)
    prompts.write_text("".join(f"Count to {i}.\n" for i in range(120)))
    return prompts


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """How many times as fast as another a drafter is found to be, `hi` at most, instead of the machine's clock.

    In full a network has twice the tokens a pass, as one of a random model learns little, a new table `table` times.
    """
    found = {"network": 1.5, "hi": 2.0, "table": 1.0}
    compare, in_full = report.compare, report.in_full

    def compared(*args):
        row = compare(*args)
        ratio = {"over_baseline": found["network"], "over_baseline_hi": found["hi"]}
        return lambda *names: row(*names) | ratio

    def counted(*args):
        figures = in_full(*args)

        def doubled(name):
            count = figures(name)
            factor = (2 if "network-" in name else 1) * (found["table"] if ".new" in name else 1)
            return replace(count, emitted=round(count.emitted * factor))

        return doubled

    monkeypatch.setattr(report, "compare", compared)
    monkeypatch.setattr(report, "in_full", counted)
    return found


def test_what_is_learned_is_found_by_the_default_drafter(forerun, tiny_gguf, prompts):
    given = ("tune", tiny_gguf, "--prompts", prompts, *LEARN)
    code, out, err = forerun(*given, "--json")
    document = the_json(out)
    assert code == 0
    assert "no network: 2 prompts are too few to learn from and to measure on" in err
    assert document["network"] is None
    assert document["tokens"] >= 60
    assert document["measured"]["identical"] == document["measured"]["prompts"] == 1
    before, after = document["tau_in_full"]
    assert (document["table"] is None) == (after <= before)
    if document["table"] is not None:
        assert table_file.read_header(Path(document["table"])).model == tiny_gguf.stem
    answers = Path(document["answers"]).read_text(encoding="utf-8")
    code, out, _ = forerun(*given)
    assert code == 0
    assert Path(document["answers"]).read_text(encoding="utf-8") == answers, (
        "nothing is asked again"
    )
    assert "tau in full" in out
    assert "prompts that it did not learn from" in out


def check_it_drafts(model: Path) -> None:
    """By default the network drafts, and changes no token."""
    plain, auto = LLM(model, drafter="none"), LLM(model)
    assert auto.drafter_spec.text() == "mlp_speculator++recycling"
    params = [SamplingParams(temperature=t, seed=3, max_tokens=60) for t in (0.0, 1.0)]
    asked = ["Count to 7."] * 2
    wanted, ours = (llm.generate(asked, params) for llm in (plain, auto))
    assert [o.outputs[0].token_ids for o in ours] == [o.outputs[0].token_ids for o in wanted]
    stats = SpecStats.total(o.outputs[0].stats for o in ours)
    assert stats.drafted > stats.accepted > 0


def test_a_network_goes_on_after_ctrl_c_and_the_default_drafter_finds_it(
    forerun, tiny_gguf, many, clock, monkeypatch
):
    given = ("tune", tiny_gguf, "--prompts", many, *LEARN)
    given += ("--tokens", "2.8k", "--network", "--json")
    step, made = Trainer._step, []

    def steps(*args):
        made.append(0)
        if len(made) == NUM_PROBED + 2:
            signal.raise_signal(signal.SIGINT)
        return step(*args)

    monkeypatch.setattr(Trainer, "_step", steps)
    code, _, err = forerun(*given)
    assert code == 130
    assert TAKES + "learn" in " ".join(err.split())
    assert "tokens are learned; the same command goes on" in err
    assert not networks_dir().exists()
    code, out, err = forerun(*given)
    network = the_json(out)["network"]
    assert code == 0, err
    assert network["measured"]["identical"] == network["measured"]["prompts"] == 1
    record = json.loads((Path(network["path"]) / "train.json").read_text())
    lines = (Path(network["trained"]) / "metrics.csv").read_text().splitlines()[1:]
    assert [int(line.partition(",")[0]) for line in lines] == [*range(1, len(lines) + 1)]
    assert len(made) == 2 * NUM_PROBED + len(lines), "no step is made twice"
    assert record["command"].startswith("forerun tune -m")

    check_it_drafts(tiny_gguf)
    kept = {path: path.read_bytes() for path in Path(network["path"]).iterdir()}
    clock["network"] = 0.9
    code, out, _ = forerun(*given)
    assert code == 0
    assert the_json(out)["network"]["path"] is None
    assert the_json(out)["network"]["kept"] == network["path"]
    assert {path: path.read_bytes() for path in Path(network["path"]).iterdir()} == kept
    clock["hi"] = 0.99
    code, out, _ = forerun(*given)
    assert code == 0
    assert the_json(out)["network"]["kept"] is None
    assert LLM(tiny_gguf).drafter_spec.text() == "recycling", "what is slower for sure goes"
    assert_private(networks_dir().parent)


def test_a_table_of_ones_own_is_lost_to_a_better_one_alone(forerun, tiny_gguf, prompts, clock):
    own = table_file.tables_dir() / f"{tiny_gguf.stem}{table_file.SUFFIX}"
    train = ("train", "table", tiny_gguf, "--prompts", prompts, "--tokens", 60, "-c", 128, "-t", 1)
    assert forerun(*train)[0] == 0
    before = own.read_bytes()
    given = ("tune", tiny_gguf, "--prompts", prompts, *LEARN, "--json")

    def tuned(**figures: float) -> dict:
        clock.update(figures)
        code, out, err = forerun(*given)
        assert code == 0, err
        assert [path.name for path in own.parent.iterdir() if ".new" in path.name] == []
        return the_json(out)

    document = tuned(table=0.5)
    assert (document["table"], document["kept"]) == (None, str(own))
    assert len(document["tau_in_full"]) == 3, "the own one was measured in the same run"
    assert document["own"]["speedup"] > 0
    assert own.read_bytes() == before
    document = tuned(table=2.0)
    assert (document["table"], document["kept"]) == (str(own), None)
    assert own.read_bytes() != before
    document = tuned(table=0.5, hi=0.99)
    assert (document["table"], document["kept"]) == (None, None)
    assert not own.exists(), "it was slower for sure"
    assert_private(table_file.tables_dir().parent)


def test_an_interrupted_table_changes_nothing(forerun, tiny_gguf, prompts, clock, monkeypatch):
    own = table_file.tables_dir() / f"{tiny_gguf.stem}{table_file.SUFFIX}"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"somebody's")

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "in_full", interrupted)
    clock["table"] = 2.0
    assert forerun("tune", tiny_gguf, "--prompts", prompts, *LEARN)[0] == 130
    assert own.read_bytes() == b"somebody's"


def test_a_network_that_was_begun_goes_on_only_if_asked(
    forerun, tiny_gguf, many, clock, monkeypatch
):
    given = ("tune", tiny_gguf, "--prompts", many, *LEARN, "--tokens", "2.8k")
    monkeypatch.setattr(NetworkRun, "is_begun", property(lambda run: True))
    trained = []
    monkeypatch.setattr(NetworkRun, "train", lambda *args: trained.append(args))
    code, _, err = forerun(*given)
    assert code == 0, err
    assert "a part of it done: --network trains it" in " ".join(err.split())
    assert not trained


def test_without_a_table_in_the_default_drafter_nothing_is_asked(
    forerun, tiny_gguf, prompts, monkeypatch
):
    monkeypatch.setattr(learn, "resolved", lambda llm, name: "lookahead")
    code, _, err = forerun("tune", tiny_gguf, "--prompts", prompts, *LEARN)
    assert (code, err.count("\n")) == (2, 1)
    assert "the default drafter of this model is lookahead" in err
    assert not table_file.tables_dir().exists()


def test_without_network_a_line_says_what_one_takes(forerun, tiny_gguf, many):
    given = ("tune", tiny_gguf, "--prompts", many, *LEARN, "--tokens", "2.8k", "--json")
    code, out, err = forerun(*given)
    assert code == 0, err
    said = " ".join(err.split())
    assert TAKES + "read" in said
    assert "minute to learn: --network trains it" in said
    assert the_json(out)["network"] is None


def test_a_network_that_cannot_be_made_is_a_line(forerun, tiny_gguf, prompts):
    code, _, err = forerun("tune", tiny_gguf, "--prompts", prompts, *LEARN, "--network")
    assert (code, err.count("\n")) == (2, 1)
    assert "2 prompts are too few" in err
    assert "give --prompts with 100 or more" in err


def test_what_d_looks_for_is_no_network(forerun, tiny_gguf):
    code, _, err = forerun("tune", tiny_gguf, "-d", "all", "--network")
    assert (code, err.count("\n")) == (2, 1)
    assert "-d decides --network itself: leave it out" in err


@pytest.mark.parametrize(
    ("taus", "in_full", "shown"),
    [
        ((4.4, 4.4), (3.5, 3.6), "–"),
        ((4.4, 4.9), (3.5, 3.5), "–"),
        ((4.4, 4.9), (3.5, 3.9), "1.39x"),
    ],
)
def test_no_gain_is_shown_where_as_many_tokens_a_pass_come(capsys, taus, in_full, shown) -> None:
    """Whatever the clock says, it is noise."""
    speed = {"speedup": 2.0, "speedup_lo": 1.5, "speedup_hi": 2.5}
    gain = {"over_baseline": 1.39, "over_baseline_lo": 1.28, "over_baseline_hi": 1.57}
    document = {
        "table": None,
        "kept": None,
        "answers": "a.jsonl",
        "tokens": 60,
        "before": speed | {"tau": taus[0]},
        "own": None,
        "network": None,
        "measured": speed | {"tau": taus[1], "prompts": 2},
        "tau_in_full": in_full,
    }
    outcome.show(document | gain)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "with the table" in line]
    assert shown in line
    assert ("1.39" in line) == (shown != "–")
