"""The page at `/`: its files as they are sent, its markdown in node, all of it in a browser."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from forerun.server.page import FOLDER, page_routes
from tests.server.conftest import chunks, running

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def test_every_file_of_the_page_is_sent_with_a_policy_that_allows_nothing_from_elsewhere(url):
    paths = [route.path for route in page_routes()]
    texts = {FOLDER / "vendor" / name for name in ("LICENSES.txt", "README.md")}
    files = {path for path in FOLDER.rglob("*") if path.is_file()} - texts
    assert len(paths) == len(files)  # nothing else lies there that is not sent
    assert sum(path.stat().st_size for path in files) < 600_000
    assert {"/", "/static/main.js", "/static/page.css"} <= {*paths}
    for path in paths:
        answer = httpx.get(url + path)
        name = "index.html" if path == "/" else path.removeprefix("/static/")
        assert answer.content == (FOLDER / name).read_bytes()
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        same = httpx.get(url + path, headers={"if-none-match": answer.headers["etag"]})
        assert (same.status_code, same.content) == (304, b"")
    assert httpx.get(f"{url}/static/nothing.js").status_code == 404
    assert httpx.get(f"{url}/static/..%2fpage.py").status_code == 404


def test_the_files_ask_for_nothing_from_elsewhere_and_make_no_html_of_text():
    for path in FOLDER.glob("*.*"):
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"""(src|href)=["'](https?:)?//|@import|url\(""", text), path.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    names = set(re.findall(r'static/([\w./]+)"', (FOLDER / "index.html").read_text()))
    names |= {
        name
        for path in FOLDER.glob("*.js")
        for name in re.findall(r'from "\./([\w./]+)"', path.read_text())
    }
    assert {f"/static/{name}" for name in names} | {"/"} == {one.path for one in page_routes()}


def test_the_libraries_of_others_are_as_they_were_published():
    listed = (FOLDER / "vendor" / "README.md").read_text()
    sums = dict(re.findall(r"\| `([\w.]+)` \|.*`([0-9a-f]{64})` \|", listed))
    files = {path.name: path.read_bytes() for path in (FOLDER / "vendor").glob("*.js")}
    assert sums == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    licences = (FOLDER / "vendor" / "LICENSES.txt").read_text()
    assert all(name in licences for name in files)


def test_the_page_needs_no_key_and_the_api_behind_it_does(llm):
    with running(lambda: llm, api_key="secret") as (url, _):
        assert httpx.get(f"{url}/").status_code == 200
        assert httpx.get(f"{url}/static/main.js").status_code == 200
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/static/nothing.js").status_code == 401


def test_no_page_is_no_page(llm):
    with running(lambda: llm, page=False) as (url, _):
        assert httpx.get(f"{url}/").status_code == 404
        assert httpx.get(f"{url}/static/main.js").status_code == 404


def test_pieces_and_timings_of_a_stream_say_what_was_drafted(url):
    body = {
        "messages": [{"role": "user", "content": "One two three one two three one"}],
        "max_tokens": 24,
        "temperature": 0,
        "timings_per_token": True,
        "stream_options": {"include_pieces": True},
    }
    found = chunks(url, "/v1/chat/completions", body)
    said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in found)
    pieces = [one for chunk in found for one in chunk["choices"][0].get("pieces", [])]
    assert "".join(one["text"] for one in pieces) == said != ""
    timings = [chunk["timings"] for chunk in found]
    last = timings[-1]
    assert len(found) > 2
    assert [one["predicted_n"] for one in timings] == sorted(one["predicted_n"] for one in timings)
    assert last["draft_n_accepted"] == sum(one["from_draft"] for one in pieces) > 0
    assert last["predicted_n"] - 1 == pytest.approx(last["passes"] * last["tokens_per_pass"], abs=1)
    plain = body | {"stream_options": None, "timings_per_token": False}
    bare = chunks(url, "/v1/chat/completions", plain)
    assert not any("pieces" in chunk["choices"][0] for chunk in bare)
    assert sum("timings" in chunk for chunk in bare) == 1


MARKDOWN = Path(__file__).with_name("markdown.mjs")


@needs_node
def test_markdown_code_and_branches_in_node(tmp_path):
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(MARKDOWN, tmp_path)
    command = ["node", str(tmp_path / MARKDOWN.name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
