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
from forerun.lab.quantize.flatten import KINDS, Kind
from forerun.lab.quantize.flatten_job import FlattenJob
from forerun.model.loader import load_model, read_config, stored_weights
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.stored import StoredTensor
from tests.model.tiny import VOCAB, hf_model, load_torch, prefill

TEXTS = np.random.default_rng(0).integers(1, VOCAB, (6, 40)).tolist()
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 64},
    "mistral": {"intermediate_size": 64},
    "glm": {"intermediate_size": 64},
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


def job(source: Path, out: Path, texts: list[list[int]] = TEXTS[:4], **options: Any) -> FlattenJob:
    origin = {"recipe": options}
    return FlattenJob(open_checkpoint(source), texts, TEXTS[4:], out, origin, **options)


def finished(
    source: Path, out: Path, texts: list[list[int]] = TEXTS[:4], **options: Any
) -> tuple[FlattenJob, dict[str, float]]:
    made, shares = job(source, out, texts, **options), list[float]()
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
def test_eight_bits_keep_the_model(
    folders: dict[str, Path], tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        FlattenJob,
        "widths",
        lambda self: {(i, site): 8 for i in range(self.config.num_layers) for site in READERS},
    )
    out = tmp_path / "out"
    made, figures = finished(folders[family], out)
    before, after = (
        prefill(load_torch(open_checkpoint(p)), TEXTS[5]) for p in (folders[family], out)
    )
    assert 0 < (after - before).std() < 0.1 * before.std()
    assert figures["ppl_after"] == pytest.approx(figures["ppl_before"], rel=0.05)
    assert (figures["share_4bit"], figures["share_8bit"]) == (0, 1)
    assert figures["widening"] >= 1
    assert max(error for key, error in made.errors.items() if key.endswith(".8")) < 1e-2
    flat = flat_weights(out)
    assert {tensor.format.name for tensor in flat.values()} == {"q8_c"}
    assert all(flat[name].codes().flat.is_by_row for name in {"embed", "head"} & flat.keys())
    assert "embed" in flat
    assert not made.partial.exists()
    assert not list(out.glob("candidates*"))


