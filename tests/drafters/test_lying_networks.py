"""A drafter's file whose configuration lies is refused in one line, quickly and in little memory, or it drafts."""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from forerun.core.errors import ConfigError, LoadError
from forerun.core.params import SamplingParams
from forerun.drafters import dflash, eagle3, medusa, mlp_speculator
from forerun.drafters.base.contract import Target
from forerun.weights.gguf import GgufCheckpoint
from tests.drafters import test_dflash, test_eagle3, test_eagle_layouts, test_medusa
from tests.drafters import test_mlp_speculator as test_mlp
from tests.engine.harness import complete, engine_for
from tests.model.test_lying_files import MISSING, lies_about
from tests.weights.raw_gguf import RawGguf

LIMIT_S = 2.0
MORE_NBYTES = 2 << 30
"""Of address space that one file may take."""
PROMPTS, PARAMS = ([1, 2, 3], [4, 5, 6, 7]), SamplingParams(temperature=0, max_tokens=12)
Layout = tuple[ModuleType, Callable[[], Target], Callable[[Path], object]]


def eagle(write: Any, kind: str) -> Layout:
    make = lambda path: write(path, *test_eagle_layouts.network(kind))  # noqa: E731
    return eagle3, test_eagle3.target, make


def block(write: Any, kind: str) -> Layout:
    return (
        dflash,
        test_dflash.target,
        lambda path: write(path, test_dflash.network(kind == "dspark")),
    )


def write_gguf_of_eagle(path: Path, kind: str) -> str:
    path.mkdir()
    return test_eagle_layouts.gguf_file(path / "draft.gguf", kind)


LAYOUTS: Mapping[str, Layout] = {
    **{
        f"eagle3 by {write.__name__}, {kind}": eagle(write, kind)
        for write in test_eagle_layouts.LAYOUTS.values()
        for kind in ("plain", "llama3", "yarn")
    },
    **{
        f"{kind} by {write.__name__}": block(write, kind)
        for kind, layouts in test_dflash.LAYOUTS.items()
        for write in layouts
    },
    **{
        f"eagle3 by llama.cpp, {kind}": (
            eagle3,
            test_eagle3.target,
            partial(write_gguf_of_eagle, kind=kind),
        )
        for kind in ("plain", "llama3", "yarn")
    },
    "medusa": (medusa, lambda: test_medusa.TARGET, lambda path: test_medusa.ours(path)[0]),
    "mlp_speculator by IBM": (
        mlp_speculator,
        test_mlp.target,
        lambda path: test_mlp.save(path, test_mlp.IBM, test_mlp.ibm_tensors(3)),
    ),
    "mlp_speculator, an LSTM": (
        mlp_speculator,
        test_mlp.target,
        lambda path: test_mlp.save(path, test_mlp.LSTM, test_mlp.LSTM_TENSORS),
    ),
}


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """What takes much more ends in a MemoryError, not in the kernel's killer of processes."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MORE_NBYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def places(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Where a configuration has a value, those inside of others too."""
    if path:
        yield path
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, each in list(inner)[:40]:
        yield from places(each, (*path, key))


def lied(config: Any, path: tuple[Any, ...], lie: object) -> Any:
    """A copy in which one value is another."""
    config = json.loads(json.dumps(config))
    at = config
    for key in path[:-1]:
        at = at[key]
    if lie is MISSING:
        del at[path[-1]]
    else:
        at[path[-1]] = lie
    return config


