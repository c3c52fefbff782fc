"""How long `forerun serve` takes from its start to the first byte of /health 200.

    .venv/bin/python -m dev.health_time [RUNS]

Files are cached by the system after the first run, which is not counted.
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
    """Print every run, then the median."""
    num_runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    found = [health_s() for _ in range(num_runs + 1)][1:]
    for ready_s in found:
        print(f"/health 200 after {ready_s:.2f} s")
    print(f"median of {num_runs}: {statistics.median(found):.2f} s (goal: {LIMIT_S} s)")


if __name__ == "__main__":
    main()
