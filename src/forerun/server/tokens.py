"""Routes that count, take apart and put together what a model reads, without an answer."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from forerun.llm import LLM
from forerun.server.api.openai import ChatMessages, ChatRequest, check_roles, count, rendered
from forerun.server.bodies import JsonRequest, JsonRoute
from forerun.server.errors import invalid
from forerun.server.http import JsonResponse
from forerun.server.limits import check_counted
from forerun.server.models import FromBody
from forerun.server.openapi import answers
from forerun.server.schema import RequestBody
from forerun.server.service import Service
from forerun.server.writer import Document

router = APIRouter(route_class=JsonRoute)


class TokenizeRequest(RequestBody):
    """A text or a conversation to take apart: vLLM's fields, and llama-server's `content`."""

    prompt: str | None = None
    content: str | None = None
    messages: ChatMessages | None = None
    add_special_tokens: bool = True
    """Begin with the model's BOS token, if it wants one."""
    add_special: bool = False
    """The same, for `content`."""
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    """Add the tokens' texts."""
    with_pieces: bool = False
    """Tokens as objects of `id` and `piece`, as llama-server has them: bytes where a piece is not text by itself."""
    parse_special: bool = True
    """Read control tokens written in the text as such."""

    def check(self) -> None:
        """Check that there is one text, or a conversation. Raises ApiError."""
        self.given()

    def given(self) -> tuple[str, str]:
        """Return the field that was given, and its text; none of a conversation. Raises ApiError."""
        found = {name: getattr(self, name) for name in ("prompt", "content", "messages")}
        fields = [name for name, value in found.items() if value is not None]
        if len(fields) != 1:
            raise invalid("give one of prompt, messages and content", "prompt")
        if self.messages is not None:
            check_roles(self.messages)
            return fields[0], ""
        return fields[0], found[fields[0]]


class DetokenizeRequest(RequestBody):
    """Token ids to put together."""

    tokens: list[int]


@router.post("/apply-template", responses=answers())
async def apply_template(service: FromBody, request: JsonRequest, body: ChatRequest) -> Response:
    """Write the text that a conversation becomes."""
    return JsonResponse({"prompt": await service.aside(request, rendered(service, body))})


@router.post("/v1/chat/completions/input_tokens", responses=answers())
@router.post("/chat/completions/input_tokens", include_in_schema=False)
async def input_tokens(service: FromBody, request: JsonRequest, body: ChatRequest) -> Response:
    """Count the tokens of a conversation."""
    num_tokens = await service.aside(request, count(service, request, body))
    return JsonResponse({"object": "response.input_tokens", "input_tokens": num_tokens})


@router.post(
    "/tokenize",
    responses=answers(),
)
async def tokenize(service: FromBody, request: JsonRequest, body: TokenizeRequest) -> Response:
    """Find the token ids of a text or a conversation."""
    llm = service.llm()
    field, given = body.given()
    with_bos = {"prompt": body.add_special_tokens, "content": body.add_special}.get(field, False)

    async def answered() -> Response:
        text = given if body.messages is None else await _rendered(service, body)

        def encoded() -> Response:
            check_counted(text, field)
            tokens = llm.tokenizer.encode(
                text, special=body.parse_special, bos=None if with_bos else False
            )
            return JsonResponse(_document(body, tokens, llm))

        return await service.encode(encoded, max(len(text), request.nbytes))

    return await service.aside(request, answered())


@router.post("/detokenize", responses=answers())
async def detokenize(service: FromBody, request: JsonRequest, body: DetokenizeRequest) -> Response:
    """Write the text of token ids, as vLLM (`prompt`) and llama-server (`content`) call it."""
    tokenizer = service.llm().tokenizer

    def put_together() -> Response:
        for token in body.tokens:
            if tokenizer.token_bytes(token) is None:
                raise invalid(f"token id {token} is not in the vocabulary", "tokens")
        text = tokenizer.decode(body.tokens, skip_special=False)
        return JsonResponse({"prompt": text, "content": text})

    return await service.aside(request, service.encode(put_together, request.nbytes))


async def _rendered(service: Service, body: TokenizeRequest) -> str:
    messages, prompt = body.messages or [], body.add_generation_prompt
    return await service.render(lambda: service.template.render(messages, prompt))


def _document(body: TokenizeRequest, tokens: list[int], llm: LLM) -> Document:
    document: Document = {"count": len(tokens), "max_model_len": llm.max_len, "tokens": tokens}
    # each of the vocabulary once: to make and to free one for each of 250,000 tokens would hold up other threads
    texts = {token: llm.tokenizer.text_of(token) for token in {*tokens}}
    if body.with_pieces:
        pieces = {token: {"id": token, "piece": _piece(llm, token)} for token in texts}
        document["tokens"] = [pieces[token] for token in tokens]
    if body.return_token_strs:
        document["token_strs"] = [texts[token] for token in tokens]
    return document


def _piece(llm: LLM, token: int) -> str | list[int]:
    """Return the text of a token; its bytes where they are a part of a character."""
    spelled = llm.tokenizer.token_bytes(token) or b""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return [*spelled]
