"""Runs the tests of other people's clients and schemathesis against our server, and writes which hold.

    .venv/bin/python -m dev.suites.clients

Installs what is missing into this environment (schemathesis, LiteLLM, LangChain, mcp) and runs the tests of
`tests/server` that use them, and those with openai-python and Anthropic's client. Exits 1 if one fails or is skipped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from forerun.lab.output import markdown_table

NEEDS = ("schemathesis", "litellm", "langchain-openai", "mcp")
RESULTS = Path(__file__).with_name("clients.md")
FILES = {
    "tests/server/test_openai.py": ("openai",),
    "tests/server/test_responses.py": ("openai",),
    "tests/server/test_anthropic.py": ("anthropic",),
    "tests/server/test_other_clients.py": ("litellm", "langchain-openai"),
    "tests/server/test_schemathesis.py": ("schemathesis",),
}


def main() -> None:
    """Install, run, and write the table."""
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("--work", type=Path, default=Path("build/clients"))
    work = reader.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    for need in NEEDS:  # one by one: asked for together, pip finds no set of versions
        if not _version(need):
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", need], check=True)
    report = work / "report.xml"
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "not browser"]
    with (work / "output.txt").open("w") as log:
        subprocess.run([*pytest, f"--junit-xml={report}", *FILES], stdout=log, check=False)
    cases = [*ElementTree.parse(report).getroot().iter("testcase")]
    RESULTS.write_text("\n".join(_page(cases)))
    print(f"written to {RESULTS}")
    if any(_outcome(case) != "passed" for case in cases):
        sys.exit(f"not all passed: see {work / 'output.txt'}")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _outcome(case: ElementTree.Element) -> str:
    found = [one for one in ("failure", "error", "skipped") if case.find(one) is not None]
    return found[0] if found else "passed"


def _page(cases: list[ElementTree.Element]) -> Iterator[str]:
    yield "# Other people's clients, and schemathesis\n"
    yield "`python -m dev.suites.clients`\n"
    lines = []
    for file, packages in FILES.items():
        name = file.removesuffix(".py").replace("/", ".")
        outcomes = Counter(_outcome(case) for case in cases if case.get("classname") == name)
        versions = ", ".join(f"{one} {_version(one)}" for one in packages)
        missed = ", ".join(f"{n} {one}" for one, n in outcomes.items() if one != "passed")
        lines.append([versions, file, str(outcomes["passed"]), missed or "none"])
    yield markdown_table(("client", "tests", "passed", "not passed"), lines) + "\n"
    for case in cases:
        if (outcome := _outcome(case)) != "passed":
            said = (case.find(outcome).get("message") or "").splitlines()  # type: ignore[union-attr]
            yield f"- {case.get('name')}: {outcome}: {said[0] if said else ''}"
    yield ""


if __name__ == "__main__":
    main()
