"""`forerun models` and `forerun rm`: what is listed, what goes, and what never does."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from forerun.hub import hugging_face
from forerun.hub import names as hub
from tests.cli.helpers import the_json

DEFAULT = hub.DEFAULT_MODEL
Models = tuple[Path, Path, Path]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache, and a Hugging Face cache that is not this machine's."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.scan_cache_dir", no_cache)
    return tmp_path / "cache"


def no_cache() -> None:
    from huggingface_hub.errors import CacheNotFound

    raise CacheNotFound("none", "nowhere")


@pytest.fixture
def models(cache, tmp_path) -> Models:
    """Two models in the cache and one elsewhere, which is not listed."""
    (cache / "models").mkdir(parents=True)
    found = (
        cache / "models" / f"{DEFAULT}.gguf",
        cache / "models" / "mine.gguf",
        tmp_path / "far.gguf",
    )
    for model, nbytes in zip(found, (3000, 2000, 1000), strict=True):
        model.write_bytes(bytes(nbytes))
    return found


def test_models_are_listed_with_what_they_take(forerun, models):
    code, out, _ = forerun("models", "--json")
    document = the_json(out)
    found = {row["name"]: row for row in document["models"]}
    assert code == 0
    assert found[DEFAULT]["licence"] == "Apache-2.0"
    assert {name: row["here"] for name, row in found.items()} == {DEFAULT: "yes", "mine": "yes"}
    assert found["mine"]["nbytes"] == 2000


def test_the_list_for_people_fits_60_columns_and_has_totals(forerun, models, cache, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    (cache / "models" / f"{'a-long-name' * 5}.gguf").write_bytes(bytes(10))
    code, out, _ = forerun("models")
    table = out.partition("forerun rm")[0].splitlines()
    assert code == 0
    assert max(map(len, table)) <= 60
    assert table[0].split() == ["model", "here", "size", "licence"]
    assert table[-1].split() == ["all", "here", "5.01", "kB"]


def test_a_model_that_is_not_here_says_how_to_get_it(forerun):
    _, out, _ = forerun("models")
    assert f"forerun pull {DEFAULT}" in out


def test_models_of_the_hugging_face_cache_are_listed_and_stay(forerun, tmp_path, monkeypatch):
    repo = tmp_path / "hub" / "models--org--repo"
    file = repo / "snapshots" / "abc" / "model-Q4.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(700))
    monkeypatch.setattr(
        hugging_face, "models", lambda: [hugging_face.HubModel("org/repo", 700, repo)]
    )
    row = the_json(forerun("models", "--json")[1])["models"][-1]
    assert (row["name"], row["here"], row["nbytes"]) == ("org/repo", "hub", 700)
    code, _, err = forerun("rm", "--yes", "org/repo")
    assert code == 2
    assert "hf cache rm" in err
    assert file.exists()


def test_rm_deletes_a_model_and_nothing_else(forerun, models):
    code, _, err = forerun("rm", DEFAULT, "--yes")
    assert code == 0
    assert f"deleted {DEFAULT} (3 kB)" in err
    assert [model.exists() for model in models] == [False, True, True]


@pytest.mark.parametrize("answer", [True, False])
def test_rm_asks_in_a_terminal(answer, forerun, models, monkeypatch):
    asked = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(click, "confirm", lambda text, err: asked.append(text) or answer)
    assert forerun("rm", "mine")[0] == 0
    assert asked == ["delete mine (2 kB)?"]
    assert models[1].exists() is not answer


REFUSED = [
    ("smolm2-135m-instruct", f"did you mean '{DEFAULT}'?"),
    ("../models/mine", "is a path: only models in"),
    ("{far}", "is a path: only models in"),
    ("~", "is a path: only models in"),
    ("org/repo", "hf cache rm"),
    ("*", "unknown model '*'"),
]


@pytest.mark.parametrize(("name", "message"), REFUSED)
def test_what_is_no_model_of_ours_is_refused_and_nothing_goes(name, message, forerun, models):
    code, _, err = forerun("rm", "--yes", "mine", name.format(far=models[2]))
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert all(model.exists() for model in models)


def test_rm_without_a_terminal_or_a_name_says_what_to_do(forerun, models):
    assert "give --yes" in forerun("rm", "mine")[2]
    assert "name" in forerun("rm")[2].lower()
    assert models[1].exists()


def test_a_link_in_the_cache_goes_and_what_it_points_to_stays(forerun, cache, models):
    link = cache / "models" / "linked.gguf"
    link.symlink_to(models[2])
    assert forerun("rm", "--yes", "linked")[0] == 0
    assert not link.is_symlink()
    assert models[2].exists()


def test_a_cache_that_cannot_be_written_is_one_line(forerun, models, cache, monkeypatch):
    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    code, _, err = forerun("rm", "mine", "--yes")
    assert code == 2
    assert err.startswith("error: mine cannot be deleted")
