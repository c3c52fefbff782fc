"""The page at `/`: the files of `static/`, read once and sent as they are.

They hold no secret and are sent without the key; what they ask the API for, they ask with it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).with_name("static")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Nothing from elsewhere, no inline script or style, and no text is ever read as HTML."""


def page_routes() -> list[Route]:
    """Make a route for `/` and one for each other file."""
    files = sorted(path for path in FOLDER.rglob("*") if path.suffix in TYPES)
    names = [path.relative_to(FOLDER).as_posix() for path in files]
    urls = ["/" if name == "index.html" else f"/static/{name}" for name in names]
    return [_route(url, path) for url, path in zip(urls, files, strict=True)]


def _route(url: str, path: Path) -> Route:
    body = path.read_bytes()
    headers = {
        "content-type": TYPES[path.suffix],
        "cache-control": "no-cache",  # asked for again each time, sent again only when it changed
        "etag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }

    async def send(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers)

    return Route(url, send, name=path.name, include_in_schema=False)
