"""GGUF files: read like the reference reader does, and refused with one line when they are damaged."""

from __future__ import annotations

import mmap
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.errors import LoadError
from forerun.weights import gguf_header
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.codes import FORMATS
from forerun.weights.gguf_header import TENSOR_TYPES, read_header
from forerun.weights.stored import StoredTensor
from tests.weights.files import matrix, write_gguf
from tests.weights.raw_gguf import Entry, RawGguf

Type = gguf.GGMLQuantizationType


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model file in little: a matrix, a vector, a tokenizer."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    tensors = {"blk.0.attn_q.weight": matrix(6, 64), "output_norm.weight": matrix(64, seed=1)}
    return write_gguf(path, tensors, tokenizer="gpt2", chat_template="{{ messages[0].content }}")


def test_tensors_come_back_as_they_were_written(small: Path) -> None:
    checkpoint = open_checkpoint(small)
    assert checkpoint.kind == "gguf"
    assert checkpoint.architecture == "llama"
    assert checkpoint.names() == {"blk.0.attn_q.weight", "output_norm.weight"}
    weight, norm = (checkpoint.tensor(name) for name in sorted(checkpoint.names()))
    assert (weight.shape, weight.nbytes, weight.format.name) == ((6, 64), 6 * 64 * 4, "f32")
    assert (norm.shape, norm.data.shape) == ((64,), (1, 256))
    assert np.array_equal(weight.dequantize(), matrix(6, 64))
    assert np.array_equal(norm.dequantize(), matrix(64, seed=1))


def test_values_are_in_memory_of_their_own(small: Path) -> None:
    tensor = open_checkpoint(small).tensor("output_norm.weight")
    before = tensor.dequantize()
    tensor.dequantize()[:] = 0
    assert np.array_equal(tensor.dequantize(), before)


def test_a_released_tensor_is_read_again(small: Path) -> None:
    checkpoint = open_checkpoint(small)
    for name in sorted(checkpoint.names()):
        tensor = checkpoint.tensor(name)
        before = tensor.dequantize()
        tensor.release()
        assert np.array_equal(tensor.dequantize(), before)


def test_only_mapped_memory_is_released() -> None:
    tensor = stored("q8_0")
    before = tensor.dequantize()
    tensor.release()
    tensor.rows(slice(1, 3)).release()
    assert np.array_equal(tensor.dequantize(), before)


def test_the_config_is_the_metadata_without_the_vocabulary(small: Path) -> None:
    config = open_checkpoint(small).config
    assert config["llama.block_count"] == 2
    assert config["llama.rope.freq_base"] == 10000.0
    assert config["tokenizer.ggml.pre"] == "smollm"
    assert "tokenizer.ggml.tokens" not in config
    assert "tokenizer.ggml.merges" not in config