def test_the_bound_decides_how_each_site_is_rounded(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    made, figures = finished(folders["llama"], tmp_path / "four", bound=99.0)
    assert list(made.divergences) == list(made.errors)
    assert len(made.divergences) == 2 * 2 * len(READERS)
    assert figures["share_4bit"] == 1
    eight = {key: kl for key, kl in made.divergences.items() if key.endswith(".8")}
    worst = max(eight, key=eight.__getitem__)
    bound = sum(eight.values()) - eight[worst]
    made, figures = finished(folders["llama"], tmp_path / "some", bound=bound)
    assert 0 < figures["share_8bit"] < 1
    assert set(made.widths().values()) >= {8, None}
    assert (
        sum(made.divergences[f"{i}.{s}.{bits}"] for (i, s), bits in made.widths().items() if bits)
        <= bound
    )
    checkpoint = open_checkpoint(tmp_path / "some")
    config, arch = read_config(checkpoint)
    forms = {name: each.format.name for name, each in stored_weights(checkpoint, arch, config)}
    for (layer, site), bits in made.widths().items():
        for name in READERS[site]:
            assert forms[f"layers.{layer}.{name}"] == {4: "q4_c", 8: "q8_c", None: "q8_0"}[bits]


def test_what_one_scale_does_not_suit_keeps_its_groups(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    made, figures = finished(folders["llama"], tmp_path / "out", bound=0.0)
    assert set(made.widths().values()) == {None}
    assert set(flat_weights(tmp_path / "out")) <= {"embed", "head"}
    assert (figures["share_4bit"], figures["share_8bit"], figures["widening"]) == (0, 0, 1)
    assert figures["fp16_over_codes"] == 16 / 8.5
    assert figures["ppl_after"] == pytest.approx(figures["ppl_before"], rel=0.01)
    folder = open_checkpoint(tmp_path / "out")
    before, after = (
        prefill(load_torch(m), TEXTS[5]) for m in (open_checkpoint(folders["llama"]), folder)
    )
    assert 0 < (after - before).std() < 0.02 * before.std()


@pytest.mark.parametrize("kind", KINDS)
def test_both_kinds_of_scales_are_written_and_read(
    folders: dict[str, Path], tmp_path: Path, kind: Kind
) -> None:
    out = tmp_path / "out"
    made, _ = finished(folders["llama"], out, bound=99.0, kinds=(kind,))
    for name, stored in flat_weights(out).items():
        if name.startswith("layers."):
            assert stored.codes().flat.is_by_row == (kind == "row")
    errors = [error for key, error in made.errors.items() if key.endswith(".8")]
    assert max(errors) < 1e-2


def test_the_head_is_counted_in_the_figures(folders: dict[str, Path], tmp_path: Path) -> None:
    """In groups of 8 bits blocks lose hardly anything: what is lost is embedding's and head's."""
    made, figures = finished(folders["llama"], tmp_path / "out", bound=0.0)
    assert 0 < figures["divergence"] < 1e-3
    folder = open_checkpoint(tmp_path / "out")
    ours, exact = (made.outside.embed(TEXTS[4:], is_rounded=rounded) for rounded in (True, False))
    (stored,) = (t for n, t in stored_weights(folder, made.arch, made.config, "embed"))
    assert (stored.rows(np.array(TEXTS[4])).dequantize() == ours[0].numpy()).all()
    assert 0 < (ours - exact).abs().max() < 0.01 * exact.abs().max()


def test_costs_are_measured_on_other_texts_than_ranges(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """Of a text that ranges are taken from no input is cut off."""
    texts = [[i + 1] * 40 for i in range(6)]
    made = job(folders["llama"], tmp_path / "out", texts)
    embedded = made.outside.embed(texts)
    states = made.begin(embedded, made.outside.embed([]))
    assert states["calibration"].tolist() == embedded[:2].tolist()
    assert states["probes"][0].tolist() == embedded[2:].tolist()


def test_sites_are_flattened_by_what_they_cost_for_their_work(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """An outlier in `down` costs more than all others together; 4 bits take the place of 8 where both fit."""
    made = job(folders["llama"], tmp_path / "out", bound=0.01)
    made.divergences = {
        f"{i}.{site}.{bits}": 0.0005 if bits == 8 else 0.003 + i
        for i in range(2)
        for site in READERS
        for bits in (8, 4)
    }
    made.divergences |= {"0.down.8": 0.02, "0.down.4": 0.5, "1.o.8": 0.02, "1.o.4": 1e-6}
    widths = made.widths()
    assert [widths[0, site] for site in ("attn", "o", "mlp", "down")] == [4, 8, 4, None]
    assert [widths[1, site] for site in ("attn", "o", "mlp", "down")] == [8, 4, 8, 8]


def test_eight_bits_everywhere_come_before_four_anywhere(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """What keeps groups is neither smaller nor faster."""
    made = job(folders["llama"], tmp_path / "out", bound=0.01)
    cheap = {f"{i}.{site}.{bits}": 1e-5 for i in range(2) for site in READERS for bits in (8, 4)}
    made.divergences = cheap | {"0.down.8": 0.0099, "0.down.4": 0.02, "1.mlp.4": 0.0008}
    widths = made.widths()
    assert (widths[0, "down"], widths[1, "mlp"], widths[1, "attn"]) == (8, 8, 4)
    assert None not in widths.values()


def test_a_killed_job_goes_on_and_writes_the_same_bytes(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    finished(folders["llama"], tmp_path / "whole", max_widening=0.5)
    for stop in (1, 3):
        steps = job(folders["llama"], tmp_path / "cut", max_widening=0.5).run()
        while next(steps) < stop:
            pass
    finished_steps = list(job(folders["llama"], tmp_path / "cut", max_widening=0.5).run())
    assert finished_steps[0] == 3
    job(folders["llama"], tmp_path / "cut", max_widening=0.5).finish()
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "cut" / path.name).read_bytes() == path.read_bytes()


def test_the_native_kernels_run_what_was_written(folders: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    texts = np.random.default_rng(1).integers(1, VOCAB, (40, 40)).tolist()  # or GPTQ is damped much
    finished(folders["mistral"], out, texts, bound=99.0, max_widening=0.5)
    try:
        model = load_model(open_checkpoint(out))
    except LoadError as error:
        pytest.skip(str(error))
    ours, theirs = (prefill(m, TEXTS[5]) for m in (model, load_torch(open_checkpoint(out))))
    assert 0 < (ours - theirs).std() < 0.1 * theirs.std()


def test_flattening_wants_a_text(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --calib FILE"):
        FlattenJob(open_checkpoint(folders["llama"]), [], [], tmp_path / "out", {})


def test_inputs_that_have_no_groups_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "model"
    hf_model("llama", intermediate_size=48).save_pretrained(source)
    with pytest.raises(ConfigError, match=r"groups of 32, but this model has 32, 48: choose"):
        job(source, tmp_path / "out")


@pytest.mark.parametrize(
    "part", ["weight_packed", "weight_scale", "input_step", "input_pieces", "input_limit"]
)
def test_a_tensor_that_is_missing_is_named(
    folders: dict[str, Path], tmp_path: Path, part: str
) -> None:
    out = tmp_path / "out"
    kinds = ("tensor",) if part in ("input_pieces", "input_limit") else ("row",)
    finished(folders["llama"], out, bound=99.0, kinds=kinds)
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
