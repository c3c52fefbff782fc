"""Scripts as users of vLLM and of llama-cpp-python write them run here after a change of their import lines.

They do what the two projects' public examples do, in words of our own; MODEL stands for the model's file. What each
prints is a pattern in the file of the same name.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from forerun.compat import llama_cpp, vllm

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*/*.py"))


def test_there_are_twelve_of_each():
    kinds = [path.parent.name for path in SCRIPTS]
    assert kinds.count("vllm") == kinds.count("llama_cpp") == 12


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_script_runs_with_another_import_line(path, default_model, capsys):
    lines = path.read_text().splitlines()
    changed = re.compile(rf"^(from|import) {path.parent.name}\b")
    lines = [changed.sub(rf"\1 forerun.compat.{path.parent.name}", line) for line in lines]
    text = "\n".join(lines).replace("MODEL", str(default_model))
    exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.rstrip("\n")
    assert re.fullmatch(path.with_suffix(".out").read_text().rstrip("\n"), printed), printed


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("from forerun.compat.vllm import SamplingParam", "did you mean 'SamplingParams'?"),
        ("from forerun.compat.vllm import PoolingParams", "LLM.embed"),
        ("from forerun.compat.vllm.sampling_params import BeamSearchParams", "no beam search"),
        ("from forerun.compat.vllm.sampling_params import GuidedDecodingParams", "StructuredOut"),
        ("from forerun.compat.llama_cpp import LLama", "did you mean 'Llama'?"),
        ("from forerun.compat.llama_cpp import llama_cpp", "the C interface is not here"),
        ("from forerun.compat.llama_cpp.llama_speculative import LlamaDraftModel", "Drafter"),
    ],
)
def test_a_name_that_is_not_here_is_told_with_the_nearest(line, message):
    with pytest.raises(ImportError, match=re.escape(message)):
        exec(line)


@pytest.mark.parametrize(
    "line",
    [
        "from forerun.compat.vllm import outputs, sampling_params",
        "from forerun.compat.llama_cpp import llama_speculative",
    ],
)
def test_modules_of_a_package_are_imported_by_from(line):
    """In a process that has imported none of them yet."""
    subprocess.run([sys.executable, "-c", line], check=True)


@pytest.mark.parametrize(
    ("cls", "name", "message"),
    [
        (vllm.LLM, "beam_search", "LLM has no 'beam_search' here: there is no beam search"),
        (vllm.LLM, "genrate", "did you mean 'generate'?"),
        (vllm.AsyncLLM, "get_tokeniser", "did you mean 'get_tokenizer'?"),
        (llama_cpp.Llama, "create_completions", "did you mean 'create_completion'?"),
        (llama_cpp.Llama, "save_state", "prompts are kept by themselves"),
    ],
)
def test_a_method_that_is_not_here_is_told_with_the_nearest(cls, name, message):
    with pytest.raises(AttributeError, match=re.escape(message)):
        getattr(object.__new__(cls), name)
