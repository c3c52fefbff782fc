"""llama-cpp-python's `Llama`, a face of `LLM`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from forerun.compat import absent, requests
from forerun.compat.chats import ChatForm
from forerun.compat.documents import (
    Document,
)
from forerun.compat.llama_cpp.answer import Answer
from forerun.compat.llama_cpp.llama_grammar import LlamaGrammar
from forerun.compat.llama_cpp.processors import as_ours
from forerun.core.errors import RequestError, unknown
from forerun.core.params import LLAMA_SAMPLERS, MAX_SEED, SamplingParams
from forerun.llm import LLM
from forerun.text.messages import Message
from forerun.text.parsing.calls import schemas_of
from forerun.text.parsing.forms import form_of
from forerun.text.prompt import Encoded, encode, encode_chat

_COMPLETION = {"max_tokens": 16, "temperature": 0.8}
_CHAT = {"max_tokens": None, "temperature": 0.2}
_BOTH = {"top_p": 0.95, "min_p": 0.05, "top_k": 40}
"""llama-cpp-python's own defaults."""
_POOLINGS = {1: "mean", 3: "last"}
_INSTEAD = {
    "eval": "create_completion and generate compute what they need",
    "sample": "generate yields tokens, logits_processor changes their logits",
    "scores": "create_completion(logprobs=...) gives log-probabilities",
    "eval_logits": "create_completion(logprobs=...) gives log-probabilities",
    "save_state": "prompts are kept by themselves; prompt_cache=FOLDER keeps them on disk",
    "load_state": "prompts are kept by themselves; prompt_cache=FOLDER keeps them on disk",
    "create_chat_completion_openai_v1": "create_chat_completion gives the same as a dictionary",
}


class LlamaRAMCache:
    """Takes what llama-cpp-python's takes: prompts are always kept here."""

    def __init__(self, *place: object, capacity_bytes: int = 0, cache_dir: str = "") -> None:
        self.capacity_bytes = capacity_bytes


