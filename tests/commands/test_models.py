"""`forerun models` and `forerun rm`: what is listed, what goes, and what never does."""

from __future__ import annotations

import json
import re
import sys
import zlib
from pathlib import Path

import click
import pytest

from forerun.core.opened import OpenedFile
from forerun.drafting import learned as learned_files
from forerun.hub import hugging_face
from forerun.hub import names as hub
from forerun.model.packed import file as packed_file
from forerun.model.packed import folder as packed
from forerun.model.packed import layout
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


def pack(model: Path, nbytes: int, quant: str = "none") -> Path:
    """A packed copy of a model, of that many bytes of nothing."""
    file = packed_file.PackedFile.of(model, [OpenedFile.now(model)], quant=quant, head_bits=None)
    header = json.dumps({"key": file.key}).encode() + b"\n"
    start = layout._MAGIC + b"%d " % zlib.crc32(header) + header
    file.path.parent.mkdir(parents=True, exist_ok=True)
    file.path.write_bytes(start + bytes(nbytes - len(start)))
    return file.path


@pytest.fixture
def models(cache, tmp_path) -> Models:
    """Two models in the cache and one elsewhere, each with packed copies."""
    (cache / "models").mkdir(parents=True)
    found = (
        cache / "models" / f"{DEFAULT}.gguf",
        cache / "models" / "mine.gguf",
        tmp_path / "far.gguf",
    )
    for model, nbytes in zip(found, (3000, 2000, 1000), strict=True):
        model.write_bytes(bytes(nbytes))
        pack(model, 5000)
    pack(found[0], 6000, "int4")
    return found


def test_models_are_listed_with_what_they_take(forerun, models):
    code, out, _ = forerun("models", "--json")
    document = the_json(out)
    found = {row["name"]: row for row in document["models"]}
    assert code == 0
    assert found[DEFAULT]["packed_nbytes"] == 11000
    assert found[DEFAULT]["licence"] == "Apache-2.0"
    assert [found[name]["here"] for name in (DEFAULT, "mine", "far")] == ["yes", "yes", "path"]
    assert found["mine"]["nbytes"] == 2000
    assert document["packed"]["nbytes"] == 21000
    assert document["packed"]["files"] == 4
    assert document["packed"]["limit_nbytes"] == 5_000_000_000


