"""A flattened model is the same model, in a folder that loads; the bound decides how much of it has 4 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from forerun.core.errors import ConfigError, LoadError
from forerun.lab.quantize.block import READERS
from forerun.lab.quantize.flatten_job import FlattenJob, FlattenRecipe
from forerun.model.loader import load_model, read_config, stored_weights
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.stored import StoredTensor
from tests.model.tiny import VOCAB, hf_model, load_torch, prefill

TEXTS = np.random.default_rng(0).integers(1, VOCAB, (6, 40)).tolist()
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 64},
    "mistral": {"intermediate_size": 64},
    "opt": {"ffn_dim": 64},
    "gpt_bigcode": {},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for family, wider in FAMILIES.items():
        made[family] = tmp_path_factory.mktemp(family)
        hf_model(family, **wider).save_pretrained(made[family])
    return made


def job(source: Path, out: Path, recipe: FlattenRecipe) -> FlattenJob:
    origin = {"recipe": repr(recipe)}
    return FlattenJob(open_checkpoint(source), TEXTS[:4], TEXTS[4:], out, origin, recipe=recipe)


def finished(source: Path, out: Path, recipe: FlattenRecipe) -> tuple[FlattenJob, dict[str, float]]:
    made, shares = job(source, out, recipe), list[float]()
    made.on_matrix = shares.append
    assert list(made.run()) == list(range(made.num_steps + 1))
    assert len(shares) > made.config.num_layers
    assert shares.count(1.0) == made.config.num_layers
    assert shares[0] < 1
    return made, made.finish()


def flat_weights(folder: Path) -> dict[str, StoredTensor]:
    checkpoint = open_checkpoint(folder)
    config, arch = read_config(checkpoint)
    stored = stored_weights(checkpoint, arch, config)
    return {name: tensor for name, tensor in stored if tensor.format.is_flat}


@pytest.mark.parametrize("family", FAMILIES)
def test_eight_bits_keep_the_model(folders: dict[str, Path], tmp_path: Path, family: str) -> None:
    out = tmp_path / "out"
    made, figures = finished(folders[family], out, FlattenRecipe(bits=8))
    before, after = (
        prefill(load_torch(open_checkpoint(p)), TEXTS[5]) for p in (folders[family], out)
    )
    assert 0 < (after - before).std() < 0.1 * before.std()
    assert figures["ppl_after"] == pytest.approx(figures["ppl_before"], rel=0.05)
    assert figures["share_4bit"] == 0
    assert figures["widening"] >= 1
    assert max(made.errors.values()) < 1e-2
    assert {tensor.format.name for tensor in flat_weights(out).values()} == {"q8_c"}
    assert not made.partial.exists()
    assert not list(out.glob("candidates*"))


def test_the_bound_decides_how_many_matrices_have_four_bits(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    made, figures = finished(folders["llama"], tmp_path / "all", FlattenRecipe(bound=99.0))
    costs = sorted(made.divergences.values())
    assert len(costs) == 8
    assert costs[0] > 0
    assert figures["share_4bit"] == 1
    assert figures["ppl_eight"] != figures["ppl_after"]
    recipe = FlattenRecipe(bound=sum(costs[:4]))
    made, figures = finished(folders["llama"], tmp_path / "some", recipe)
    four = [key for key, bits in made.widths().items() if bits == 4]
    assert sum(made.divergences[f"{layer}.{site}"] for layer, site in four) <= recipe.bound
    assert 0 < figures["share_4bit"] < 1
    forms = {name: t.format.bits for name, t in flat_weights(tmp_path / "some").items()}
    for (layer, site), bits in made.widths().items():
        assert all(forms[f"layers.{layer}.{name}"] == bits for name in READERS[site])


def test_a_killed_job_goes_on_and_writes_the_same_bytes(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    recipe = FlattenRecipe(bound=0.01, row_bits=4, split="even", widen=0.5)
    finished(folders["llama"], tmp_path / "whole", recipe)
    for stop in (1, 3):
        steps = job(folders["llama"], tmp_path / "cut", recipe).run()
        while next(steps) < stop:
            pass
    finished_steps = list(job(folders["llama"], tmp_path / "cut", recipe).run())
    assert finished_steps[0] == 3
    job(folders["llama"], tmp_path / "cut", recipe).finish()
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "cut" / path.name).read_bytes() == path.read_bytes()


def test_the_native_kernels_run_what_was_written(folders: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    finished(folders["mistral"], out, FlattenRecipe(bits=4, widen=0.5))
    try:
        model = load_model(open_checkpoint(out), backend="native")
    except LoadError as error:
        pytest.skip(str(error))
    ours, theirs = (prefill(m, TEXTS[5]) for m in (model, load_torch(open_checkpoint(out))))
    assert 0 < (ours - theirs).std() < 0.1 * theirs.std()


def test_flattening_wants_a_text(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --calib FILE"):
        FlattenJob(open_checkpoint(folders["llama"]), [], [], tmp_path / "out", {})


@pytest.mark.parametrize(
    "part", ["weight_packed", "weight_scale", "input_step", "input_pieces", "input_limit"]
)
def test_a_tensor_that_is_missing_is_named(
    folders: dict[str, Path], tmp_path: Path, part: str
) -> None:
    out = tmp_path / "out"
    finished(folders["llama"], out, FlattenRecipe(bits=4))
    named = f"model.layers.0.mlp.up_proj.{part}"
    index = out / "model.safetensors.index.json"
    known = json.loads(index.read_text())
    shard = out / known["weight_map"].pop(named)
    index.write_text(json.dumps(known))
    tensors = safetensors.numpy.load_file(shard)
    del tensors[named]
    safetensors.numpy.save_file(tensors, shard)
    missing = named.replace("weight_packed", "weight")
    with pytest.raises(LoadError, match=f"no tensor '{missing}'"):
        load_torch(open_checkpoint(out))
