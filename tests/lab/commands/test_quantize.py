"""`forerun quantize` from the command line: a model in, a folder that answers out, and one-line refusals."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from forerun.drafters.base.vocabulary import fingerprint
from forerun.weights.checkpoint import open_checkpoint
from tests.cli.helpers import the_json
from tests.weights.files import byte_level_vocabulary

WIDTH, INNER, WORDS = 32, 64, " ".join(f"hello {i} world" for i in range(400))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random llama with a tokenizer."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tokens, types, merges = byte_level_vocabulary()
    tokens += [f"[PAD{i}]" for i in range(5)]
    types += [gguf.TokenType.UNUSED] * 5
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokens.index("<|endoftext|>"))
    random = np.random.default_rng(0)
    half = WIDTH // 2
    shapes = {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "attn_q": (WIDTH, WIDTH)}
    shapes |= {"attn_k": (half, WIDTH), "attn_v": (half, WIDTH), "attn_output": (WIDTH, WIDTH)}
    shapes |= {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
    whole = {f"blk.{i}.{n}": shape for i in range(2) for n, shape in shapes.items()}
    whole |= {"token_embd": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    for name, shape in whole.items():
        values = random.standard_normal(shape) * (0.2 if len(shape) == 2 else 1)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(WORDS)
    return path


def test_a_gguf_becomes_an_awq_folder_that_answers(
    forerun, model: Path, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ("quantize", "-m", model, "--calib", text, "--calib-tokens", 512, "-o", out)
    code, printed, _ = forerun(*arguments, "--json")
    report = the_json(printed)
    assert code == 0
    assert report["format"] == "awq"
    assert report["group"] == 32
    assert report["ppl_before"] > 1 < report["ppl_after"]
    assert len(report["errors"]) == 14
    code, printed, _ = forerun("generate", "-m", out, "--raw", "--max-tokens", 3, "--json", "hello")
    assert code == 0
    assert the_json(printed)
    before, after = (open_checkpoint(path).tokenizer() for path in (model, out))
    prompt = "hello wo 12 <tool> é"
    assert before.encode(prompt) == after.encode(prompt)
    assert (before.eos_ids, after.decode(after.encode(prompt))) == (after.eos_ids, prompt)
    assert fingerprint(before) == fingerprint(after)  # so what ships for a model serves its folder
    code, printed, _ = forerun("eval", "ppl", text, "-m", out, "--limit-tokens", 60, "--json")
    assert (code, the_json(printed)["quant"]) == (0, "Q4_Z")
    code, _, error = forerun(*arguments)
    assert (code, "exists: choose another folder" in error) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "awq"), "method awq needs a text to calibrate on: give --calib FILE"),
        (("--method", "aqw"), "unknown method 'aqw': did you mean 'awq'?"),
        (("--method", "gptq", "--no-clip"), "--no-clip is for --method awq: leave it out"),
        (("--threads", 0), "threads must be at least 1, got 0"),
        (("--bits", 5), "--bits is 5, but must be one of 3, 4, 8"),
        (("--group", 128), "groups of 128 do not divide all widths of this model (32, 64)"),
        (("--bits", 3, "--format", "awq"), "format awq holds 4 bits in groups"),
        (("--format", "gguf"), "unknown format 'gguf'"),
        (("--calib", "missing.txt"), "no such file: missing.txt"),
        (("--calib-tokens", 3), "calib_tokens must be at least 512"),
        (("--method", "flatten"), "method flatten needs a text to calibrate on: give --calib FILE"),
        (("--method", "flatten", "--bits", 3), "--bits 3 has no meaning for --method flatten"),
        (("--method", "flatten", "--group", 32), "--group 32 has no meaning for --method flatten"),
        (("--method", "flatten", "--bound", -1), "--bound is -1, but must not be negative"),
        (("--bound", 1), "--bound 1.0 is for --method flatten"),
        (("--bits", 0), "--bits is 0, but must be one of 3, 4, 8"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    forerun, model: Path, tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    code, _, error = forerun("quantize", "-m", model, "-o", tmp_path / "out", *arguments)
    assert code == 2
    assert message in " ".join(error.split())
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()


def test_a_text_that_is_too_short_is_refused(
    forerun, model: Path, text: Path, tmp_path: Path
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("hello")
    for given in (("--calib", short), ("--calib", text, "--eval", short)):
        code, _, error = forerun("quantize", "-m", model, "-o", tmp_path / "out", *given)
        assert code == 2
        assert "short.txt has fewer than 64 tokens: give a longer text" in " ".join(error.split())


def test_a_flattened_folder_answers(forerun, model: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("quantize", "-m", model, "--method", "flatten", "--calib", text)
    code, printed, _ = forerun(*arguments, "--calib-tokens", 512, "-o", out)
    assert code == 0
    assert "512 tokens to calibrate on, 512 others to measure on" in " ".join(printed.split())
    assert "of multiplications in 4 bits" in printed
    assert "% in 8, the others in 8 with a scale for each group" in " ".join(printed.split())
    code, printed, _ = forerun("generate", "-m", out, "--raw", "--max-tokens", 3, "--json", "hello")
    assert code == 0
    assert the_json(printed)


def test_rounding_to_nearest_needs_no_text(forerun, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, printed, _ = forerun("quantize", "-m", model, "--method", "rtn", "-o", out)
    assert code == 0
    assert "perplexity" not in printed
    assert (out / "config.json").is_file()
