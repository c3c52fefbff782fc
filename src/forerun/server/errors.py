"""Errors as OpenAI writes them, and Anthropic: an HTTP status and `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from forerun.core.errors import CapacityError, ForerunError, RequestError, short_repr
from forerun.server.async_request import Closed

_log = logging.getLogger(__name__)

INVALID = "invalid_request_error"
_THREAD = "thread"
"""A field of conversations that are kept; of an error with such details Anthropic's clients send all again."""
MAX_FIELD = 64
"""Letters of a field's name that is logged."""


@dataclass(eq=False)
class ApiError(Exception):
    """An answer that says what is wrong. `more` stands beside OpenAI's four fields."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    type: str = INVALID
    headers: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, object] = field(default_factory=dict)
    for_anthropic: str = ""
    """The message in Anthropic's own words, where its clients look for them; else `message`."""

    @property
    def reason(self) -> str:
        """What a log may say of it: the code, and the field, but not what stood there."""
        field = re.split(r"[.\[ ]", self.param or "", maxsplit=1)[0]
        shown = field if field.isidentifier() and len(field) <= MAX_FIELD else ""
        return " ".join(filter(None, (self.code or self.type, shown)))

    def body(self, path: str) -> dict[str, object]:
        """Write what an answer to this path says of it, in the form of the path's API."""
        if is_ollama(path):
            return self.ollama()
        return self.anthropic() if is_anthropic(path) else self.document()

    def document(self) -> dict[str, object]:
        """Write the body of the answer."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**error, **self.more}}

    def ollama(self) -> dict[str, object]:
        """Write the same as Ollama does."""
        return {"error": self.message}

    def anthropic(self) -> dict[str, object]:
        """Write the same as Anthropic does."""
        kind = _ANTHROPIC.get(self.status, INVALID if self.status < 500 else "api_error")
        error: dict[str, object] = {"type": kind, "message": self.for_anthropic or self.message}
        if self.param == _THREAD:
            error["details"] = {
                "error_code": "thread_unsupported_request",
                "unsupported": [_THREAD],
            }
        return {"type": "error", "error": error}


def renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """Rename the fields of an error: by our names, what they were sent as."""
    param, message = error.param, error.message
    for own, other in names.items():
        if param is not None and (param == own or param.startswith(f"{own}.")):
            param = other + param.removeprefix(own)
            message = re.sub(rf"(?<![\w.]){re.escape(own)}(?!\w)", other, message)
    return replace(error, param=param, message=message)


def is_anthropic(path: str) -> bool:
    """Tell the paths of Anthropic's API."""
    return path.startswith("/v1/messages")


def is_ollama(path: str) -> bool:
    """Tell the paths of Ollama's API."""
    return path.startswith("/api/")


_ANTHROPIC: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""What Anthropic calls the statuses."""


def invalid(message: str, param: str | None = None) -> ApiError:
    """Say what is wrong with a request."""
    return ApiError(400, message, param)


def must_be(name: str, allowed: str, given: object, param: str | None = None) -> ApiError:
    """Say what a value must be; `param` is the field that it stands in, if it is not one itself."""
    return invalid(f"{name} must be {allowed}, got {short_repr(given)}", param or name)


def unsupported(message: str) -> ApiError:
    """Say that the server was started without what a route needs."""
    return ApiError(501, message, type="not_supported_error")


def not_served(asked: str | None, names: Iterable[str]) -> ApiError:
    """Say that there is no model of that name."""
    message = f"the model {short_repr(asked)} is not served here (served: {', '.join(names)})"
    return ApiError(404, message, param="model", code="model_not_found")


def is_called(asked: str, names: Iterable[str]) -> bool:
    """Tell whether a model has a name; Ollama's clients add `:latest`."""
    return asked in names or asked.removesuffix(":latest") in names


def loading(message: str = "Loading model") -> ApiError:
    """Say that the model is not there yet."""
    return ApiError(
        503, message, code="loading_model", type="unavailable_error", headers={"retry-after": "1"}
    )


def busy(num_waiting: int, limit: int) -> ApiError:
    """Say that too many sequences wait."""
    return ApiError(
        429,
        f"{num_waiting} sequences are waiting, the limit is {limit} (--max-queue): try again later",
        code="rate_limit_exceeded",
        type="rate_limit_error",
        headers={"retry-after": "1"},
    )


def of_status(status: int, message: str | None = None) -> ApiError:
    """Make the error of an HTTP status."""
    kind = INVALID if status < 500 else "server_error"
    return ApiError(status, message or HTTPStatus(status).phrase, type=kind)


def of_stream(error: Exception) -> ApiError:
    """Make the error that ends a stream; a bug of ours is logged."""
    if not isinstance(error, ForerunError):
        _log.error("a stream ended with %s", type(error).__name__)
    return of_exception(error)


def of_exception(error: BaseException, *, param: str | None = None) -> ApiError:
    """Make the answer to an error; it has no word of one that is a bug of ours."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError | CapacityError):
        return ApiError(400, str(error), param=error.typed or error.option or param)
    if isinstance(error, Closed):
        return ApiError(503, "The server is shutting down", type="unavailable_error")
    return of_status(500, "The engine failed during this request; see the server's log")
