"""A receipt of sameness: what one machine answers, held against another instruction set and another model."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from forerun.model.kernels import native
from tests.cli.helpers import the_json

pytestmark = pytest.mark.skipif(native.reason() is not None, reason="no native kernels")
ISAS = [] if native.reason() else importlib.import_module("forerun._native").runnable_isas()
RECEIPT = Path(__file__).parents[3] / "benchmarks" / "receipt"
ASKED = ("-n", 6, "-c", 128, "-d", "lookahead", "-t", 1)


@pytest.fixture
def asked(tiny_gguf: Path, tmp_path: Path) -> tuple[object, ...]:
    (tmp_path / "prompts.txt").write_text("one two one two\n\na b c a b\n")
    return ("verify", "-m", tiny_gguf, "--prompts", tmp_path / "prompts.txt", *ASKED)


def test_another_instruction_set_gives_the_receipt(
    forerun, asked, tmp_path: Path, monkeypatch
) -> None:
    path = tmp_path / "receipt.json"
    assert forerun(*asked, "--receipt", path)[0] == 0
    document = json.loads(path.read_text())
    assert [len(each["states"]) for each in document["prompts"]] == [3] * len(document["prompts"])
    monkeypatch.setenv("FORERUN_ISA", "portable")
    code, _, said = forerun(*asked, "--against", path)
    count = len(document["prompts"])
    assert (code, f"{count} of {count} identical to the receipt (made on cpu, " in said) == (
        0,
        True,
    )


@pytest.mark.parametrize("isa", ISAS)
def test_the_receipt_of_another_machine_is_held(
    forerun, default_model: Path, monkeypatch, isa: str
) -> None:
    """Made with AVX-512, and kept here; drafted, with drafts taken and rejected."""
    monkeypatch.setenv("FORERUN_ISA", isa)
    asked = (
        "--prompts",
        RECEIPT / "prompts.txt",
        "-n",
        20,
        "-t",
        2,
    )  # of one thread the loaded one is taken
    code, out, _ = forerun("verify", *asked, "--against", RECEIPT / "smollm2.json", "--json")
    document = the_json(out)
    assert (code, document["against"]) == (0, [])
    assert min(document[each] for each in ("drafted", "accepted", "rejected")) > 0


def test_what_differs_is_named_by_prompt_position_and_layer(forerun, asked, tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    forerun(*asked, "--receipt", path)
    document = json.loads(path.read_text())
    last = document["prompts"][-1]
    last["tokens"][2] += 1
    last["states"][1] = "0" * 16
    path.write_text(json.dumps(document))
    code, _, said = forerun(*asked, "--against", path)
    assert code == 1
    assert f"prompt {last['id']}: token 2 differs, its prompt's state first behind layer 1" in said
    code, out, _ = forerun(*asked, "--against", path, "--json")
    found = json.loads(out.splitlines()[-1])["against"]
    assert found == [{"prompt": last["id"], "position": 2, "layer": "behind layer 1"}]


def test_what_is_not_comparable_is_an_error(forerun, asked, tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    forerun(*asked, "--receipt", path)
    for more, reason in (
        (("--kv", "int8"), "kv must be the receipt's"),
        (("--seed", 5), "parameters must be the receipt's"),
    ):
        code, _, said = forerun(*asked, *more, "--against", path)
        assert (code, reason in said) == (2, True), said
    path.write_text("{}")
    assert "is not a receipt" in forerun(*asked, "--against", path)[2]
