"""The pip of `make setup`: says which kernel it compiles and for how long, and only on failure what pip said.

python dev/install.py --editable '.[serve]'
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator

_STEP = re.compile(
    r"\[\s*(\d+)(?:/(\d+)|%)\]\s+Building (?:CXX|C) object \S*?([\w.+-]+\.(?:cpp|cc|c))\b"
)
"""A line of ninja, or of make."""
KEPT = 60
"""Lines that are shown where it fails."""


def steps(lines: Iterable[str]) -> Iterator[str]:
    """Say what is compiled, from what pip says.

    >>> [*steps(["Collecting click", "  [3/41] Building CXX object CMakeFiles/_native.dir/csrc/head.cpp.o"])]
    ['compiling 3 of 41: head.cpp']
    >>> [*steps(["[ 10%] Building CXX object csrc/head.cpp.o"])]
    ['compiling, 10%: head.cpp']
    """
    for line in lines:
        if found := _STEP.search(line):
            number, total, name = found.groups()
            yield (
                f"compiling {number} of {total}: {name}"
                if total
                else f"compiling, {number}%: {name}"
            )


def main(arguments: list[str]) -> int:
    """Run pip, and return its exit code."""
    command = [sys.executable, "-m", "pip", "install", "--verbose", "--disable-pip-version-check"]
    command += ["--constraint", "constraints.txt", *arguments]
    start_s, last, kept = time.monotonic(), "", deque[str](maxlen=KEPT)
    shows = sys.stderr.isatty()
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None

        def read() -> Iterator[str]:
            for line in pip.stdout or ():
                kept.append(line)
                yield line

        for last in steps(read()):
            text = f"{last}, {_clock(start_s)}"
            sys.stderr.write(f"\r\033[K{text}" if shows else f"{text}\n")
            sys.stderr.flush()
    if shows and last:
        sys.stderr.write("\r\033[K")
    if pip.returncode:
        sys.stderr.writelines(kept)
    else:
        sys.stderr.write(f"installed in {_clock(start_s)}\n")
    return pip.returncode


def _clock(start_s: float) -> str:
    minutes, seconds = divmod(round(time.monotonic() - start_s), 60)
    return f"{minutes}:{seconds:02}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