def stored(name: str, num_rows: int = 5, width: int = 512) -> StoredTensor:
    """Random bytes as a tensor; the halves in them are kept finite by clearing their top exponent bit."""
    format = FORMATS[name]
    shape = (num_rows, width // format.block * format.block_nbytes)
    data = np.random.default_rng(7).integers(0, 0xBF, shape, dtype=np.uint8)
    data &= 0xBB
    if name == "iq1_m":  # whose factor's exponent is spread over the last bytes
        data[:, 7::8] &= 0xBF
    return StoredTensor("w", (num_rows, width), format, data)


BLOCKS = [name for name, format in FORMATS.items() if not format.is_flat and name != "f8"]
READ = [name for name in BLOCKS if not FORMATS[name].has_zero and name not in ("q8_m", "nvfp4")]
"""The formats that GGUF has; blocks of NVFP4 come with a scale beside them."""
QUANTIZED = [name for name in READ if FORMATS[name].group is not None]
WRITABLE = {name: FORMATS[name].bits for name in READ if "_k" not in name and "iq" not in name}
WRITABLE |= {"f16": 11, "bf16": 8, "mxfp4": 2, "tq1_0": 1, "tq2_0": 1}
"""Precision of the formats that the reference can write; it only reads the K-quants, and the IQ."""


@pytest.mark.parametrize("name", [name for name in WRITABLE if name != "f32"])
def test_values_come_back_but_for_the_rounding(tmp_path: Path, name: str) -> None:
    values = matrix(4, 768)
    path = write_gguf(tmp_path / "q.gguf", {"w": values}, dtype=Type[name.upper()])
    tensor = open_checkpoint(path).tensor("w")
    assert tensor.nbytes == values.size * tensor.format.block_nbytes / tensor.format.block
    values_read = tensor.dequantize()
    assert values_read.dtype == np.float32
    step = np.abs(values).max() / 2 ** (WRITABLE[name] - 1)
    assert np.abs(values_read - values).max() <= step


@pytest.mark.parametrize("name", READ)
def test_every_format_reads_like_the_reference(name: str) -> None:
    tensor, dtype = stored(name), Type[name.upper()]
    assert gguf.GGML_QUANT_SIZES[dtype] == (tensor.format.block, tensor.format.block_nbytes)
    values = gguf.dequantize(tensor.data, dtype).copy()
    read = tensor.dequantize()
    assert np.array_equal(read.view(np.int32), values.view(np.int32)), "to the last bit"


@pytest.mark.parametrize("name", QUANTIZED)
def test_codes_are_what_the_format_says(name: str) -> None:
    tensor, format = stored(name), FORMATS[name]
    codes = tensor.codes()
    assert codes.codes.dtype == np.int8
    assert codes.codes.shape == tensor.shape
    assert codes.scales.dtype == np.float32
    assert codes.scales.shape == (5, 512 // format.group)
    assert (codes.mins is not None) == format.has_min
    assert codes.mins is None or codes.mins.shape == codes.scales.shape
    low = 0 if format.has_min else -1 if name.startswith("tq") else -(1 << (format.bits - 1))
    allowed = format.values or range(low, low + (1 << format.bits))
    assert np.isin(codes.codes, list(allowed)).all()
    assert len(np.unique(codes.codes)) > 1
    with np.errstate(over="ignore"):
        as_half = codes.scales.astype(np.float16).astype(np.float32)
    is_half = (format.block == 32 and name != "mxfp4") or name.startswith("tq")
    assert np.array_equal(as_half, codes.scales) == is_half
    scales, mins = (
        0 if x is None else x.repeat(format.group, 1) for x in (codes.scales, codes.mins)
    )
    assert np.array_equal(tensor.dequantize(), scales * codes.codes + mins)


def test_every_exponent_of_mxfp4_reads_like_the_reference() -> None:
    data = np.tile(np.arange(17, dtype=np.uint8) * 15, (252, 1))
    data[:, 0] = np.arange(252)  # above them 12 times the scale is beyond fp32
    tensor = StoredTensor("w", (252, 32), FORMATS["mxfp4"], data)
    values = gguf.dequantize(data, Type.MXFP4)
    assert tensor.dequantize().tobytes() == values.tobytes()


def test_floats_have_no_codes() -> None:
    with pytest.raises(ValueError, match="'w' is stored as bf16: it has no codes"):
        stored("bf16").codes()


def test_k_quants_come_back_as_their_layout_says() -> None:
    """One block by hand: scale 2, minimum 1, sub-scales 3 and sub-minima 5, all nibbles 7."""
    halves = np.array([2.0, 1.0], np.float16).view(np.uint8)
    # The first four of the eight 6-bit pairs lie whole in a byte; the others' low bits share one.
    scales = np.array([3] * 4 + [5] * 4 + [3 | 5 << 4] * 4, np.uint8)
    block = np.concatenate((halves, scales, np.full(128, 0x77, np.uint8)))
    tensor = StoredTensor("w", (1, 256), FORMATS["q4_k"], block.reshape(1, -1))
    assert np.array_equal(tensor.dequantize(), np.full((1, 256), 2.0 * 3 * 7 - 1.0 * 5))


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("index", [slice(1, 3), np.array([4, 0, 0])], ids=["slice", "array"])
def test_rows_are_taken_as_stored(name: str, index: slice) -> None:
    tensor = stored(name)
    some = tensor.rows(index)
    assert some.format == tensor.format
    assert some.nbytes == tensor.nbytes // 5 * some.shape[0]
    assert np.array_equal(some.dequantize(), tensor.dequantize()[index])


def test_elements_of_a_vector_are_taken_unless_it_is_quantized() -> None:
    data = matrix(64).view(np.uint8).reshape(1, -1)
    vector = StoredTensor("bias", (64,), FORMATS["f32"], data)
    some = vector.rows(slice(3, 9))
    assert some.shape == (6,)
    assert np.array_equal(some.dequantize(), vector.dequantize()[3:9])
    with pytest.raises(LoadError, match="'bias' is a quantized vector"):
        StoredTensor("bias", (32,), FORMATS["q8_0"], data[:, :34]).rows(slice(0, 1))


def test_the_header_is_read_like_the_reference_reader_does(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -100)
    writer.add_uint16("a.u16", 60000)
    writer.add_int16("a.i16", -30000)
    writer.add_uint32("a.u32", 4_000_000_000)
    writer.add_int32("a.i32", -2_000_000_000)
    writer.add_uint64("a.u64", 2**63 + 1)
    writer.add_int64("a.i64", -(2**62))
    writer.add_float32("a.f32", 0.1)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "wörd 🙂")
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_array("a.floats", [0.5, -1.5])
    writer.add_array("a.bools", [True, False])
    writer.add_array("a.texts", ["", "b", "ü"])
    writer.add_tensor("w", matrix(2, 3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_read_like_the_reference(path)


@pytest.mark.slow
def test_the_default_models_header_is_read_like_the_reference_reader_does(
    default_model: Path,
) -> None:
    assert_read_like_the_reference(default_model)


def assert_read_like_the_reference(path: Path) -> None:
    with path.open("rb") as file:
        header = read_header(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    reference = gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in reference.fields.items()}
    assert header.metadata == {k: v for k, v in fields.items() if not k.startswith("GGUF.")}
    checkpoint = open_checkpoint(path)
    for tensor in reference.tensors:
        ours = checkpoint.tensor(tensor.name)
        assert ours.shape == tuple(tensor.shape.tolist())[::-1]
        assert ours.format.name == tensor.tensor_type.name.lower()
        assert ours.data.tobytes() == tensor.data.tobytes()


def test_an_unknown_tensor_gets_the_closest_names(small: Path) -> None:
    with pytest.raises(LoadError, match=r"no tensor 'blk.0.attn_k.weight'.*blk.0.attn_q.weight"):
        open_checkpoint(small).tensor("blk.0.attn_k.weight")


@given(name=st.sampled_from(READ), seed=st.integers(0, 2**32 - 1))
def test_any_bytes_read_like_the_reference(name: str, seed: int) -> None:
    format, random = FORMATS[name], np.random.default_rng(seed)
    data = random.integers(0, 256, (2, 512 // format.block * format.block_nbytes), np.uint8)
    with np.errstate(all="ignore"):  # their factors may be infinite
        values = gguf.dequantize(data, Type[name.upper()])
        read = StoredTensor("w", (2, 512), format, data).dequantize()
    assert np.array_equal(read, values, equal_nan=True)


def nvfp4_file(path: Path, scales: np.ndarray | None) -> np.ndarray:
    """A file with two experts' matrices in NVFP4, all of e4m3's scales among them; what the reference reads of them."""
    random = np.random.default_rng(5)
    data = random.integers(0, 256, (2, 4, 2, 36), dtype=np.uint8)
    data[..., :4] = np.arange(64).reshape(2, 4, 2, 4) * 2 + random.integers(0, 2, (2, 4, 2, 4))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("up.weight", data.reshape(2, 4, -1), raw_dtype=Type.NVFP4)
    if scales is not None:
        writer.add_tensor("up.scale", scales)
        writer.add_tensor("up.input_scale", scales)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf.dequantize(data.reshape(8, -1), Type.NVFP4).reshape(2, 4, 128)


@pytest.mark.parametrize("scales", [None, [0.5], [2.0, 0.25]])
def test_nvfp4_reads_like_the_reference_times_its_scales(
    tmp_path: Path, scales: list[float] | None
) -> None:
    if not hasattr(Type, "NVFP4"):
        pytest.skip("gguf is too old to know NVFP4")
    factors = None if scales is None else np.float32(scales)
    expected = nvfp4_file(tmp_path / "m.gguf", factors)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.names() == {"up.weight"}
    tensor = checkpoint.tensor("up.weight")
    assert (tensor.nbytes, tensor.format.name) == (8 * 2 * 36, "nvfp4")
    times = np.float32(1) if factors is None else factors.reshape(-1, 1, 1)
    read = tensor.merged().dequantize().reshape(2, 4, 128)
    assert np.array_equal(read, expected * times)
    experts = tensor.merged().rows(slice(4, 8)).dequantize()
    assert np.array_equal(experts, (expected * times)[1])


def test_a_scale_of_nvfp4_that_does_not_fit_is_named(tmp_path: Path) -> None:
    if not hasattr(Type, "NVFP4"):
        pytest.skip("gguf is too old to know NVFP4")
    nvfp4_file(tmp_path / "m.gguf", np.ones(3, np.float32))
    with pytest.raises(LoadError, match=r"tensor 'up\.scale' has 3 numbers for 'up\.weight'"):
        open_checkpoint(tmp_path / "m.gguf")


def test_a_type_that_llama_cpp_has_is_refused_in_a_line(tmp_path: Path) -> None:
    """What there is, what can be read, what to do."""
    raw = RawGguf({"general.architecture": "llama"})
    raw.entries.append(Entry("blk.0.ffn_gate.weight", (256, 2), 41, 0))
    (tmp_path / "m.gguf").write_bytes(raw.to_bytes() + bytes(2 * 66))
    with pytest.raises(LoadError) as caught:
        open_checkpoint(tmp_path / "m.gguf")
    message = str(caught.value)
    assert "\n" not in message
    assert "tensor 'blk.0.ffn_gate.weight' is stored as Q1_0, which is not supported" in message
    known = [*READ, "nvfp4"]
    assert all(name.upper() in message for name in known)
    assert not any(f"{name.upper()}," in message for name in FORMATS if name not in known)
    assert "take the model's file in one of these" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"GGU", "not a GGUF file"),
        (b"PK\x03\x04 a zip archive", "not a GGUF file"),
        (b"GGUF\x01\x00\x00\x00" + bytes(16), "version 1 is not supported"),
        (b"GGUF\x00\x00\x00\x03" + bytes(16), "version 50331648 is not supported"),
        (b"GGUF\x03\x00\x00\x00" + b"\xff" * 16, "truncated"),
        (b"GGUF\x03\x00\x00\x00" + bytes(16), "no general.architecture"),
    ],
)
def test_what_is_no_gguf_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=message) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="does not exist"):
        open_checkpoint(tmp_path / "none.gguf")


