"""Runs llama.cpp's own tests of llama-server against `forerun serve`, and writes what came of each.

    .venv/bin/python -m dev.suites.llama_server.run                  # fetches the tests with pip
    .venv/bin/python -m dev.suites.llama_server.run --sdist llama_cpp_python-0.3.36.tar.gz
    .venv/bin/python -m dev.suites.llama_server.run --files completion infill --keep

The tests are part of llama-cpp-python's source distribution; none of them is stored here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import venv
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from dev.suites.llama_server import content, model
from dev.suites.llama_server.reasons import NOT_BUILT, reason

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
NEEDS = ("pytest", "pytest-timeout", "requests", "openai", "filelock", "prometheus-client", "wget")
FOLDER = Path(__file__).parent
TEST_S = 120
"""Seconds for one test."""


def main() -> None:
    """Read the command line and run."""
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument(
        "--sdist", type=Path, help="the source distribution; default: pip fetches it"
    )
    reader.add_argument(
        "--work", type=Path, default=Path("build/llama_server"), help="a folder for all"
    )
    reader.add_argument(
        "--files", nargs="*", help="only these, such as `completion`; all by default"
    )
    reader.add_argument("--port", type=int, default=8080)
    reader.add_argument("--keep", action="store_true", help="print, and leave the stored results")
    given = reader.parse_args()
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    tests = _tests(given.sdist or _fetch(work), work)
    python = _environment(work)
    models = work / "models"
    models.mkdir(exist_ok=True)
    model.make(models / "stories.gguf", fills_in=False)
    model.make(models / "infill.gguf", fills_in=True)
    (tests / "tmp").mkdir()
    model.make(tests / "tmp" / "stories15M-q4_0.gguf", fills_in=False, seed=1)  # a draft's
    rows = _run(python, tests, work, models, given.files, given.port)
    if given.keep:
        print(_page(rows))
        return
    (FOLDER / "results.md").write_text(_page(rows))
    print(f"written to {FOLDER / 'results.md'}")


def _fetch(work: Path) -> Path:
    found = [*work.glob("llama_cpp_python-*.tar.gz")]
    if not found:
        pip = [sys.executable, "-m", "pip", "download", "--no-binary", ":all:", "--no-deps"]
        subprocess.run([*pip, "-d", str(work), f"{PACKAGE}=={VERSION}"], check=True)
        found = [*work.glob("llama_cpp_python-*.tar.gz")]
    return found[0]


def _tests(sdist: Path, work: Path) -> Path:
    """The suite as it is changed for this run, in the place where it finds its files."""
    root = work / "source"
    if not root.exists():
        with tarfile.open(sdist) as file:
            wanted = re.compile(r"vendor/llama\.cpp/(tools/server/tests|models/templates)/")
            members = [one for one in file.getmembers() if wanted.search(one.name)]
            file.extractall(root, members, filter="data")
    (server,) = root.glob("*/vendor/llama.cpp/tools/server")
    if not (server / "original").exists():
        (server / "tests").rename(server / "original")
    subprocess.run(["rm", "-rf", str(server / "tests")], check=True)
    content.copy(server / "original", server / "tests")
    return server / "tests"


def _environment(work: Path) -> Path:
    """The suite's own Python."""
    folder = work / "venv"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *NEEDS], check=True)
    return python


