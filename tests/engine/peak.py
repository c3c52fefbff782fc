"""What a process takes at most within a memory budget: run by tests in a process of its own.

    python peak.py '{"model": ..., "memory_budget": "300MiB", "max_model_len": 1024}'

fills every sequence, greedy and sampled, and prints one line of JSON: the peak and the drafter that was planned; or the
smallest budget that works, where that is refused.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from forerun import LLM
from forerun.core.errors import CapacityError
from forerun.system.device import peak_nbytes
from tests.engine.resident import run

LEAST = re.compile(r"the smallest that works is (\d+)MiB")


def main(options: dict[str, Any]) -> dict[str, object]:
    try:
        llm = LLM(**options)
    except CapacityError as error:
        found = LEAST.search(str(error))
        assert found is not None
        return {"least_mib": int(found[1])}
    run(llm)
    assert llm.plan is not None
    return {"peak": peak_nbytes(), "drafter": llm.plan.drafter.name}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
