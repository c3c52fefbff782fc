"""Runs JSON-Schema-Test-Suite against our structured output, and writes what came of every schema and instance.

    git clone https://github.com/json-schema-org/JSON-Schema-Test-Suite
    .venv/bin/python -m dev.suites.json_schema.conformance JSON-Schema-Test-Suite

A schema is compiled for SmolLM2's vocabulary or refused in words. An instance is *accepted* if the compiled form allows
some way to write it, in any order of its keys; the order in our answers is the schema's. Needs no weights, one minute.
Exits 1 if a schema ends in anything but a form or a refusal, or an invalid instance is accepted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dev.suites.json_schema.reader import Reader, as_given, because, version
from forerun.core.config import DEFAULT_MODEL
from forerun.core.errors import RequestError
from forerun.core.structured import StructuredOutputsParams
from forerun.decoding.guidance import Grammars
from forerun.hub.names import resolve
from forerun.lab.output import markdown_table
from forerun.weights.checkpoint import open_checkpoint

DRAFTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
}
"""What a schema's folder says of it, where it does not say it itself."""
RESULTS = Path(__file__).with_name("conformance.md")
COLUMNS = (
    "file", "schemas", "compiled", "refused", "valid: accepted", "left out by choice",
    "rejected", "invalid: rejected", "accepted",
)  # fmt: skip
KNOWN = {
    "format: ": "formats are enforced, not only noted",
    "ref: ref overrides any sibling": "what stands beside a `$ref` holds as in later drafts: narrower",
}
"""Reasons, by the beginning of what came."""


@dataclass
class File:
    """What came of a file of the suite."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    refusals: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    """Valid, and cannot be written."""
    harmful: list[str] = field(default_factory=list)
    """Invalid, and can be written."""
    broken: list[str] = field(default_factory=list)

    def cells(self) -> list[str]:
        """The line of the table."""
        names = ("schemas", "compiled", "refused", "valid accepted", "closed", "valid rejected",
                 "invalid rejected", "invalid accepted")  # fmt: skip
        return [self.name, *(str(self.counts[name]) for name in names)]


class Suite:
    """Compiles and reads for one vocabulary."""

    def __init__(self, model: str) -> None:
        tokenizer = open_checkpoint(resolve(model)).tokenizer()
        self._grammars = Grammars(tokenizer, tokenizer.vocab_size)
        self._open = Grammars(tokenizer, tokenizer.vocab_size)
        self._reader = Reader(tokenizer, tokenizer.vocab_size)

    def file(self, path: Path) -> File:
        """What comes of each of a file's schemas and instances."""
        found = File(path.stem)
        for group in json.loads(path.read_text()):
            if isinstance(group["schema"], dict):
                group["schema"] = {"$schema": DRAFTS[path.parent.name], **group["schema"]}
            self._group(found, group)
        return found

    def _group(self, found: File, group: dict[str, Any]) -> None:
        about = f"{found.name}: {group['description']}"
        found.counts["schemas"] += 1
        try:
            form = StructuredOutputsParams(json=group["schema"])
            start = self._grammars.start(form)
        except RequestError as error:
            found.counts["refused"] += 1
            found.refusals.append(because(str(error)))
            return
        except Exception as error:
            found.broken.append(f"{about}: {error!r}")
            return
        found.counts["compiled"] += 1
        for test in group["tests"]:
            said = f"{about}: {test['description']}"
            spelled = self._reader.writes(start, test["data"])
            if test["valid"]:
                outcome = self._valid(form, test["data"], spelled)
            else:
                outcome = "invalid rejected" if spelled is None else "invalid accepted"
            found.counts[outcome] += 1
            if outcome == "valid rejected":
                found.missed.append(f"{said}: `{json.dumps(test['data'])}`")
            if outcome == "invalid accepted":
                found.harmful.append(f"{said}: `{spelled}`")

    def _valid(self, form: StructuredOutputsParams, value: Any, spelled: str | None) -> str:
        if spelled is not None:
            return "valid accepted"
        start = as_given(self._open, form)
        return "closed" if self._reader.writes(start, value) else "valid rejected"


def main() -> None:
    """Run, write the table, and judge."""
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("checkout", type=Path, help="the suite's repository")
    reader.add_argument("--files", nargs="*", help="only these, such as `not`; nothing is written")
    given = reader.parse_args()
    suite = Suite(DEFAULT_MODEL)
    drafts = {
        draft: [
            suite.file(path)
            for path in sorted((given.checkout / "tests" / draft).glob("*.json"))
            if not given.files or path.stem in given.files
        ]
        for draft in DRAFTS
    }
    page = "\n".join(_page(drafts, version(given.checkout)))
    if given.files:
        print(page)
    else:
        RESULTS.write_text(page)
        print(f"written to {RESULTS}")
    files = [file for draft in drafts.values() for file in draft]
    if any(file.broken or file.harmful for file in files):
        sys.exit("a schema broke something, or an invalid instance was accepted: see the table")


def _reason(found: str) -> str:
    return next((why for name, why in KNOWN.items() if found.startswith(name)), "open")


def _page(drafts: dict[str, list[File]], version: str) -> Iterator[str]:
    yield "# JSON-Schema-Test-Suite\n"
    yield f"Commit {version}, without `optional`. `python -m dev.suites.json_schema.conformance CHECKOUT`\n"
    yield "*Left out by choice*: valid, but with properties that the schema does not name and leaves open;"
    yield "we write no such objects (docs/structured-output.md). *Accepted*, of invalid ones: harmful.\n"
    for draft, files in drafts.items():
        total = File("**all**")
        for file in files:
            total.counts.update(file.counts)
        yield f"## {draft}\n"
        yield markdown_table(COLUMNS, [file.cells() for file in [*files, total]]) + "\n"
        yield from _list("Ended in neither a form nor a refusal", files, "broken")
        yield from _list("Invalid and accepted", files, "harmful")
        yield from _list("Valid and rejected", files, "missed")
        said = Counter(one for file in files for one in file.refusals)
        yield f"### Refused in words: {said.total()}\n"
        yield (
            markdown_table(("schemas", "because"), [[str(n), one] for one, n in said.most_common()])
            + "\n"
        )


def _list(title: str, files: list[File], name: str) -> Iterator[str]:
    lines = [one for file in files for one in getattr(file, name)]
    yield f"### {title}: {len(lines)}\n"
    yield from (f"- {one} ({_reason(one)})" for one in lines)
    if lines:
        yield ""


if __name__ == "__main__":
    main()
