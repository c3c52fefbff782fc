"""Published drafters: the table's lines, and what `auto`, `check` and `pull` make of one that is on this disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forerun import LLM, SamplingParams
from forerun.core import options
from forerun.core.errors import LoadError
from forerun.drafters.base.find import find
from forerun.hub import hugging_face, published
from forerun.hub.hugging_face import HubName
from forerun.hub.published import Published, for_model, parsed, table
from forerun.weights.identity import Identity
from tests.cli.helpers import the_json

ROW = {"target": "org/model", "drafter": "org/head", "kind": "eagle3"}


def test_each_line_names_two_repositories_and_a_kind_that_is_read() -> None:
    assert len(table()) > 50
    assert len(set(table())) == len(table())
    for row in table():
        for name in (row.target, row.drafter):
            parts = HubName.parse(name)
            assert parts is not None, name
            assert parts.repo.count("/") == 1
        assert row.licence is None or row.licence
        assert row.mb is None or row.mb > 0
        names = {each.name for each in options.describe(find(row.kind).Options)}
        assert "model" in names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "hydra"}, "line 3 .*: kind 'hydra' is unknown .allowed: eagle3"),
        ({"drafter": ""}, "line 3 .* must have 'drafter'"),
    ],
)
def test_a_wrong_line_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        parsed(ROW | change, 3)


def test_heads_come_before_models_and_a_name_before_a_base() -> None:
    found = for_model(Identity(("qwen3-8b",)))
    assert found[0].kind == "eagle3"
    assert found[-1].kind == "draft_model"
    of_base = for_model(Identity(("my-model",), ("qwen3-8b",)))
    assert of_base == found
    assert for_model(Identity(("gpt-oss-20b",), ("qwen3-8b",)))[0].target == "openai/gpt-oss-20b"
    assert for_model(Identity(("unheard-of",))) == []


@pytest.fixture
def sibling(default_model: Path, monkeypatch: pytest.MonkeyPatch) -> Published:
    """The default model itself, as a draft that is published for it and lies in the hub's cache."""
    row = Published("org/SmolLM2-135M-Instruct", "org/draft:Q4_1", "draft_model", "Apache-2.0", 98)
    monkeypatch.setattr(published, "table", lambda: (row,))
    monkeypatch.setattr(hugging_face, "has_repo", lambda name: name.repo == "org/draft")
    cached = hugging_face.cached
    monkeypatch.setattr(
        hugging_face,
        "cached",
        lambda name: default_model if name.repo == "org/draft" else cached(name),
    )
    monkeypatch.setattr("forerun.drafters.mlp_speculator.files.fitting", lambda target: [])
    return row


@pytest.mark.usefixtures("sibling")
def test_auto_passes_over_a_model_whose_steps_are_dear(default_model: Path) -> None:
    """Here the target itself: a step reads nearly all of a pass."""
    assert LLM(default_model, max_model_len=256).drafter_spec.name == "recycling"


@pytest.mark.usefixtures("sibling")
def test_auto_takes_one_that_is_here(default_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.drafters.base.spec.MOST_COST", 2.0)
    llm = LLM(default_model, max_model_len=256)
    assert llm.drafter_spec.text().startswith("draft_model:model=org/draft:Q4_1")
    params = SamplingParams(temperature=0, max_tokens=24)
    drafted = llm.generate("The three primary colours are", params)[0].outputs[0]
    plain = llm.with_drafter("none").generate("The three primary colours are", params)[0].outputs[0]
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.accepted > 0


def test_auto_passes_over_one_of_another_vocabulary(
    sibling: Published, default_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.drafters.base.spec.MOST_COST", 2.0)
    monkeypatch.setattr(
        "forerun.drafters.draft_model.vocabulary_difference", lambda *two: "token 3 differs"
    )
    assert LLM(default_model, max_model_len=256).drafter_spec.name == "recycling"


def test_check_names_it_and_pull_fetches_it(
    forerun, sibling: Published, default_model: Path
) -> None:
    document = the_json(forerun("check", default_model, "--json")[1])
    (found,) = document["drafting"]["published"]
    assert found["name"] == sibling.drafter
    assert found["here"]
    code, out, err = forerun("pull", default_model, "--drafter", "--json")
    assert code == 0, err
    assert the_json(out)["kind"] == "draft_model"
    code, _, err = forerun("pull", "org/unheard-of", "--drafter")
    assert code == 2
    assert "no published drafter is known for unheard-of" in err


def test_the_clients_cache_is_where_the_client_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = HubName("org/model")
    for variable, folder in (
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HF_HOME", "hub"),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HUB_CACHE", ""),
    ):
        monkeypatch.setenv(variable, str(tmp_path / variable))
        assert not hugging_face.has_repo(name)
        (tmp_path / variable / folder / "models--org--model").mkdir(parents=True)
        assert hugging_face.has_repo(name)
        code = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
        theirs = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert Path(theirs.stdout.strip()) == tmp_path / variable / folder
