"""GGUF files in parts: `<name>-00001-of-00003.gguf` and so on, as llama.cpp's gguf-split writes them.

Each part is a GGUF file with tensors of its own; the first alone has the model's metadata. What ties them together are
their names and the keys `split.no` (from 0), `split.count` and `split.tensors.count` (of all parts).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.core.errors import LoadError

if TYPE_CHECKING:
    from forerun.weights.gguf_header import Header

_PART = re.compile(r"(?P<name>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf")


def part_paths(path: Path) -> list[Path]:
    """Return the paths of all parts of a model, in order, given any of them; the path itself if it is not a part."""
    match = _PART.fullmatch(path.name)
    if match is None or not 1 <= int(match["no"]) <= int(match["count"]):
        return [path]
    name, count = match["name"], int(match["count"])
    return [path.with_name(f"{name}-{no:05}-of-{count:05}.gguf") for no in range(1, count + 1)]


def check_present(paths: Sequence[Path]) -> None:
    """Raise LoadError if a part is missing."""
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise LoadError(
            f"{len(missing)} of {len(paths)} parts are missing, the first of them {missing[0]}: "
            "all parts must lie in one folder"
        )


def check_parts(paths: Sequence[Path], headers: Sequence[Header]) -> None:
    """Raise LoadError if the headers of a model's parts do not belong together, naming the part."""
    total = headers[0].metadata.get("split.tensors.count")
    for no, (path, header) in enumerate(zip(paths, headers, strict=True)):
        given = header.metadata.get("split.no", 0), header.metadata.get("split.count", 1)
        if given != (no, len(paths)):
            raise LoadError(
                f"{path.name} says that it is part {_counted(given[0])} of {given[1]}, but by its name it is "
                f"part {no + 1} of {len(paths)}: give it the name it was made with"
            )
        if header.metadata.get("split.tensors.count") != total:
            raise LoadError(
                f"{path.name} is a part of another model: it counts "
                f"{header.metadata.get('split.tensors.count')} tensors in all, {paths[0].name} {total}"
            )
    num_tensors = sum(len(header.tensors) for header in headers)
    if len(paths) > 1 and num_tensors != total:
        raise LoadError(
            f"its {len(paths)} parts have {num_tensors} tensors, but should have {total}"
        )


def _counted(no: object) -> object:
    return no + 1 if isinstance(no, int) else no