def _run(
    python: Path, tests: Path, work: Path, models: Path, files: list[str] | None, port: int
) -> list[dict[str, str]]:
    """What came of each test that is not marked slow."""
    server = work / "llama-server"
    shim = f'"{sys.executable}" -m dev.suites.llama_server.shim "$@"'
    server.write_text(f'#!/bin/sh\nPYTHONPATH="{FOLDER.parents[2]}:$PYTHONPATH" exec {shim}\n')
    server.chmod(0o755)
    notes, report = work / "notes.jsonl", work / "report.xml"
    notes.write_text("")
    report.unlink(missing_ok=True)
    fork_server = work / "fork_server"
    fork_server.unlink(missing_ok=True)
    own = {
        "FORERUN_SUITE_FORK_SERVER": str(fork_server),
        "LLAMA_SERVER_BIN_PATH": str(server),
        "FORERUN_SUITE_MODELS": str(models),
        "FORERUN_SUITE_NOTES": str(notes),
        "PORT": str(port),
    }
    wanted = [f"unit/test_{name}.py" for name in files or ()] or ["unit"]
    command: list[str] = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "-m",
        "not slow",
        f"--timeout={TEST_S}",
        "--tb=short",
    ]
    forker = subprocess.Popen(
        [sys.executable, "-m", "dev.suites.llama_server.fork_server", fork_server]
    )
    while not fork_server.exists():
        time.sleep(0.1)
    subprocess.run(
        [*command, *wanted, f"--junit-xml={report}", *_left_out(tests)],
        cwd=tests,
        env={**os.environ, **own},
        check=False,
        stdout=(work / "output.txt").open("w"),
    )
    forker.terminate()
    noted: dict[str, list[str]] = {}
    for line in notes.read_text().splitlines():
        one = json.loads(line)
        noted.setdefault(one["test"], []).append(f"{one['about']} ({one['where']})")
    cases = ElementTree.parse(report).getroot().iter("testcase")
    rows = [_row(case, noted) for case in cases]
    return [row for row in rows if row["test"]] + _not_run(tests, files)


def _left_out(tests: Path) -> list[str]:
    return [f"--ignore=unit/test_{name}.py" for name in NOT_BUILT]


def _row(case: ElementTree.Element, noted: dict[str, list[str]]) -> dict[str, str]:
    file = case.get("classname", "").replace(".", "/") + ".py"
    name = f"{file}::{case.get('name')}"
    failed = case.find("failure") if case.find("failure") is not None else case.find("error")
    if case.find("skipped") is not None:
        return {"test": name, "outcome": "skipped", "why": case.find("skipped").get("message", "")}  # type: ignore[union-attr]
    if failed is not None:
        text = (failed.text or "") + (failed.get("message") or "")
        lines = [line for line in text.splitlines() if line.startswith("E ")]
        seen = lines[0][2:].strip() if lines else (failed.get("message") or "")
        return {"test": name, "outcome": "failed", "why": reason(name, text), "seen": seen[:160]}
    if own := noted.get(name):
        about = sorted({one.partition(" (")[0] for one in own})
        return {"test": name, "outcome": "passed but for the model", "why": ", ".join(about)}
    return {"test": name, "outcome": "passed", "why": ""}


def _not_run(tests: Path, files: list[str] | None) -> list[dict[str, str]]:
    """The files of features that are not built, test by test as they are written."""
    rows = []
    for name, why in NOT_BUILT.items():
        path = tests / "unit" / f"test_{name}.py"
        if files is not None or not path.exists():
            continue
        for test in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE):
            rows.append({"test": f"unit/test_{name}.py::{test}", "outcome": "not run", "why": why})
    return rows


def _page(rows: list[dict[str, str]]) -> str:
    counts = Counter(row["outcome"] for row in rows)
    lines = [
        "# llama.cpp's tests of llama-server",
        "",
        f"{PACKAGE} {VERSION}, `tools/server/tests`, without those marked slow, with models made by `model.py`. "
        "Made by `python -m dev.suites.llama_server.run`.",
        "",
        "| outcome | tests |",
        "|---|---:|",
        *(f"| {outcome} | {count} |" for outcome, count in counts.most_common()),
        "",
        "*Passed but for the model*: all holds but what is said of the words, the number of prompt tokens or the name "
        "of the build, which are stories260K's and llama-server's own.",
        "",
        "| test | outcome | why |",
        "|---|---|---|",
    ]
    for row in rows:
        why = " ".join(filter(None, (row["why"], f"`{row['seen']}`" if row.get("seen") else "")))
        test = row["test"].removeprefix("unit/").replace("|", "\\|")
        lines.append(f"| {test} | {row['outcome']} | {_cell(why)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    main()
