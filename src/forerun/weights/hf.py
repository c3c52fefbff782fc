"""Hugging Face folders: config.json, memory-mapped safetensors files, the tokenizer's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

from forerun.core.errors import LoadError, short_repr
from forerun.core.params import SamplingParams
from forerun.system.opened import OpenedFile, read_json
from forerun.text import generation
from forerun.text.hf_tokenizer import tokenizer_from_folder
from forerun.text.tokenizer import Tokenizer
from forerun.weights.base import Checkpoint
from forerun.weights.codes import FORMATS
from forerun.weights.gguf_roles import is_model, models_among
from forerun.weights.hf_adapter import check_adapter
from forerun.weights.hf_quantized import join, quantization_config
from forerun.weights.multimodal import language_model_of, with_prefix
from forerun.weights.safetensors_file import FLOATS, read_tensors
from forerun.weights.stored import StoredTensor


class HfCheckpoint(Checkpoint):
    """An open folder. Raises LoadError naming the file in question if it cannot be read."""

    kind = "hf"

    def __init__(self, path: Path) -> None:
        if not (path / "config.json").is_file():
            raise _no_config(path)
        check_adapter(path)
        self.path = path
        self.files: list[OpenedFile] = []
        self.config: Mapping[str, object] = read_json(path / "config.json", self.files)
        architectures = self.config.get("architectures")
        if not isinstance(architectures, list) or not architectures:
            architectures = [self.config.get("model_type")]  # by which transformers loads it
        if not isinstance(architectures[0], str):
            raise LoadError(f"{path / 'config.json'} names no architectures and no model_type")
        self.architecture = architectures[0]
        self._tensors: Mapping[str, StoredTensor] = folder_tensors(path, self.files)
        quantization = quantization_config(
            self.config,
            awq=read_json(path / "quant_config.json", self.files),
            gptq=read_json(path / "quantize_config.json", self.files),
            modelopt=read_json(path / "hf_quant_config.json", self.files),
        )
        if quantization is not None:
            self._tensors = join(path, quantization, self._tensors)
        self.config, self._tensors = language_model_of(
            self.architecture, self.config, self._tensors
        )
        self._tensors = with_prefix(self._tensors)

    def tensor(self, name: str) -> StoredTensor:
        """Return one tensor as stored. Raises LoadError with the closest names, or naming its type."""
        tensor = super().tensor(name)
        if tensor.format.name not in FORMATS:
            raise LoadError(
                f"{self.path}: tensor '{name}' is stored as {tensor.format.name}, "
                f"which is not supported (allowed: {', '.join(FLOATS)})"
            )
        return tensor

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer in the folder of the weights. Raises LoadError."""
        num_rows = self.config.get("vocab_size")
        tokenizer = tokenizer_from_folder(
            self.path, num_rows if isinstance(num_rows, int) else None
        )
        return self._checked(tokenizer, "the embedding ('vocab_size' of config.json)", num_rows)

    def default_params(self) -> SamplingParams:
        """Read the sampling settings of generation_config.json. Raises LoadError."""
        path = self.path / "generation_config.json"
        return generation.from_hf(read_json(path), str(path))


def folder_tensors(folder: Path, opened: list[OpenedFile]) -> dict[str, StoredTensor]:
    """Map the tensors of a folder's safetensors files. Raises LoadError."""
    tensors: dict[str, StoredTensor] = {}
    for file, names in _weight_files(folder, opened).items():
        tensors |= read_tensors(file, names, opened)
    return tensors


def _no_config(path: Path) -> LoadError:
    check_adapter(path)
    ggufs = models_among(file.name for file in path.glob("*.gguf") if is_model(file))
    hint = f"did you mean {path / ggufs[0]}?" if ggufs else "give a GGUF file or such a folder"
    return LoadError(f"{path} has no config.json: it is not a Hugging Face model folder; {hint}")


def _weight_files(folder: Path, opened: list[OpenedFile]) -> dict[Path, set[str]]:
    """Return the safetensors files: the single one, else those of the index with the tensors it says they have."""
    single = folder / "model.safetensors"
    if single.is_file():  # whatever an index says that was left behind
        return {single: set()}
    index = folder / "model.safetensors.index.json"
    listed = read_json(index, opened)
    if opened[-1].state:
        return _of_index(index, listed)
    found = sorted(path.name for path in folder.glob("*.safetensors") if _may_be_weights(path.name))
    if len(found) == 1:  # as AutoGPTQ named them: gptq_model-4bit-128g.safetensors
        return {folder / found[0]: set()}
    if any(folder.glob("pytorch_model*.bin")):
        raise LoadError(
            f"{folder} holds pytorch_model.bin, which can run code when it is read: convert it to "
            "safetensors with transformers' AutoModelForCausalLM.from_pretrained(...)"
            ".save_pretrained(...)"
        )
    others = f", but {', '.join(found)}: name one of them model.safetensors" if found else ""
    raise LoadError(
        f"{folder} has no model.safetensors and no model.safetensors.index.json{others}"
    )


def _may_be_weights(name: str) -> bool:
    """Tell whether a safetensors file may be a whole model's under another name."""
    return not name.startswith((".", "adapter_", "consolidated", "optimizer", "training_"))


def _of_index(index: Path, listed: Mapping[str, object]) -> dict[Path, set[str]]:
    """Return the files that an index names, with the tensors it says they have. Raises LoadError."""
    weight_map = listed.get("weight_map")
    if not isinstance(weight_map, dict):
        raise LoadError(f"{index} has no weight_map")
    files: dict[Path, set[str]] = {}
    for name, file in weight_map.items():
        if _leads_out(file):
            raise LoadError(
                f"{index} names {short_repr(file)} for tensor '{name}': a file in the model's folder is needed"
            )
        files.setdefault(index.parent / file, set()).add(name)
    return files


def _leads_out(file: object) -> bool:
    """Tell whether a name is none, or leads out of its folder on any system; links in the folder lead anywhere."""
    if not isinstance(file, str) or not file or "\0" in file:
        return True
    return any(
        path.anchor != "" or ".." in path.parts
        for path in (PurePosixPath(file), PureWindowsPath(file))
    )
