"""Whatever the files of a model folder hold, it loads or ends in a ForerunError that says what is wrong."""

from __future__ import annotations

import copy
import json
import random
import resource
import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forerun import LLM, SamplingParams
from forerun.core.errors import ForerunError
from tests.model.tiny import hf_model
from tests.weights.test_hf import byte_level_encoder

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
FILES = {
    "tokenizer_config.json": {
        "bos_token": None,
        "eos_token": "<|endoftext|>",
        "add_bos_token": False,
        "chat_template": TEMPLATE,
    },
    "special_tokens_map.json": {"eos_token": {"content": "<|endoftext|>", "lstrip": False}},
    "chat_template.json": {"chat_template": TEMPLATE},
}
ODD: tuple[Any, ...] = (
    None, True, 0, 5, -1, 10**30, 2**27, 1.5, float("nan"), float("inf"), "", "x", "\ud800",
    [], [1], ["x"], [[]], [{"name": 1}], {}, {"x": 1}, {"content": 5}, "9" * 5000,
)  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that loads, with every file that is read."""
    folder = tmp_path_factory.mktemp("models") / "sound"
    hf_model("llama", head_dim=16, vocab_size=268, eos_token_id=264).save_pretrained(folder)
    byte_level_encoder().save(str(folder / "tokenizer.json"))
    for name, content in FILES.items():
        (folder / name).write_text(json.dumps(content))
    assert answer(folder) is None
    return folder


def answer(folder: Path) -> str | None:
    """Chat with a model, and return what it is refused for. Any other error is raised."""
    params = SamplingParams(max_tokens=3, min_tokens=1)
    try:
        llm = LLM(str(folder), drafter="none", threads=1)
        llm.generate("hello", params)
        llm.chat([{"role": "user", "content": "hello"}], params)
    except ForerunError as error:
        return str(error)
    return None


def edited(folder: Path, name: str, change: dict[str, Any]) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("special_tokens_map.json", {"eos_token": 5}, "'eos_token'"),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "'added_tokens_decoder'"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}, "'added_tokens_decoder'"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": {}}}, "'added_tokens_decoder'"),
        ("tokenizer_config.json", {"extra_special_tokens": 5}, "'extra_special_tokens'"),
        ("tokenizer_config.json", {"bos_token": {"content": [1]}}, "'bos_token'"),
        ("tokenizer_config.json", {"chat_template": [1]}, "'chat_template'"),
        ("tokenizer_config.json", {"chat_template": [{"name": "default"}]}, "'chat_template'"),
        ("tokenizer_config.json", {"chat_template": 7}, "'chat_template'"),
        ("config.json", {"eos_token_id": "x"}, "'eos_token_id'"),
        ("config.json", {"eos_token_id": 1.5}, "'eos_token_id'"),
        ("generation_config.json", {"eos_token_id": [[1]]}, "'eos_token_id'"),
        ("generation_config.json", {"do_sample": True, "top_k": "x"}, "top_k"),
    ],
)
def test_a_field_of_another_type_is_named(
    sound: Path, tmp_path: Path, name: str, change: dict[str, Any], complaint: str
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(sound, folder)
    if name == "tokenizer_config.json":
        (folder / "chat_template.jinja").unlink(missing_ok=True)
    edited(folder, name, change)
    refused = answer(folder)
    assert refused is not None
    assert complaint in refused
    assert name in refused


def test_ids_that_are_no_tokens_end_nothing(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(sound, folder)
    edited(folder, "config.json", {"eos_token_id": [10**30, -1, 264]})
    assert LLM(str(folder)).tokenizer.eos_ids == {263, 264}


def test_what_is_nested_too_deep_is_refused(sound: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        folder = tmp_path / name
        shutil.copytree(sound, folder)
        text = (folder / name).read_text().rstrip()
        (folder / name).write_text(f'{text[:-1]}, "x": {nested(5000)}}}')
        refused = answer(folder)
        assert refused is not None
        assert name in refused


def test_a_token_far_beyond_the_others_is_refused_before_it_takes_memory(
    sound: Path, tmp_path: Path
) -> None:
    for entry in ("vocab", "added_tokens"):
        folder = tmp_path / entry
        shutil.copytree(sound, folder)
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        if entry == "vocab":
            vocabulary = tokenizer["model"]["vocab"]
            vocabulary[next(iter(vocabulary))] = 2**27
        else:
            tokenizer["added_tokens"][0]["id"] = 2**27
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refused = answer(folder)
        assert refused is not None
        assert str(2**27) in refused
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def places(value: object, path: tuple[Any, ...] = (), depth: int = 5) -> Iterator[tuple[Any, ...]]:
    """The places in a JSON document: of a long list or object the first few."""
    yield path
    if depth == 0:
        return
    if isinstance(value, dict):
        for key in list(value)[:40]:
            yield from places(value[key], (*path, key), depth - 1)
    elif isinstance(value, list):
        for i in range(min(len(value), 2)):
            yield from places(value[i], (*path, i), depth - 1)


def put(document: Any, path: tuple[Any, ...], value: object) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def damaged_json(text: str, source: random.Random) -> Iterator[str]:
    """A document with each place odd in seven ways, and texts that are cut or are none."""
    document = json.loads(text)
    for path in places(document):
        for value in source.sample(ODD, 7):
            yield json.dumps(put(document, path, value))
    for _ in range(5):
        yield text[: source.randrange(len(text))]
    yield from ("", "null", "[]", "{}", "\x00", "\ufeff" + text, nested(5000), text + text)


def damaged_bytes(data: bytes, source: random.Random) -> Iterator[bytes]:
    """The beginning of a binary file, where its header is, with bytes changed, left out and put in; the file cut."""
    for _ in range(300):
        at = source.randrange(min(len(data), 2000))
        kind = source.randrange(3)
        piece = source.randbytes(source.randrange(1, 9))
        yield data[:at] + (piece if kind else b"") + data[at + (len(piece) if kind < 2 else 0) :]
    for _ in range(10):
        yield data[: source.randrange(len(data))]


@pytest.mark.slow
def test_no_damage_ends_in_an_error_without_a_type(sound: Path, tmp_path: Path) -> None:
    source = random.Random(7)
    folder = tmp_path / "m"
    shutil.copytree(sound, folder)
    num_tried = num_refused = 0
    untyped = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        if path.suffix == ".json":
            files = [
                text.encode("utf-8", "surrogatepass")
                for text in damaged_json(data.decode(), source)
            ]
        else:
            files = list(damaged_bytes(data, source))
        for i, damaged in enumerate(files):
            path.write_bytes(damaged)
            num_tried += 1
            try:
                refused = answer(folder)
            except Exception as error:
                frame = traceback.extract_tb(error.__traceback__)[-1]
                untyped.append(f"{path.name} {i}: {error!r} at {frame.filename}:{frame.lineno}")
                continue
            num_refused += refused is not None
            assert refused is None or "\n" not in refused
        path.write_bytes(data)
    assert not untyped
    assert num_tried > 1000
    assert num_refused > num_tried / 4
