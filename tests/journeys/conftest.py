"""What the journeys share: the default model, loaded once, and a way to run a script as its author wrote it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from forerun import LLM, RequestOutput, SamplingParams

Script = Callable[[str], str]
PROMPTS = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
GREEDY = SamplingParams(temperature=0, max_tokens=12)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


@pytest.fixture(scope="session")
def smollm2(default_model: Path) -> LLM:
    """The default model with the default drafter."""
    return LLM(model=str(default_model), max_model_len=1024)


@pytest.fixture
def run_vllm(default_model: Path, capsys: pytest.CaptureFixture[str]) -> Script:
    """Run a vLLM script with only its imports and its model replaced; what it printed."""

    def run(script: str) -> str:
        text = re.sub(r"\bfrom vllm\.v1\.metrics\.reader\b", "from forerun.engine.metrics", script)
        text = re.sub(r"\bfrom vllm\b", "from forerun", text)
        text = re.sub(r'model="[^"]*"', f"model={str(default_model)!r}", text)
        text = text.replace('"vllm:', '"forerun:')
        exec(compile(text, "script", "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out

    return run
