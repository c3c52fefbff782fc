"""A model rounded block by block is the same model with other weights, in a folder that anyone can read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from forerun.core.errors import ConfigError, LoadError
from forerun.lab.quantize.block import WholeBlock, matrices_of, observe
from forerun.lab.quantize.grid import Grid
from forerun.lab.quantize.hf_layouts import Layout, layout_for
from forerun.lab.quantize.outside import Outside
from forerun.lab.quantize.round_job import (
    Method,
    Recipe,
    RoundJob,
    Seen,
    output_error,
    readers_of,
    scale,
)
from forerun.lab.torch.decoder import Decoder
from forerun.model.loader import load_model, read_config, stored_weights
from forerun.weights.checkpoint import open_checkpoint
from tests.model.tiny import FAMILIES, SEEING, VOCAB, hf_model, load_torch, prefill

TEXTS = np.random.default_rng(0).integers(1, VOCAB, (6, 40)).tolist()
IN_ONE = r"its experts lie in one tensor \(.*\); --quant int8 or int4 rounds them"
REFUSED = {
    "gemma4": "it has embeddings of each layer, layers that read others' keys$",
    "gemma3n": r"it has embeddings of each layer, layers that read others' keys, several streams of states$",
    "gpt_oss": IN_ONE,
    **dict.fromkeys(
        ("granitemoe", "granitemoeshared", "granitemoehybrid", "granite4_mamba"), IN_ONE
    ),
}
ROUNDED = tuple(family for family in FAMILIES if family not in REFUSED and family not in SEEING)
ROUTED = (
    *(family for family in ROUNDED if "moe" in family),
    "mixtral",
    "qwen3_next",
    "deepseek_v2",
    "deepseek_v3",
)
DRIFTING = (*ROUTED, "qwen3_5")
"""Whose random models answer small changes with large ones."""
WIDTHS = {
    **dict.fromkeys(("intermediate_size", "ffn_dim", "shared_intermediate_size"), 64),
    **dict.fromkeys(("shared_expert_intermediate_size",), 64),
    **dict.fromkeys(("moe_shared_expert_intermediate_size",), 64),
    **dict.fromkeys(("moe_intermediate_size", "kv_lora_rank"), 32),
}
"""Multiples of a group."""


def wider(family: str) -> dict[str, Any]:
    given = FAMILIES[family][2]
    sizes: dict[str, Any] = {name: width for name, width in WIDTHS.items() if name in given}
    if given.get("q_lora_rank"):
        sizes["q_lora_rank"] = 32
    if "kv_lora_rank" in given:
        sizes |= {"qk_rope_head_dim": 16, "qk_nope_head_dim": 16}
    elif "num_key_value_heads" in given and "head_dim" not in given:
        sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}  # heads that kernels take
    return sizes | ({"block_auto_adjust_ff_dim": False} if family == "lfm2" else {})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for family in ROUNDED:
        model = hf_model(family, **wider(family))
        made[family] = tmp_path_factory.mktemp(family)
        model.save_pretrained(made[family])
    return made


def job(
    source: Path, out: Path, grid: Grid, method: Method = "awq+gptq", layout: Layout | None = None
) -> RoundJob:
    chosen = layout or layout_for(None, grid.bits, grid.group)
    recipe = Recipe(method, grid, chosen)
    checkpoint = open_checkpoint(source)
    calibration = [] if method == "rtn" else TEXTS[:4]
    origin = {"recipe": repr(recipe)}
    return RoundJob(checkpoint, calibration, TEXTS[4:], out, origin, recipe=recipe)


def finished(*arguments: Any) -> tuple[Path, dict[str, float], RoundJob]:
    made, shares = job(*arguments), list[float]()
    made.on_matrix = shares.append
    steps = list(made.run())
    assert steps == list(range(made.config.num_layers + 1))
    ends = [i + 1 for i, share in enumerate(shares) if share == 1.0]
    assert len(ends) == made.config.num_layers
    for start, end in pairwise((0, *ends)):  # progress never waits for a whole block
        num = end - start
        assert num > 1
        assert shares[start:end] == pytest.approx([(i + 1) / num for i in range(num)])
    return made.folder, made.finish(), made


@pytest.mark.parametrize("family", ROUNDED)
def test_whole_blocks_are_the_decoders_blocks(folders: dict[str, Path], family: str) -> None:
    checkpoint = open_checkpoint(folders[family])
    config, arch = read_config(checkpoint)
    decoder = load_torch(checkpoint)
    x = Outside(checkpoint, arch, config).embed([TEXTS[0]])[0]
    for layer in range(config.num_layers):
        start = f"layers.{layer}."
        stored = stored_weights(checkpoint, arch, config, start)
        weights = {
            name.removeprefix(start): torch.from_numpy(tensor.dequantize())
            for name, tensor in stored
        }
        x, _ = WholeBlock(config, weights, layer)(x)
    expected = prefill(decoder, TEXTS[0]).log_softmax(-1)[:-1]
    goal = torch.tensor(TEXTS[0])
    loss = -expected[torch.arange(39), goal[1:]].mean()
    outside = Outside(checkpoint, arch, config)
    assert outside.loss(x[None], goal[None]) == pytest.approx(loss.item(), rel=1e-4)


@pytest.mark.parametrize("family", ROUNDED)
def test_eight_bits_keep_the_model_with_awqs_scales_in_it(
    folders: dict[str, Path], tmp_path: Path, family: str
) -> None:
    out, figures, made = finished(folders[family], tmp_path / "out", Grid(8, 32))
    before, after = (
        prefill(load_torch(open_checkpoint(p)), TEXTS[5]) for p in (folders[family], out)
    )
    error = (after - before).std()
    if family in DRIFTING:  # some rows choose other experts, some states drift
        error = (after - before).std(1).median()
    assert 0 < error < 0.1 * before.std()
    most = 0.25 if family in DRIFTING else 0.05
    assert figures["ppl_after"] == pytest.approx(figures["ppl_before"], rel=most)
    assert max(made.errors.values()) < 1e-3
    old, new = weights_of(folders[family]), weights_of(out)
    assert old.keys() == new.keys()
    norm = "layers.0.attn_norm"
    assert norm not in old or not torch.allclose(old[norm], new[norm])


@pytest.mark.parametrize("family", ROUNDED)
def test_scales_change_no_output(folders: dict[str, Path], tmp_path: Path, family: str) -> None:
    made = job(folders[family], tmp_path / "out", Grid(3, 32))
    x = made.outside.embed(TEXTS[:1])
    for layer in range(made.config.num_layers):
        weights = made.weights(layer)
        block, before = WholeBlock(made.config, weights, layer), x.clone()
        inputs, routed = observe(block, x)
        readers = {s: readers_of(made.config, layer, block, weights, s) for s in inputs}
        changed = scale(
            made.config, weights, Seen(inputs, readers, routed), Grid(3, 32), layer=layer
        )
        assert changed
        after, _ = WholeBlock(made.config, weights, layer)(before[0])
        torch.testing.assert_close(after, x[0], rtol=1e-3, atol=1e-3 * float(x.std()))


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = open_checkpoint(folder)
    config, arch = read_config(checkpoint)
    return {
        name: torch.from_numpy(t.dequantize())
        for name, t in stored_weights(checkpoint, arch, config)
    }


@pytest.mark.parametrize("family", REFUSED)
def test_what_blocks_cannot_compute_is_refused_in_words(family: str, tmp_path: Path) -> None:
    hf_model(family).save_pretrained(tmp_path / "model")
    message = f"quantization of .* is not supported: {REFUSED[family]}"
    with pytest.raises(ConfigError, match=message):
        job(tmp_path / "model", tmp_path / "out", Grid(8, 32))


@pytest.mark.parametrize(
    ("bits", "group", "layout"),
    [
        (4, 32, "awq"),
        (4, 32, "compressed-tensors"),
        (4, None, "compressed-tensors"),
        (3, 32, "compressed-tensors"),
        (8, None, "compressed-tensors"),
    ],
)
def test_what_was_rounded_is_read_back(
    folders: dict[str, Path], tmp_path: Path, bits: int, group: int | None, layout: Layout
) -> None:
    grid = Grid(bits, group)
    out, _, _ = finished(folders["llama"], tmp_path / "out", grid, "rtn", layout)
    before, after = weights_of(folders["llama"]), weights_of(out)
    assert before.keys() == after.keys()
    for name, weight in before.items():
        short = name.rpartition(".")[2]
        is_rounded = len(weight.shape) == 2 and short != "embed" and short != "head"
        expected = grid.nearest(weight) if is_rounded else weight.half().float()
        torch.testing.assert_close(after[name], expected, rtol=0, atol=0)


@pytest.mark.parametrize("method", ["awq", "gptq", "awq+gptq"])
@pytest.mark.parametrize("bits", [3, 4])
def test_each_method_errs_less_than_rounding_to_nearest(
    tmp_path: Path, bits: int, method: Method
) -> None:
    """Where some inputs are far larger than others, as in trained models."""
    grid, source = Grid(bits, 32), tmp_path / "model"
    model = hf_model("mistral", intermediate_size=64)
    for layer in model.model.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.weight.data[::16] *= 10
    model.save_pretrained(source)
    _, _, awq = finished(source, tmp_path / "a", grid, method)
    plain = job(source, tmp_path / "b", grid)
    plain.recipe = Recipe("rtn", grid, plain.recipe.layout)  # with calibration: the same measure
    list(plain.run())
    assert awq.errors.keys() == plain.errors.keys()
    assert sum(awq.errors.values()) < 0.9 * sum(plain.errors.values())


def test_awq_compares_the_outputs_of_a_blocks_halves(folders: dict[str, Path]) -> None:
    """The error of matrices in a half is that of what the half adds to the states, by torch's own modules."""
    checkpoint = open_checkpoint(folders["llama"])
    config, arch = read_config(checkpoint)
    start = "layers.0."
    weights = {
        name.removeprefix(start): torch.from_numpy(tensor.dequantize())
        for name, tensor in stored_weights(checkpoint, arch, config, start)
    }
    states = Outside(checkpoint, arch, config).embed(TEXTS[:2])
    module = LlamaForCausalLM.from_pretrained(folders["llama"]).model
    for site, readers in (("attn", ("q", "k", "v")), ("mlp", ("gate", "up"))):
        rounded = [Grid(3, 32).nearest(weights[name]) for name in readers]
        found = output_error(config, weights, site, states, readers)
        assert found is not None
        layer, total = module.layers[0], 0.0
        for each in states:
            outputs = []
            for matrices in ([weights[name] for name in readers], rounded):
                part = layer.self_attn if site == "attn" else layer.mlp
                for name, matrix in zip(readers, matrices, strict=True):
                    getattr(part, f"{name}_proj").weight.data = matrix
                positions = torch.arange(len(each))[None]
                x = each[None]
                attended = layer.self_attn(
                    layer.input_layernorm(x),
                    position_embeddings=module.rotary_emb(x, positions),
                    attention_mask=None,
                )[0]
                after = x + attended
                out = (
                    attended if site == "attn" else layer.mlp(layer.post_attention_layernorm(after))
                )
                outputs.append(out.detach())
                for name in readers:
                    getattr(part, f"{name}_proj").weight.data = weights[name]
            total += float((outputs[0] - outputs[1]).square().mean())
        assert found(rounded) == pytest.approx(total, rel=1e-3)
    assert output_error(config, weights, "down", states, ["down"]) is None


