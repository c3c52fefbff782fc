"""What all tests share: the hypothesis profiles, and the default model where it can be had."""

from __future__ import annotations

import copy
import gc
import importlib
import os
import shlex
import signal
import ssl
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from forerun.cli.main import main
from forerun.core.errors import LoadError
from forerun.hub import names
from forerun.system import processes
from forerun.text import generation
from forerun.weights import gguf

# No deadline: the machines that run this are shared. In CI every run tries the same examples, `make slow` the most.
settings.register_profile("local", deadline=None, max_examples=50)
settings.register_profile("many", deadline=None, max_examples=500)
settings.register_profile("ci", deadline=None, derandomize=True)
# Under an emulator (`dev/arm`) the clock says nothing.
settings.register_profile("emulated", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(
    "emulated" if "EMULATED" in os.environ else "ci" if os.environ.get("CI") else "local"
)

# Of a shell's background job the interrupt is ignored, and so it would be in the programs that tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The terminal in which the tests run is none of theirs; readline tells its size to the processes that are started.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)


class WithoutTorch:
    """A finder of modules that finds everything else."""

    def __init__(self, finder: Any) -> None:
        self.finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)

    def find_spec(self, name: str, *where: Any) -> ModuleSpec | None:
        return None if name.partition(".")[0] == "torch" else self.finder.find_spec(name, *where)


