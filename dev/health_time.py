"""How long `forerun serve` takes from its start to the first byte of /health 200, beyond `import torch`.

    .venv/bin/python -m dev.health_time [RUNS]

Both are processes of their own, in turns, with files cached by the system after the first pair, which is not counted.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from http.client import HTTPConnection

from forerun.lab.bench.servers import free_port

LIMIT_S = 1.5
"""The goal, for the default model."""


def import_s() -> float:
    """Seconds of a Python process that imports torch and ends."""
    start_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - start_s


def health_s() -> float:
    """Seconds from the start of a server to its first answer of 200."""
    port = free_port()
    start_s = time.perf_counter()
    command = [sys.executable, "-m", "forerun", "serve", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            while not _is_healthy(port):
                if server.poll() is not None:
                    raise SystemExit("forerun serve ended before it was ready")
                time.sleep(0.005)
            return time.perf_counter() - start_s
        finally:
            server.terminate()


def _is_healthy(port: int) -> bool:
    line = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        line.request("GET", "/health")
        return line.getresponse().status == 200
    except OSError:
        return False
    finally:
        line.close()


def main() -> None:
    """Print every pair, then the median of the differences."""
    num_runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    beyond = []
    for run in range(num_runs + 1):
        torch_s, ready_s = import_s(), health_s()
        if run > 0:
            beyond.append(ready_s - torch_s)
            print(f"import torch {torch_s:.2f} s, /health 200 after {ready_s:.2f} s")
    median_s = statistics.median(beyond)
    print(f"beyond import torch: {median_s:.2f} s, median of {num_runs} (goal: {LIMIT_S} s)")


if __name__ == "__main__":
    main()