def test_the_divergence_is_that_of_the_models_predictions(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    out, figures, _ = finished(folders["llama"], tmp_path / "out", Grid(3, 32))
    total = 0.0
    for text in TEXTS[4:]:
        predicted, moved = (
            prefill(load_torch(open_checkpoint(folder)), text).log_softmax(-1)
            for folder in (folders["llama"], out)
        )
        total += float((predicted.exp() * (predicted - moved)).sum(-1).mean())
    assert figures["divergence"] == pytest.approx(total / len(TEXTS[4:]), rel=0.01)


def test_a_job_that_was_killed_goes_on_to_the_same_bytes(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    grid = Grid(4, 32)
    whole, figures, _ = finished(folders["llama"], tmp_path / "whole", grid)
    killed = job(folders["llama"], tmp_path / "out", grid)
    for done in killed.run():
        if done == 1:
            break
    assert not killed.folder.exists()
    again = job(folders["llama"], tmp_path / "out", grid)
    assert list(again.run()) == [1, 2]
    assert again.finish() == figures
    files = sorted(path.name for path in whole.iterdir())
    assert files == sorted(path.name for path in again.folder.iterdir())
    assert all((whole / n).read_bytes() == (again.folder / n).read_bytes() for n in files)
    assert not again.partial.exists()


def test_other_options_do_not_continue_a_job(folders: dict[str, Path], tmp_path: Path) -> None:
    next(job(folders["llama"], tmp_path / "out", Grid(4, 32)).run())
    other = job(folders["llama"], tmp_path / "out", Grid(3, 32))
    with pytest.raises(ConfigError, match=r"out.partial is an unfinished job with other options"):
        next(other.run())
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists: choose another folder"):
        job(folders["llama"], tmp_path / "out", Grid(4, 32))


def test_awq_wants_a_text(folders: dict[str, Path], tmp_path: Path) -> None:
    recipe = Recipe("awq", Grid(4, 32), "awq")
    with pytest.raises(ConfigError, match="give --calib FILE"):
        RoundJob(open_checkpoint(folders["llama"]), [], [], tmp_path / "out", {}, recipe=recipe)


def test_weights_that_are_no_numbers_are_named(folders: dict[str, Path], tmp_path: Path) -> None:
    model = hf_model("llama", intermediate_size=64)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = torch.nan
    model.save_pretrained(tmp_path / "m")
    with pytest.raises(LoadError, match=r"model.layers.1.mlp.up_proj.weight' holds NaN"):
        list(job(tmp_path / "m", tmp_path / "out", Grid(4, 32)).run())


@pytest.mark.parametrize("family", ["mistral", "gemma3", "olmo2", "lfm2", *ROUTED])
def test_the_native_kernels_run_what_was_written(
    folders: dict[str, Path], tmp_path: Path, family: str
) -> None:
    """Codes are those of the nearest, experts' among them; the kernels compute what torch does of them."""
    grid = Grid(4, 32)
    out, _, _ = finished(folders[family], tmp_path / "out", grid, "rtn", "compressed-tensors")
    checkpoint = open_checkpoint(out)
    config, _ = read_config(checkpoint)
    old, new = weights_of(folders[family]), weights_of(out)
    assert old.keys() == new.keys()
    for layer in range(config.num_layers):
        for name in (f"layers.{layer}.{short}" for short in matrices_of(config, layer)):
            torch.testing.assert_close(new[name], grid.nearest(old[name]), rtol=0, atol=0)
    try:
        model = load_model(checkpoint)
    except LoadError as error:
        pytest.skip(str(error))
    assert not isinstance(model, Decoder)
    forms = {name: form for name, form, _, _ in model.packed()}  # type: ignore[attr-defined]
    assert "q4_z" in forms.values()
    native, torch_ = (prefill(each, TEXTS[5]) for each in (model, load_torch(checkpoint)))
    most = 0.3 if family in ROUTED else 0.1
    assert (native - torch_).std() < most * torch_.std()


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_an_expert_is_calibrated_by_the_rows_that_chose_it(
    folders: dict[str, Path], tmp_path: Path, method: Method
) -> None:
    """Where few did it is rounded to nearest, and counted."""
    grid = Grid(3, 32)
    _, figures, made = finished(folders["mixtral"], tmp_path / "out", grid, method)
    plain = job(folders["mixtral"], tmp_path / "plain", grid)
    plain.recipe = Recipe("rtn", grid, plain.recipe.layout)
    list(plain.run())
    for name, error in made.errors.items():
        assert "expert" not in name or error < plain.errors[name]
    assert figures["rare_experts"] == sum(made.rare.values()) == 0
    texts = [text[:8] for text in TEXTS[:2]]
    few = RoundJob(
        open_checkpoint(folders["mixtral"]), texts, [], tmp_path / "few", {}, recipe=made.recipe
    )
    list(few.run())
    assert few.figures()["rare_experts"] == 12
    assert few.rare == {"0": 6, "1": 6}


@pytest.mark.parametrize("method", ["rtn", "awq", "gptq", "awq+gptq"])
def test_no_tensor_of_a_step_is_where_torch_puts_it_by_itself(
    method: Method, folders: dict[str, Path], tmp_path: Path
) -> None:
    """What names no device is on `meta` inside, and cannot be mixed with what the job has on its own."""
    checkpoint = open_checkpoint(folders["llama"])
    recipe = Recipe(method, Grid(4, 32), "compressed-tensors")
    job = RoundJob(checkpoint, TEXTS, TEXTS[:2], tmp_path / "made", {}, recipe=recipe)
    job._claim()
    _, states = job._resume()
    with torch.device("meta"):
        job.step(0, states)
    assert {each.device.type for each in states.values()} == {"cpu"}
