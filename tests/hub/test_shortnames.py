"""Short names: the table's lines, what a name stands for, and that nothing is fetched before somebody says so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from forerun.core.errors import LoadError
from forerun.drafters.mlp_speculator.files import SHIPPED
from forerun.hub import hugging_face, machine, names, shortnames
from forerun.hub.shortnames import ShortName, find, parsed, table
from tests.cli.helpers import one_line_of_mistake, the_json
from tests.hub.fake import running_hub
from tests.hub.test_hub import NOWHERE, redirect

TINY = ShortName(
    ("tiny", "tiny:1b"), "org/model-GGUF:Q4_K_M", "model-Q4_K_M.gguf", 0.1, "MIT", "https://x"
)


def test_each_line_is_a_file_that_its_name_means() -> None:
    assert len(table()) >= 40
    for row in table():
        assert hugging_face._choose(row.hub_name, [row.file]) == row.file
        assert row.gb > 0
        assert row.page.startswith("https://")
        assert row.ships is None or (SHIPPED / row.ships).is_dir()
        assert "/" in row.model
    every = shortnames.names()
    assert len(set(every)) == len(every)
    assert every == [name.lower() for name in every]


def test_a_wrong_line_is_named() -> None:
    row = {"names": ["a"], "model": "o/m:Q4_0", "file": "f", "gb": 1, "licence": "MIT", "page": "p"}
    assert parsed(row, 1).name == "a"
    with pytest.raises(LoadError, match=r"line 2 .* must have 'licence'"):
        parsed(row | {"licence": ""}, 2)
    with pytest.raises(LoadError, match=r"line 2 .*: 'm' is not a hub name"):
        parsed(row | {"model": "m"}, 2)


@pytest.mark.parametrize(
    "name", ["qwen3", "qwen3:latest", "qwen3:8b", "qwen3-8b", "Qwen3-8B", "QWEN3:8B"]
)
def test_ollama_and_lm_studio_write_one_name(name: str) -> None:
    found = find(name)
    assert found is not None
    assert found.model == "Qwen/Qwen3-8B-GGUF:Q4_K_M"


def test_what_drafts_is_what_ships_or_is_published_or_a_table() -> None:
    said = {row.name: row.drafter() for row in table()}
    assert said["qwen2.5-coder:1.5b"] == "mlp_speculator, ships"
    assert said["qwen3"] == "eagle3, published"
    assert said["phi4"] == "recycling"


def test_a_model_fits_with_a_gigabyte_to_spare() -> None:
    assert TINY.fits(1_100_000_000)
    assert not TINY.fits(1_099_999_999)
    assert TINY.fits(None) is None


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short name of a model of the hub, which is a server of ours; the client's empty cache."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shortnames, "_by_name", lambda: {"tiny": TINY, "tiny:1b": TINY})
    with running_hub() as address:
        redirect(monkeypatch, address, tmp_path / "hub")
        yield tmp_path / "hub"


def test_it_is_fetched_by_pull_alone(forerun, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names.check_name("tiny")
    with pytest.raises(LoadError, match="tiny is not here: it is org/model-GGUF:Q4_K_M"):
        names.resolve("tiny")
    assert not tiny.exists()
    code, out, err = forerun("pull", "tiny")
    assert code == 0, err
    assert Path(out.strip()).read_bytes() == b"q4"
    redirect(monkeypatch, NOWHERE, tiny)
    assert names.resolve("tiny:1b").read_bytes() == b"q4"


@pytest.mark.parametrize("command", ["chat -m", "generate hi -m", "serve", "verify -m"])
def test_a_script_is_told_how_to_fetch_it(command: str, shell, tiny: Path) -> None:
    said = one_line_of_mistake(shell, f"forerun {command} tiny")
    assert said.endswith("of the Hugging Face Hub; forerun pull tiny fetches it\n")
    assert "licence MIT" in said
    assert not tiny.exists()


@pytest.mark.parametrize("answer", [True, False])
def test_a_terminal_is_asked(
    answer: bool, forerun, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(click, "confirm", lambda text, err: asked.append(text) or answer)
    code, _, err = forerun("generate", "hi", "-m", "tiny")
    assert asked == ["tiny is org/model-GGUF:Q4_K_M, 0.1 GB, licence MIT: fetch it?"]
    assert code == 2  # "q4" is no GGUF
    assert ("forerun pull tiny" in err) is not answer
    assert tiny.exists() is answer


def test_offline_it_says_so(forerun, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    redirect(monkeypatch, NOWHERE, tiny)
    code, _, err = forerun("pull", "tiny")
    assert code == 2
    assert "no network: the Hugging Face Hub cannot be asked for 'org/model-GGUF'" in err


def test_models_lists_what_can_be_fetched(
    forerun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    monkeypatch.setattr("forerun.system.device.available_nbytes", lambda: 8_000_000_000)
    found = {row["names"][0]: row for row in the_json(forerun("models", "--json")[1])["names"]}
    assert found["llama3.2"]["fits"]
    assert not found["gpt-oss"]["fits"]
    assert found["llama3.2"]["drafter"] == "draft_model, published"
    monkeypatch.setenv("COLUMNS", "60")
    lines = forerun("models")[1].splitlines()
    assert max(map(len, lines)) <= 60
    (line,) = [line for line in lines if line.startswith("gpt-oss ")]
    assert line.split() == ["gpt-oss", "12.1", "no", "Apache-2.0", "eagle3,", "published"]


def test_models_says_what_speed_to_expect_once_this_machine_was_measured(
    forerun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    monkeypatch.setattr("forerun.system.device.available_nbytes", lambda: 8_000_000_000)

    def row() -> dict:
        names = the_json(forerun("models", "--json")[1])["names"]
        return next(each for each in names if each["names"][0] == "llama3.2")

    machine.keep(machine.Measured("tiny", 100.0), 1e6)
    assert row()["expected_tok_s"] is None
    assert "forerun bench kernels measures this machine" in forerun("models")[1]
    machine.keep(machine.Measured("m", 20.2), 1e9)
    assert row()["expected_tok_s"] == 10.0
    monkeypatch.setenv("COLUMNS", "60")
    out = forerun("models")[1]
    assert max(map(len, out.splitlines())) <= 60
    assert "at the 20.2 GB/s that bench kernels measured of m" in " ".join(out.split())
    machine.path().write_text('{"model": "m"}')
    assert machine.read() is None
