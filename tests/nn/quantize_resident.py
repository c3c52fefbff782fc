"""What `forerun quantize` states and what it takes, in a process of its own: run by a test.

    python quantize_resident.py quantize -m MODEL ... --json

prints one line of JSON: stated and measured bytes over a bare `import torch`.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import sys

import torch


def main(arguments: list[str]) -> dict[str, int]:
    gc.collect()
    from forerun.core.device import peak_nbytes, resident_nbytes

    bare = resident_nbytes()
    from forerun.cli.main import main as forerun

    sys.argv = ["forerun", *arguments]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        forerun()
    found = json.loads(printed.getvalue())
    assert abs(found["peak_mb"] - peak_nbytes() / 1e6) < 1
    stated, measured = (int(found[name] * 1e6) - bare for name in ("stated_mb", "peak_mb"))
    return {"stated": stated, "measured": measured}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(sys.argv[1:])))