def test_the_list_for_people_fits_60_columns_and_has_totals(forerun, models, cache, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    (cache / "models" / f"{'a-long-name' * 5}.gguf").write_bytes(bytes(10))
    code, out, _ = forerun("models")
    table = out.partition("\n\n")[0].splitlines()
    assert code == 0
    assert max(map(len, table)) <= 60
    assert table[0].split() == ["model", "here", "size", "packed", "licence"]
    assert table[-1].split() == ["all", "here", "5.01", "kB", "21", "kB"]
    assert "packed copies: 21 kB of at most 5 GB" in out


def test_a_model_that_is_not_here_says_how_to_get_it(forerun):
    _, out, _ = forerun("models")
    assert f"forerun pull {DEFAULT}" in out


def test_models_of_the_hugging_face_cache_are_listed_with_their_copies(
    forerun, tmp_path, monkeypatch
):
    repo = tmp_path / "hub" / "models--org--repo"
    file = repo / "snapshots" / "abc" / "model-Q4.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(700))
    pack(file, 4000)
    monkeypatch.setattr(
        hugging_face, "models", lambda: [hugging_face.HubModel("org/repo", 700, repo)]
    )
    row = the_json(forerun("models", "--json")[1])["models"][-1]
    assert (row["name"], row["here"], row["packed_nbytes"]) == ("org/repo", "hub", 4000)
    assert forerun("rm", "--packed", "org/repo")[0] == 0
    assert packed.copies() == []
    code, _, err = forerun("rm", "--yes", "org/repo")
    assert code == 2
    assert "hf cache rm" in err
    assert file.exists()


def test_rm_deletes_a_model_and_its_copies_and_nothing_else(forerun, models):
    code, _, err = forerun("rm", DEFAULT, "--yes")
    assert code == 0
    assert f"deleted {DEFAULT} (3 kB) and its packed copies (11 kB)" in err
    assert [model.exists() for model in models] == [False, True, True]
    assert sorted(path for _, path in packed.copies()) == sorted(models[1:])


@pytest.mark.parametrize("answer", [True, False])
def test_rm_asks_in_a_terminal(answer, forerun, models, monkeypatch):
    asked = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(click, "confirm", lambda text, err: asked.append(text) or answer)
    assert forerun("rm", "mine")[0] == 0
    assert asked == ["delete mine (2 kB) and its packed copies (5 kB)?"]
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
    assert len(packed.copies()) == 4


def test_rm_without_a_terminal_or_a_name_says_what_to_do(forerun, models):
    assert "say --yes" in forerun("rm", "mine")[2]
    assert "say --packed" in forerun("rm")[2]
    assert models[1].exists()


def test_a_link_in_the_cache_goes_and_what_it_points_to_stays(forerun, cache, models):
    link = cache / "models" / "linked.gguf"
    link.symlink_to(models[2])
    assert forerun("rm", "--yes", "linked")[0] == 0
    assert not link.is_symlink()
    assert models[2].exists()


@pytest.mark.parametrize("name", ["far", "{far}"])
def test_packed_copies_go_for_one_model(name, forerun, models):
    code, _, err = forerun("rm", "--packed", name.format(far=models[2]))
    assert code == 0
    assert "deleted 5 kB of packed copies of" in err
    assert models[2] not in [path for _, path in packed.copies()]
    assert models[2].exists()
    assert len(packed.copies()) == 3


@pytest.mark.parametrize("command", [("rm", "--packed"), ("models", "--clear-cache")])
def test_packed_copies_of_all_models_go(command, forerun, models):
    code, _, err = forerun(*command)
    assert code == 0
    assert "deleted 21 kB of packed copies; models stay" in err
    assert packed.copies() == []
    assert all(model.exists() for model in models)


def test_packed_copies_of_an_unknown_model_are_an_error(forerun, models):
    code, _, err = forerun("rm", "--packed", "min")
    assert code == 2
    assert "did you mean 'mine'?" in err
    assert len(packed.copies()) == 4


def test_a_cache_that_cannot_be_read_or_written_is_one_line(forerun, models, cache, monkeypatch):
    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(packed.PackedFolder, "remove", refuse)
    code, _, err = forerun("rm", "--packed")
    assert code == 2
    assert err.startswith("error: packed weights cannot be deleted: [Errno 13] Permission denied")
    monkeypatch.setattr(Path, "unlink", refuse)
    code, _, err = forerun("rm", "mine", "--yes")
    assert code == 2
    assert err.startswith("error: mine cannot be deleted")


@pytest.fixture
def learned(models, monkeypatch) -> list[Path]:
    """What was learned of two models, and of one that is gone."""
    paths = []
    for model in (models[0], models[2], Path("gone.gguf")):
        path = learned_files.path_of(model)
        path.parent.mkdir(parents=True, exist_ok=True)
        head = json.dumps({"model": str(model.resolve()), "vocabulary": "", "checksum": 0})
        path.write_bytes(learned_files._MAGIC + head.encode() + b"\n" + bytes(64))
        paths.append(path)
    return paths


def test_what_was_learned_is_listed(forerun, models, learned):
    found = {row["name"]: row for row in the_json(forerun("models", "--json")[1])["models"]}
    assert found[DEFAULT]["learned_nbytes"] == learned[0].stat().st_size
    assert found["far"]["learned_nbytes"] == learned[1].stat().st_size
    assert found["gone"]["here"] == "gone"
    assert found["mine"]["learned_nbytes"] == 0
    _, out, _ = forerun("models")
    assert out.count("forerun rm --learned deletes it") == 3
    assert "mine:" not in out


@pytest.mark.parametrize(
    ("names", "stay"), [((), []), ((DEFAULT,), [1, 2]), (("far", "gone"), [0])]
)
def test_what_was_learned_goes_and_all_else_stays(forerun, models, learned, names, stay):
    code, _, err = forerun("rm", "--learned", *names)
    assert code == 0
    assert "of what was learned" in err
    assert [i for i, path in enumerate(learned) if path.exists()] == stay
    assert all(model.exists() for model in models)
    assert len(packed.copies()) == 4


def test_what_was_learned_goes_with_its_model(forerun, models, learned):
    assert forerun("rm", DEFAULT, "--yes")[0] == 0
    assert [path.exists() for path in learned] == [False, True, True]


def test_mistakes_with_what_was_learned_are_one_line(forerun, models, learned):
    code, _, err = forerun("rm", "--learned", "min")
    assert (code, err.count("\n")) == (2, 1)
    assert "did you mean 'mine'?" in err
    code, _, err = forerun("rm", "--learned", "--packed")
    assert (code, err.count("\n")) == (2, 1)
    assert all(path.exists() for path in learned)


def test_what_is_listed_can_be_named(shell, tiny_gguf, tmp_path):
    pack(tiny_gguf, 1500)
    name, line = tiny_gguf.stem, "-d none -n 2 -c 64 --raw --no-weight-cache"
    assert name in shell("forerun models")[1]
    by_path = shell(f"forerun generate hi -m {tiny_gguf} {line}")
    assert by_path[0] == 0
    assert shell(f"forerun generate hi -m {name} {line}")[:2] == by_path[:2]
    assert shell(f"forerun plan {name}")[0] == shell(f"forerun check {name}")[0] == 0
    code, _, told = shell(f"forerun rm {name} --yes")
    assert code == 0
    assert re.search(rf"made of {tiny_gguf} \(.* kB\); the model stays$", told.strip())
    assert tiny_gguf.exists()
    assert packed.copies() == []


def test_a_name_of_two_models_is_refused_with_their_paths(shell, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "twin.gguf").write_bytes(bytes(1000))
        pack(tmp_path / folder / "twin.gguf", 1500)
    code, _, told = shell("forerun generate hi -m twin")
    assert code == 2
    assert f"name {tmp_path}/a/twin.gguf or {tmp_path}/b/twin.gguf" in told
