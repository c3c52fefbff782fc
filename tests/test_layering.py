"""Imports point only downwards, in no circle of files, and are written in full; few of them are of torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "forerun"

# Parts of one line do not import each other.
ORDER = (
    ("_native",),
    ("core",),
    ("system",),
    ("text",),
    ("weights",),
    ("hub",),
    ("model",),
    ("parallel",),
    ("decoding",),
    ("drafters",),
    ("gpu",),
    ("engine",),
    ("compat",),
    ("inputs", "outputs", "sampling_params"),
    ("llm",),
    ("server",),
    ("compat.vllm", "compat.llama_cpp"),
    ("cli",),
    ("__main__",),
    ("lab",),
)
TORCH_ROOMS = {"gpu", "parallel", "lab"}
"""Parts that need torch. The others run where it is not installed."""
DOORS = {"model/backends/triton.py": "gpu"}
"""What loads a model on triton: it alone knows `forerun.gpu`."""
PRIVATE = {path.stem for path in ROOT.rglob("_*.py") if not path.stem.startswith("__")}
"""Modules of one folder alone."""
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


@cache
def tree_of(path: Path) -> ast.Module:
    """Each file is parsed once."""
    return ast.parse(path.read_text(encoding="utf-8"))


def part_of(path: Path) -> str:
    return part_named(path.relative_to(ROOT).with_suffix("").parts)


def part_named(parts: Sequence[str]) -> str:
    """A part is a folder or file of the package; of `compat`, two are whole faces of `LLM`."""
    face = ".".join(parts[:2])
    return face if face in RANK else parts[0]


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of what is imported of forerun."""
    for line, name in all_imports(tree):
        if name.startswith((".", "forerun.")):
            yield line, name


