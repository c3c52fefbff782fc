"""The package as a whole: what importing it costs, what it exports, what `--help` costs."""

from __future__ import annotations

import importlib
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import forerun

SRC = Path(__file__).parent.parent / "src"
HEAVY = ("torch", "transformers", "tokenizers", "huggingface_hub", "gguf")


def loaded_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after running `code`."""
    script = f"import sys; sys.path.insert(0, {str(SRC)!r})\n{code}\n"
    script += "import json; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def cpu_seconds_of_children() -> float:
    """CPU time, not wall time: other processes of a busy machine must not fail a test."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_importing_forerun_loads_neither_torch_nor_numpy() -> None:
    loaded = loaded_after("import forerun")
    assert "forerun" in loaded
    assert loaded.isdisjoint({*HEAVY, "numpy"})


def test_importing_core_does_not_load_torch() -> None:
    modules = sorted(path.stem for path in (SRC / "forerun" / "core").glob("[a-z]*.py"))
    assert "types" in modules
    loaded = loaded_after("\n".join(f"import forerun.core.{name}" for name in modules))
    assert loaded.isdisjoint(HEAVY)


def test_public_names_are_sorted_and_each_can_be_had() -> None:
    assert list(forerun.__all__) == sorted(set(forerun.__all__))
    assert dir(forerun) == forerun.__all__
    for name in forerun.__all__:
        assert getattr(forerun, name) is not None


def test_the_version_is_looked_up_once() -> None:
    assert forerun.__version__ is forerun.__version__


def test_every_lazy_name_is_public() -> None:
    lazy = {name for names in forerun._NAMES_OF_MODULE.values() for name in names}
    assert lazy | {"__version__"} == set(forerun.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'LMM'"):
        _ = forerun.LMM  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        importlib.import_module("forerun.lmm")


def test_names_of_other_packages_say_where_they_are() -> None:
    for module, names in forerun._ELSEWHERE.items():
        for name in names:
            with pytest.raises(ImportError, match=f"from {module} import {name}$"):
                getattr(forerun, name)
            assert getattr(importlib.import_module(module), name)


def test_errors_are_one_tree() -> None:
    for error in ("CapacityError", "ConfigError", "LoadError", "RequestError"):
        assert issubclass(getattr(forerun, error), forerun.ForerunError)


APPLICATION = """
import click
app = click.Group()
for i in range(20):
    options = [click.Option([f"--option-{k}"], type=int, help="A number.") for k in range(20)]
    app.add_command(click.Command(f"command-{i}", params=options))
sys.argv = ["other", "--help"]
try: app()
except SystemExit: pass
"""  # what any command line of as many commands and options takes to print its help


def test_help_is_quick_and_loads_no_torch(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))  # to compile is not to print help
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    call = "from forerun.cli.main import main\nsys.argv = ['forerun', '--help']\n"
    call += "try: main()\nexcept SystemExit: pass"
    loaded_after(call)
    loaded_after(APPLICATION)
    ours, theirs = [], []
    for _ in range(9):  # in turns, for the machine's speed changes; others' work only adds to it
        began = cpu_seconds_of_children()
        loaded_after(APPLICATION)
        between = cpu_seconds_of_children()
        assert loaded_after(call).isdisjoint(HEAVY)
        theirs.append(between - began)
        ours.append(cpu_seconds_of_children() - between)
    assert min(ours) < 2.5 * min(theirs)


@pytest.mark.parametrize("command", ["generate hi -m", "chat -m", "verify -m", "serve"])
def test_a_mistyped_model_is_told_before_torch_is_imported(command: str) -> None:
    words = ["forerun", *command.split(), "no-such-model"]
    call = f"from forerun.cli.main import main\nsys.argv = {words}\n"
    call += "try: main()\nexcept SystemExit as ended: assert ended.code == 2"
    assert loaded_after(call).isdisjoint(HEAVY)


def test_an_answer_imports_no_table_no_server_and_no_laboratory(tiny_gguf: Path) -> None:
    words = ["forerun", *f"generate Hi --raw -n 1 -c 64 -m {tiny_gguf}".split()]
    call = f"from forerun.cli.main import main\nsys.argv = {words}\n"
    call += "try: main()\nexcept SystemExit as ended: assert ended.code == 0\n"
    call += (
        "assert not {'forerun.cli.tables', 'forerun.server', 'forerun.lab.output'} & {*sys.modules}"
    )
    assert loaded_after(call).isdisjoint({"asyncio", "pydantic", "rich", "torch", "yaml"})