@given(fraction=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused_in_one_line(small: Path, fraction: float) -> None:
    content = small.read_bytes()
    path = small.with_name("truncated.gguf")
    path.unlink(missing_ok=True)  # writing over a file waits for the disk
    path.write_bytes(content[: int(len(content) * fraction)])
    with pytest.raises(LoadError) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)


@given(data=st.data())
def test_a_damaged_file_gives_a_load_error_or_works(small: Path, data: st.DataObject) -> None:
    content = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    path = small.with_name("damaged.gguf")
    path.unlink(missing_ok=True)  # writing over a file waits for the disk
    path.write_bytes(content)
    try:
        checkpoint = open_checkpoint(path)
        for name in checkpoint.names():
            checkpoint.tensor(name).dequantize()
        checkpoint.tokenizer().encode("hello")
    except LoadError:
        return  # Anything else is a bug of ours, and fails the test.


def test_the_numbers_of_types_are_those_of_ggml() -> None:
    assert {kind.value: kind.name for kind in gguf.GGMLQuantizationType} == TENSOR_TYPES
    assert {kind.value: kind.name for kind in gguf.GGUFValueType} == {
        kind.value: kind.name for kind in gguf_header._Kind
    }
    assert gguf.GGUF_DEFAULT_ALIGNMENT == gguf_header.DEFAULT_ALIGNMENT


def test_a_value_that_is_not_utf_8_is_no_reason_to_refuse_a_model(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "latin.gguf", strings={"general.author": "Zoe!"})
    path.write_bytes(path.read_bytes().replace(b"Zoe!", b"Zo\xeb!"))
    assert open_checkpoint(path).config["general.author"] == "Zo\ufffd!"