class Llama:
    """Loads a GGUF and answers with OpenAI's documents. `llm` is the `LLM` that does so."""

    def __init__(
        self,
        model_path: str,
        *,
        draft_model: Any = None,
        chat_format: str | None = None,
        pooling_type: int = -1,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        """Keywords are llama-cpp-python's and `LLM`'s; `draft_model` may also be a model's name.

        The model's own chat template is used, whatever `chat_format`. Raises LoadError, ConfigError.
        """
        if draft_model is not None:
            options["drafter"] = getattr(draft_model, "drafter", None) or {
                "method": "draft_model",
                "model": draft_model,
            }
        self.llm = LLM(model_path=str(model_path), **options)
        self.model_path, self.chat_format = str(model_path), chat_format
        self._pooling: Any = _POOLINGS.get(pooling_type, "last")
        self.set_seed(seed)

    @classmethod
    def from_pretrained(cls, repo_id: str, filename: str | None = None, **options: Any) -> Self:
        """Load a file of the Hub, fetched if it is not here; `*q8_0.gguf` is the one of that quantization."""
        for name in ("additional_files", "local_dir", "local_dir_use_symlinks", "cache_dir"):
            options.pop(name, None)
        if filename is None:
            return cls(repo_id, **options)
        if filename.startswith("*"):
            return cls(f"{repo_id}:{filename.strip('*-.').removesuffix('.gguf')}", **options)
        return cls(f"{repo_id}/{filename}", **options)

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        *given: Any,
        echo: bool = False,
        stream: bool = False,
        logprobs: int | None = None,
        **others: Any,
    ) -> Any:
        """Complete a prompt; with `stream` an iterator of chunks. Raises RequestError, CapacityError."""
        others |= dict(zip(("max_tokens", "temperature", "top_p"), given, strict=False))
        params = self._params(_COMPLETION, {"logprobs": logprobs}, others)
        asked = self._infill(prompt, suffix) if suffix else encode(prompt, self.llm.tokenizer)
        shown = (asked.text or "") if echo else ""
        if echo and asked.text is None:
            shown = self.llm.tokenizer.decode(asked.token_ids)
        answer = Answer(
            self.llm.tokenizer, self.llm.submit(asked, params), None, self._called(others), shown
        )
        return answer.chunks() if stream else answer.document()

    __call__ = create_completion

    def create_chat_completion(
        self,
        messages: Sequence[Message],
        functions: Sequence[Mapping[str, Any]] | None = None,
        function_call: object = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = None,
        *,
        stream: bool = False,
        response_format: Any = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        **others: Any,
    ) -> Any:
        """Answer a conversation; with `stream` an iterator of chunks. Raises RequestError, CapacityError."""
        if functions or function_call not in (None, "none", "auto"):
            raise RequestError("functions are not read: give tools and tool_choice")
        form = ChatForm.of(tools, tool_choice, None, response_format)
        tokenizer = self.llm.tokenizer
        asked = encode_chat(messages, tokenizer, tools=form.tools)
        scores = {"logprobs": (top_logprobs or 0) if logprobs else None}
        params = self._params(_CHAT, scores, others)
        params = form.params(params, asked.text or "", self.llm.max_len, tokenizer, None)
        family = form_of(tokenizer.chat_template, tokenizer.encoder.token_to_id)
        parser = family.parser(asked.text or "", tools=schemas_of(form.tools or ()))
        answer = Answer(
            self.llm.tokenizer, self.llm.submit(asked, params), parser, self._called(others)
        )
        return answer.chunks() if stream else answer.document()

    def generate(self, tokens: Sequence[int], **others: Any) -> Iterator[int]:
        """Yield the ids of tokens after these, until the loop is left or the context is full."""
        for name in ("reset", "penalize_nl", "temp"):
            value = others.pop(name, None)
            if name == "temp" and value is not None:
                others["temperature"] = value
        params = self._params(_COMPLETION | {"max_tokens": None, "ignore_eos": True}, {}, others)
        for event in self.llm.submit(list(tokens), params):
            yield from event.token_ids

    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = True,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """Return the vector of a text, or a list of those of several; their length is always 1."""
        found = self.llm.embed([input] if isinstance(input, str) else input, pooling=self._pooling)
        many = [one.outputs.embedding for one in found]
        vectors = many[0] if isinstance(input, str) else many
        count = sum(len(one.prompt_token_ids) for one in found)
        return (vectors, count) if return_count else vectors

    def create_embedding(self, input: str | Sequence[str], model: str | None = None) -> Document:
        """Return the vectors of texts as OpenAI's document."""
        vectors, count = self.embed([input] if isinstance(input, str) else input, return_count=True)
        data = [
            {"object": "embedding", "embedding": one, "index": i} for i, one in enumerate(vectors)
        ]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": data, "model": model or self.model_path, "usage": usage}

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Return the token ids of UTF-8, after what the model wants before a text if `add_bos`."""
        own = None if add_bos else False
        return self.llm.tokenizer.encode(text.decode(), special=special, bos=own)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """Return the bytes of token ids, parts of a character too; of control tokens only with `special`."""
        tokenizer = self.llm.tokenizer
        shown = [one for one in tokens if special or not tokenizer.is_special(one)]
        text = b"".join(tokenizer.token_bytes(one) or b"" for one in shown)
        begins = bool(tokens) and tokens[0] == tokenizer.bos_id and tokenizer.adds_space
        return text.removeprefix(b" ") if begins else text

    def set_seed(self, seed: int | None) -> None:
        """Set the seed of answers that are given none; llama.cpp's 4294967295 draws one."""
        self._seed = None if seed in (None, -1, 2**32 - 1) else seed

    def set_cache(self, cache: object) -> None:
        """Do nothing: prompts are always kept."""

    def reset(self) -> None:
        """Do nothing: a request has no state of the one before it."""

    def n_ctx(self) -> int:
        """Return the tokens that a context holds."""
        return self.llm.max_len

    def n_vocab(self) -> int:
        """Return the tokens that the model knows."""
        return self.llm.model.config.vocab_size

    def n_embd(self) -> int:
        """Return the width of its vectors."""
        return self.llm.model.config.hidden_size

    def token_bos(self) -> int:
        """Return the token that begins a text, -1 if there is none."""
        bos = self.llm.tokenizer.bos_id
        return -1 if bos is None else bos

    def token_eos(self) -> int:
        """Return the token that ends a text, -1 if there is none."""
        eos = self.llm.tokenizer.eos_id
        return -1 if eos is None else eos

    def close(self) -> None:
        """Release the weights."""
        self.llm.close()

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(absent.message("Llama", name, dir(type(self)), _INSTEAD))

    def _called(self, given: Mapping[str, Any]) -> str:
        return str(given.get("model") or self.model_path)

    def _infill(self, prompt: str | Sequence[int], suffix: str) -> Encoded:
        """Encode a text before and one after a gap. Raises RequestError for a model without tokens for it."""
        tokenizer = self.llm.tokenizer
        if tokenizer.fill_in is None or not isinstance(prompt, str):
            raise RequestError("suffix needs a prompt as text, and a model trained to fill gaps")

        def read(text: str) -> list[int]:
            return tokenizer.encode(text, special=False, bos=False)

        return Encoded(tokenizer.fill_in.prompt(prompt, suffix, (), read), prompt)

    def _params(
        self, own: Mapping[str, Any], fixed: Mapping[str, Any], given: Mapping[str, Any]
    ) -> SamplingParams:
        """Read sampling parameters by llama-cpp-python's names. Raises RequestError for those that are unknown."""
        known = SamplingParams.__dataclass_fields__
        left = {name: value for name, value in given.items() if name not in _TAKEN}
        grammar, seed = left.pop("grammar", None), left.pop("seed", None)
        fields, typed = requests.read(left, known)
        for name in fields.keys() - known.keys():
            raise RequestError(unknown("argument", typed.get(name, name), known, _TAKEN))
        if isinstance(grammar, LlamaGrammar):
            fields["structured_outputs"] = grammar.form
        elif grammar is not None:
            raise RequestError("grammar must be a LlamaGrammar: LlamaGrammar.from_string(...)")
        end = self.llm.tokenizer.eos_id
        call = as_ours(given.get("logits_processor"), given.get("stopping_criteria"), end)
        if "max_tokens" in given and not (given["max_tokens"] or 0) > 0:
            fields["max_tokens"] = None  # to the end of the context
        values: dict[str, Any] = {**own, **_BOTH, **fields, **fixed}
        seed = self._seed if seed is None else seed
        seed = None if seed is None or seed < 0 else seed & MAX_SEED
        values |= {"seed": seed, "samplers": LLAMA_SAMPLERS, "logits_processors": call}
        return SamplingParams(**values)


_TAKEN = (
    "logits_processor",
    "stopping_criteria",
    "model",
    "penalize_nl",
    "mirostat_tau",
    "mirostat_eta",
)