@cache
def all_imports(tree: ast.AST) -> list[tuple[int, str]]:
    """Line and full name of what is imported, type-checking blocks and functions included."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [(node.lineno, name) for name in names]
    return found


def violations(path: Path, tree: ast.AST) -> list[str]:
    part, found = part_of(path), []
    for line, name in imports(tree):
        where = f"{path.relative_to(ROOT)}:{line} imports {name}"
        if name.startswith("."):
            found.append(f"{where}: write it in full")
            continue
        imported = part_named(name.split(".")[1:])
        if imported == DOORS.get(str(path.relative_to(ROOT))):
            continue
        if imported in RANK and imported != part and RANK[imported] >= RANK[part]:
            found.append(f"{where}: {part} must not know {imported}")
    return found


def torch_imports(path: Path, tree: ast.AST) -> list[str]:
    """Imports of torch, or of what runs on it, where there may be none; inside functions too."""
    where = str(path.relative_to(ROOT))
    if part_of(path) in TORCH_ROOMS:
        return []
    found = []
    for line, name in all_imports(tree):
        parts = name.split(".")
        is_torch = parts[0] == "torch" or parts[:2] == ["safetensors", "torch"]
        is_torch |= parts[0] == "triton"
        is_room = parts[:1] == ["forerun"] and parts[1:2] and parts[1] in DOORS.values()
        if is_torch or (is_room and parts[1] != DOORS.get(where)):
            found.append(f"{where}:{line} imports {name}")
    return found


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def private_imports(path: Path, tree: ast.AST) -> list[str]:
    """Modules with a leading underscore that lie in another folder."""
    own, found = ".".join(path.relative_to(ROOT.parent).parent.parts), []
    for line, name in imports(tree):
        parts = name.split(".")
        for i, part in enumerate(parts):
            if part in PRIVATE and ".".join(parts[:i]) != own:
                found.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    return found


def method_imports(path: Path, tree: ast.Module) -> list[str]:
    """Methods of drafting that a file imports when it is imported itself, those it belongs to left out.

    What methods share (`drafters/base`) imports none, not even in functions. `lab/torch/networks` has the
    networks of several, for training and as oracles.
    """
    if path.is_relative_to(ROOT / "lab" / "torch" / "networks"):
        return []
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    lazy = {
        node.lineno for function in inside for node in ast.walk(function) if hasattr(node, "lineno")
    }
    found = []
    for line, name in imports(tree):
        parts = name.split(".")
        is_own = parts[2:3] and parts[2] in {path.stem, "base", *path.relative_to(ROOT).parts}
        is_late = line in lazy and not path.is_relative_to(ROOT / "drafters" / "base")
        if parts[:2] == ["forerun", "drafters"] and not is_late and not is_own:
            found.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    return found


def file_imports(code: Mapping[str, ast.AST]) -> dict[str, set[str]]:
    """The modules, among those given, that each of them imports; `from forerun.x import y` may mean forerun.x.y."""
    graph = {}
    for module, tree in code.items():
        names = [name for _, name in imports(tree)]
        found = {name if name in code else name.rpartition(".")[0] for name in names}
        graph[module] = found & code.keys() - {module}
    return graph


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [*error.args[1]]
    return []


def test_no_files_import_each_other_in_a_circle() -> None:
    code = {module_of(path): tree_of(path) for path in FILES}
    assert cycle(file_imports(code)) == []


def test_every_part_has_its_place() -> None:
    unknown = {part_of(path) for path in FILES} - RANK.keys()
    assert not unknown, f"say in ORDER where these belong: {sorted(unknown)}"


def test_imports_point_downwards() -> None:
    assert [each for path in FILES for each in violations(path, tree_of(path))] == []


def test_the_engine_imports_no_torch() -> None:
    assert [each for path in FILES for each in torch_imports(path, tree_of(path))] == []


def test_private_modules_are_imported_within_their_folder_alone() -> None:
    assert [each for path in FILES for each in private_imports(path, tree_of(path))] == []


def test_no_file_needs_a_method_to_be_imported() -> None:
    """So the folder of a method can be deleted (`tests/drafters/test_rooms.py`)."""
    assert [each for path in FILES for each in method_imports(path, tree_of(path))] == []


@pytest.mark.parametrize(
    ("where", "code", "is_fine"),
    [
        ("model/x.py", "from forerun.core import tree", True),
        ("model/x.py", "from forerun.model.config import ModelConfig", True),
        ("model/x.py", "import forerun.engine.engine", False),
        ("model/x.py", "from forerun import engine", False),
        ("model/x.py", "def f():\n    from forerun.drafters import base", False),
        ("weights/x.py", "from forerun.hub.names import pull", False),
        ("cli/x.py", "from forerun.llm import LLM", True),
        ("cli/x.py", "from forerun.lab import store", False),
        ("lab/x.py", "from forerun.cli.options import load", True),
        ("llm.py", "from forerun.cli import main", False),
        ("compat/x.py", "from forerun.llm import LLM", False),
        ("compat/vllm/x.py", "from forerun.llm import LLM", True),
        ("compat/x.py", "from forerun.compat.vllm import LLM", False),
        ("server/x.py", "from forerun.compat import vllm", False),
        ("core/x.py", "from . import tree", False),
    ],
)
def test_the_rule_itself(where: str, code: str, is_fine: bool) -> None:
    assert (violations(ROOT / where, ast.parse(code)) == []) is is_fine


@pytest.mark.parametrize(
    ("where", "code", "is_fine"),
    [
        ("engine/x.py", "import numpy", True),
        ("engine/x.py", "import torch", False),
        ("engine/x.py", "def f():\n    from torch import Tensor", False),
        ("engine/x.py", "if TYPE_CHECKING:\n    import torch.nn", False),
        ("weights/x.py", "import safetensors.torch", False),
        ("weights/x.py", "from safetensors import torch", False),
        ("model/x.py", "def f():\n    from forerun.gpu import load", False),
        ("model/x.py", "from forerun.model.backends import triton", True),
        ("model/backends/triton.py", "import triton", False),
        ("model/backends/triton.py", "def f():\n    from forerun.gpu import load", True),
        *((f"{room}/x.py", "import torch", True) for room in sorted(TORCH_ROOMS)),
    ],
)
def test_the_rule_of_torch_itself(where: str, code: str, is_fine: bool) -> None:
    assert (torch_imports(ROOT / where, ast.parse(code)) == []) is is_fine


@pytest.mark.parametrize(
    ("code", "is_fine"),
    [
        (
            {
                "model.a": "from forerun.model.b import f",
                "model.b": "from forerun.core.tree import chain",
            },
            True,
        ),
        ({"model.a": "from forerun.model import b", "model.b": "import forerun.model.a"}, False),
        (
            {
                "model.a": "from forerun.model.b import f",
                "model.b": "def f():\n    from forerun.model.c import g",
                "model.c": "if TYPE_CHECKING:\n    from forerun.model.a import h",
            },
            False,
        ),
        (
            {"model": "from forerun.model.a import f", "model.a": "from forerun.model import g"},
            False,
        ),
    ],
)
def test_a_circle_is_found(code: dict[str, str], is_fine: bool) -> None:
    graph = file_imports({f"forerun.{name}": ast.parse(text) for name, text in code.items()})
    assert (cycle(graph) == []) is is_fine