class WithoutLab:
    """Finds nothing of the laboratory but the torch decoder, which is an oracle of the engine's tests."""

    def find_spec(self, name: str, *where: object) -> None:
        if name.startswith("forerun.lab.") and not name.startswith("forerun.lab.torch"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without-lab", action="store_true", help="as if forerun.lab were deleted")
    parser.addoption("--without-torch", action="store_true", help="as if torch were not installed")
    fails = "a package that a test needs and does not find is a failure, as in CI"
    parser.addoption("--all-extras", action="store_true", help=fails)
    part = "the K-th of N parts of the tests that are selected, K/N"
    parser.addoption("--part", default="1/1", metavar="K/N", help=part)
    flushes = "as in a process whose denormal numbers are 0"
    parser.addoption("--flush-denormals", action="store_true", help=flushes)


def pytest_configure(config: pytest.Config) -> None:
    """Hide the laboratory or torch, so that what passes needs none of it: importing what is hidden fails.

    Tests whose oracle is torch say so with `pytest.importorskip("torch")`, and are skipped. Unless asked to hide it,
    `--all-extras` lets nothing that is not installed skip a test.
    """
    if config.getoption("--all-extras"):
        skips = pytest.importorskip
        is_hidden = lambda name: "torch" in name and config.getoption("--without-torch")  # noqa: E731
        pytest.importorskip = lambda name, *args, **more: (
            skips(name, *args, **more) if is_hidden(name) else importlib.import_module(name)
        )
    if config.getoption("--without-lab"):
        sys.meta_path.insert(0, WithoutLab())
    if config.getoption("--without-torch"):
        assert "torch" not in sys.modules
        at = sys.meta_path.index(PathFinder)
        sys.meta_path[at] = WithoutTorch(PathFinder)
    if config.getoption("--flush-denormals"):
        import torch

        torch.set_flush_denormal(True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one part of the tests that are selected."""
    number, num_parts = map(int, config.getoption("--part").split("/"))
    start, stop = ((each * len(items)) // num_parts for each in (number - 1, number))
    config.hook.pytest_deselected(items=items[:start] + items[stop:])
    items[:] = items[start:stop]


def pytest_collection_finish() -> None:
    """What is there now stays: a model that is loaded need not look through it for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """What a module leaves stays too: quantizing collects garbage after each matrix, five times slower without this."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def frozen() -> Iterator[None]:
    """What is frozen stays so while servers come and go: each would look through all that tests have imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


def pytest_sessionfinish() -> None:
    """What is left goes, as without tests."""
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def greedy_by_default() -> Iterator[None]:
    """Tests compare words: where they ask for nothing, SmolLM2 answers greedily, not as its authors advise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "ADVISED", {})
        yield


@pytest.fixture(scope="session", autouse=True)
def one_core() -> Iterator[None]:
    """Who names no number of threads gets one: for tiny models a second one only waits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "usable_cpus", lambda: {0})
        yield


@pytest.fixture(scope="session", autouse=True)
def certificates_are_read_once() -> Iterator[None]:
    """Each call of httpx makes a client, whose certificates take 20 ms to read: more than most answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Torch has one number for all, that other tests may have changed."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own for all that forerun keeps, with the models that are there."""
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "models").symlink_to(names.cache_dir())
    monkeypatch.setenv("FORERUN_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def default_model() -> Iterator[Path]:
    """The default model's file, fetched once; without it the test is skipped, in CI it fails."""
    try:
        path = names.pull(names.DEFAULT_MODEL)
    except LoadError as error:
        reason = f"the default model cannot be had: {error}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        _read_once(patch, path)
        _load_once(patch, path)
        yield path


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a random model of two layers, without a chat template, that the native kernels can run."""
    pytest.importorskip("torch")  # Hugging Face's, which makes the model
    from tests.model.test_lying_files import honest

    path = tmp_path_factory.mktemp("tiny") / "model.gguf"
    path.write_bytes(honest("llama").to_bytes())
    return path


def _read_once(patch: pytest.MonkeyPatch, path: Path) -> None:
    """Read the header and the vocabulary of a file for the first of many commands in this process only."""
    read_file, read_tokenizer = gguf._open, gguf.GgufCheckpoint.tokenizer

    @cache
    def file():
        header, *others = read_file(path)
        return replace(header, metadata=MappingProxyType(header.metadata)), *others

    @cache
    def tokenizer():
        found = read_tokenizer(gguf.GgufCheckpoint(path))
        found._encoding = replace(found._encoding, pieces=[*found._encoding.pieces])
        return found

    def own_tokenizer(self):
        return copy.copy(tokenizer()) if self.path == path else read_tokenizer(self)

    patch.setattr(gguf, "_open", lambda each: file() if each == path else read_file(each))
    patch.setattr(gguf.GgufCheckpoint, "tokenizer", own_tokenizer)


def _load_once(patch: pytest.MonkeyPatch, path: Path) -> None:
    """Load a file as it is, on one thread, for the first of many commands only."""
    from forerun.engine import loaded as module

    load, loaded = module.load_model, {}
    as_it_is = {"device": "cpu", "num_threads": 1, "quant": "none", "head_bits": None}

    def load_model(checkpoint, *, progress=None, **options):
        max_len = options.get("max_len")
        if checkpoint.path != path or options != as_it_is | {"max_len": max_len}:
            return load(checkpoint, progress=progress, **options)
        if max_len not in loaded:
            loaded[max_len] = load(checkpoint, progress=progress, **options)
        return loaded[max_len]

    patch.setattr(module, "load_model", load_model)


@pytest.fixture
def forerun(monkeypatch, capsys):
    """Run a command in this process; returns (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["forerun", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            code = end.code
        else:
            code = 0
        printed = capsys.readouterr()
        return int(code or 0), printed.out, printed.err

    return run


@pytest.fixture
def shell(monkeypatch, capsys, default_model):
    """Run a line in this process, `a | b` style input as `stdin`; returns (exit code, stdout, stderr)."""

    def run(line: str, *, stdin: bytes | None = None, columns: int | None = None):
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        if columns is not None:
            monkeypatch.setenv("COLUMNS", str(columns))
        read, write = os.pipe()
        os.write(write, stdin or b"")
        os.close(write)
        source = read if stdin is not None else os.open(os.devnull, os.O_RDONLY)
        with open(source, encoding="utf-8") as replaced:
            monkeypatch.setattr(sys, "stdin", replaced)
            with pytest.raises(SystemExit) as end:
                main()
        os.close(read) if stdin is None else None
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return run