def value_at(config: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        config = config[key]
    return config


def attempt(module: ModuleType, target: Target, model: object) -> bool:
    """Check it and build it; whether it can be used. Anything but LoadError and ConfigError is a fault."""
    start, complaints = time.process_time(), list[str]()
    for step in ("check", "build"):
        try:
            options = module.Options(model=str(model), num_draft=4)
            (module.METHOD.check if step == "check" and module.METHOD.check else module.build)(
                options, target
            )
        except (LoadError, ConfigError) as error:
            complaints.append(str(error))
    assert time.process_time() - start < LIMIT_S
    assert all("\n" not in text and len(text) < 600 for text in complaints)
    return not complaints


def drafts_losslessly(module: ModuleType, target: Target, model: object) -> None:
    """What is taken drafts, and the text is plain decoding's."""
    drafter = module.build(module.Options(model=str(model), quant="none"), target)
    plain, drafted = (
        [
            run.seq.generated
            for run in complete(engine_for(target.model, each, max_len=64), PROMPTS, PARAMS)
        ]
        for each in (None, drafter)
    )
    assert drafted == plain


def check_lies(name: str, folder: Path, limit: int | None) -> None:
    """Try so many lies about a network, all if None; every tenth that is taken drafts."""
    module, make_target, write = LAYOUTS[name]
    model, target = write(folder / "network"), make_target()
    assert attempt(module, target, model)
    drafts_losslessly(module, target, model)
    lies = list(lies_in(folder / "network"))
    for number, (key, lie, tell) in enumerate(random.Random(0).sample(lies, limit or len(lies))):
        tell()
        try:
            if attempt(module, target, model) and number % 10 == 0:
                drafts_losslessly(module, target, model)
        except Exception as error:
            raise AssertionError(f"{key} is {lie!r}: {error!r}") from error


@pytest.mark.parametrize("name", LAYOUTS)
def test_few_lies_in_a_configuration_get_through(name: str, tmp_path: Path) -> None:
    check_lies(name, tmp_path, 25)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_no_lie_in_a_configuration_gets_through(name: str, tmp_path: Path) -> None:
    check_lies(name, tmp_path, None)


@pytest.mark.parametrize("lie", [1 << 31, 1 << 32, 1 << 63, 16777216])
@pytest.mark.parametrize("key", ["head_dim", "num_hidden_layers", "block_size", "hidden_size"])
@pytest.mark.parametrize(
    "name", ["eagle3 by specforge, llama3", "eagle3 by specforge, yarn", "dflash by z_lab"]
)
def test_sizes_are_bounded_before_they_are_used(
    name: str, key: str, lie: int, tmp_path: Path
) -> None:
    module, make_target, write = LAYOUTS[name]
    model, target = write(tmp_path / "network"), make_target()
    file = tmp_path / "network" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {key: lie}))
    assert attempt(module, target, model) == (key not in config)


def lies_in(folder: Path) -> Iterator[tuple[object, object, Callable[[], object]]]:
    """List what a network's file may say instead: the place, the lie, and what writes it."""
    if (file := folder / "config.json").is_file():
        config = json.loads(file.read_text())
        for path in places(config):
            for lie in lies_about(value_at(config, path)):
                yield path, lie, partial(write_json, file, config, path, lie)
        return
    (file,) = folder.glob("*.gguf")
    read = GgufCheckpoint(file)
    raw = RawGguf.of(dict(read.metadata), {name: values_of(read, name) for name in read.names()})
    for key, value in raw.metadata.items():
        for lie in lies_about(value):
            yield key, lie, partial(write_gguf, file, raw, key, lie)


def write_json(file: Path, config: Any, path: tuple[Any, ...], lie: object) -> None:
    file.write_text(json.dumps(lied(config, path, lie)))


def write_gguf(file: Path, raw: RawGguf, key: str, lie: object) -> None:
    metadata = {k: v for k, v in raw.metadata.items() if k != key}
    metadata |= {} if lie is MISSING else {key: lie}
    file.unlink()  # it may be mapped
    file.write_bytes(replace(raw, metadata=metadata).to_bytes())


def values_of(read: GgufCheckpoint, name: str) -> Any:
    tensor = read.tensor(name)
    if tensor.format.name == "i64":
        return np.ascontiguousarray(tensor.data).view(np.int64).reshape(-1)
    return tensor.dequantize()
