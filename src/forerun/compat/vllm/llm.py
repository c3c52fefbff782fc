"""vLLM's `LLM`, where it is not ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from forerun.compat import absent, calls
from forerun.core.errors import RequestError, short_repr
from forerun.engine import vectors
from forerun.engine.metrics import Metric
from forerun.engine.vectors import PoolingRequestOutput
from forerun.llm import LLM as Ours
from forerun.text.prompt import Prompt, encode_all, end_texts

_INSTEAD = {
    "beam_search": "there is no beam search: SamplingParams(n=...) gives several answers",
    "classify": "models generate and embed: score compares texts",
    "sleep": "close releases the weights; forerun serve --sleep-idle-seconds does so when idle",
    "wake_up": "make the LLM again after close",
    "collective_rpc": "a model runs in this process: llm.model is it",
    "apply_model": "a model runs in this process: llm.model is it",
    "llm_engine": "it is engine, and loop runs its requests",
    "start_profile": "forerun bench measures",
}


class LLM(Ours):
    """`forerun.LLM` with vLLM's `encode`, and its metrics under vLLM's names."""

    def encode(  # type: ignore[override]  # vLLM's
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: None = None,
        *,
        pooling_task: str = "embed",
        use_tqdm: bool | None = None,
        **others: object,
    ) -> list[PoolingRequestOutput]:
        """Return the vector of each prompt (`embed`), or those of its tokens (`token_embed`): `outputs.data`.

        Token ids are `get_tokenizer().encode`'s. Raises RequestError.
        """
        calls.check(self.encode, others)
        if pooling_params is not None:
            raise RequestError("pooling_params must be left out: pooling_task says what is wanted")
        if pooling_task not in _POOLINGS:
            allowed = " or ".join(_POOLINGS)
            raise RequestError(f"pooling_task must be {allowed}, got {short_repr(pooling_task)}")
        encoded = end_texts(encode_all(prompts, self.tokenizer), self.tokenizer)
        params = vectors.params(_POOLINGS[pooling_task])
        return [PoolingRequestOutput.of(one) for one in self._run(encoded, params, use_tqdm)]

    def get_metrics(self) -> list[Metric]:
        """Return the counts since this LLM was made."""
        return [replace(one, name=f"vllm{one.name[7:]}") for one in super().get_metrics()]

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(absent.message("LLM", name, dir(type(self)), _INSTEAD))


_POOLINGS: dict[str, vectors.Pooling] = {"embed": "last", "token_embed": "none"}
