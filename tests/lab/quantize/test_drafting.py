"""Drafting is lossless on rounded weights: all drafters x all ways to round them x greedy and seeded requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from forerun.core import registry
from forerun.core.params import SamplingParams
from forerun.drafters.base.contract import LoadedModel, Target
from forerun.lab.contract.candidate import Candidate
from forerun.lab.quantize.flatten_job import FlattenJob, Key
from forerun.lab.quantize.grid import Grid
from forerun.lab.quantize.hf_layouts import Layout
from forerun.lab.quantize.round_job import Method, Recipe, RoundJob
from forerun.model.loader import load_model
from forerun.model.model import Model
from forerun.weights import int_words
from forerun.weights.checkpoint import open_checkpoint
from tests.engine.harness import LOOPING, complete, engine_for, plain
from tests.model.tiny import hf_model

VOCAB, MAX_LEN, GROUP = 24, 256, 32
TEXTS = np.random.default_rng(0).integers(1, VOCAB, (5, 48)).tolist()
PROMPTS = [LOOPING[0] * 3, LOOPING[2] * 2, [3, 9, 4]]
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.8, seed=5, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama with opinions: sharp enough that some guesses are right."""
    path = tmp_path_factory.mktemp("source")
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    model: Any = hf_model("llama", **sizes, attention_bias=False, mlp_bias=False)
    with torch.no_grad():
        model.lm_head.weight *= 4
    model.save_pretrained(path)
    return path


def coded(method: Method, grid: Grid, layout: Layout) -> Callable[[Path, Path], None]:
    def make(source: Path, out: Path) -> None:
        texts = (TEXTS[:4], TEXTS[4:]) if method == "awq" else ([], [])
        recipe = Recipe(method, grid, layout)
        finish(RoundJob(open_checkpoint(source), *texts, out, {}, recipe=recipe))

    return make


def flattened(bits: int) -> Callable[[Path, Path], None]:
    class Flattened(FlattenJob):
        def widths(self) -> dict[Key, int | None]:
            return dict.fromkeys(super().widths(), bits)

    def make(source: Path, out: Path) -> None:
        finish(Flattened(open_checkpoint(source), TEXTS[:4], TEXTS[4:], out, {}))

    return make


def finish(job: RoundJob | FlattenJob) -> None:
    for _ in job.run():
        pass
    job.finish()


def gptq(source: Path, out: Path) -> None:
    """4 bits with zero points, codes and zeros less one packed along the columns, as AutoGPTQ writes them."""
    out.mkdir()
    tensors = {}
    for name, array in safetensors.numpy.load_file(source / "model.safetensors").items():
        stem, _, part = name.rpartition(".")
        if part != "weight" or array.ndim != 2 or "proj" not in name:
            tensors[name] = array
            continue
        weight = torch.from_numpy(array).float()
        scales, zeros = Grid(4, GROUP).ranges(weight)
        zeros = zeros.clamp(min=1)
        wide, steps = (x.repeat_interleave(GROUP, 1) for x in (zeros, scales))
        codes = (torch.round(weight / steps) + wide).clamp(0, 15).to(torch.uint8).numpy()
        stored = (zeros - 1).to(torch.uint8).numpy()
        tensors[f"{stem}.qweight"] = int_words.pack(codes, 4).T.copy()
        tensors[f"{stem}.qzeros"] = int_words.pack(stored.T.copy(), 4)
        tensors[f"{stem}.scales"] = scales.T.contiguous().half().numpy()
    safetensors.numpy.save_file(tensors, out / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
    (out / "config.json").write_text(json.dumps(config))


WAYS: dict[str, Callable[[Path, Path], None]] = {
    "rtn": coded("rtn", Grid(4, GROUP), "awq"),
    "awq": coded("awq", Grid(4, GROUP), "awq"),
    "compressed-tensors, 4 bits": coded("rtn", Grid(4, None), "compressed-tensors"),
    "compressed-tensors, 8 bits": coded("rtn", Grid(8, None), "compressed-tensors"),
    "gptq": gptq,
    "flatten, 4 bits": flattened(4),
    "flatten, 8 bits": flattened(8),
}
FORMATS = {
    "rtn": {"q4_z"},
    "awq": {"q4_z"},
    "compressed-tensors, 4 bits": {"q4_z"},
    "compressed-tensors, 8 bits": {"q8_0"},
    "gptq": {"q4_z"},
    "flatten, 4 bits": {"q4_c"},
    "flatten, 8 bits": {"q8_c"},
}
DRAFTERS = [
    *(name for name in registry.names("drafters") if name != "none"),
    *("draft_model:num_draft=10", "suffix++draft_model", "mlp_speculator++recycling"),
]
DEFAULT = ("draft_model", "recycling")


@pytest.fixture(scope="module")
def models(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """The source rounded in each of the ways; `source` is as it was."""

    @cache
    def load(way: str) -> Model:
        if way == "source":
            return load_model(open_checkpoint(source))
        out = tmp_path_factory.mktemp("out") / "rounded"
        WAYS[way](source, out)
        checkpoint = open_checkpoint(out)
        kinds = {checkpoint.tensor(name).format.name for name in checkpoint.names()}
        assert kinds >= FORMATS[way]
        return load_model(checkpoint)

    return load


@cache
def alone(model: Model) -> list[list[list[int]]]:
    """What plain decoding says to greedy and to seeded requests."""
    return [plain(model, PROMPTS, params) for params in (GREEDY, SEEDED)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "drafter", [d if d in DEFAULT else pytest.param(d, marks=pytest.mark.slow) for d in DRAFTERS]
)
def test_no_token_changes_on_rounded_weights(
    models: Callable[[str], Model], way: str, drafter: str
) -> None:
    model = models(way)
    for params, wanted in zip((GREEDY, SEEDED), alone(model), strict=True):
        cache = model.new_cache(4, MAX_LEN)

        def load(name: str, **options: object) -> LoadedModel:
            return LoadedModel(models("source"), None)

        target = Target(model, None, 4, MAX_LEN, cache, load)
        engine = engine_for(model, Candidate.of(drafter).build(target), cache=cache)
        runs = complete(engine, PROMPTS, params)
        assert [run.seq.generated for run in runs] == wanted
        assert engine.stats.drafted > engine.stats.accepted > 0 < engine.stats.rejected
