"""The pool of threads, by small C++ programs of its own."""

from __future__ import annotations

import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest

COMPILER = shutil.which("c++") or ""
HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"

pytestmark = pytest.mark.skipif(not COMPILER, reason="there is no C++ compiler")


def compiled(folder: Path, name: str, *sources: Path, flags: tuple[str, ...] = ()) -> Path:
    """Compile a program of this folder; headers in `folder` come before those of csrc."""
    program = folder / name
    command = [COMPILER, "-std=c++20", "-O1", *flags, "-pthread", f"-I{folder}", f"-I{CSRC}"]
    sources = (HERE / f"{name}.cpp", CSRC / "platform.cpp", *sources)
    subprocess.run([*command, *sources, "-o", program], check=True)
    return program


def run(program: Path, *args: int | str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *map(str, args)], capture_output=True, text=True, timeout=600, check=False
    )


def test_random_jobs_are_done_in_order_by_more_threads_than_there_are_cores(tmp_path: Path) -> None:
    done = run(compiled(tmp_path, "pool_stress", CSRC / "model/pool.cpp"), 64, 300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_no_thread_touches_what_another_may_be_writing(tmp_path: Path) -> None:
    flags = ("-g", "-fsanitize=thread")
    probe = [COMPILER, *flags, "-x", "c++", "-", "-o", tmp_path / "probe"]
    if subprocess.run(probe, input=b"int main() {}", capture_output=True).returncode:
        pytest.skip("the compiler has no thread sanitizer")
    done = run(compiled(tmp_path, "pool_stress", CSRC / "model/pool.cpp", flags=flags), 64, 1000)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


JOBS = ("looking", "passes", "drafts")


def schedules(folder: Path, fan: int = 8, name: str = "", line: str = "", other: str = "") -> Path:
    """Compile the search for groups of `fan` threads, with a line of one of the pool's files changed."""
    (folder / "model").mkdir(parents=True)
    for file in ("pool.cpp", "pool.h"):
        text = (CSRC / "model" / file).read_text()
        if file == name:
            assert text.count(line) == 1, "the line has changed"
            text = text.replace(line, other)
        assert file == "pool.cpp" or "kFan = 8;" in text
        (folder / "model" / file).write_text(text.replace("kFan = 8;", f"kFan = {fan};"))
    return compiled(folder, "pool_schedules")


def test_every_schedule_of_few_preemptions_does_each_piece_once_and_ends(tmp_path: Path) -> None:
    program = schedules(tmp_path)
    for (preemptions, threads), jobs in product(((2, 2), (1, 3)), JOBS):
        done = run(program, preemptions, threads, jobs)
        assert done.returncode == 0, (jobs, preemptions, threads, done.stdout)
        assert int(done.stdout.split()[0]) > 12_000


@pytest.mark.slow
@pytest.mark.parametrize("jobs", JOBS)
def test_every_schedule_of_more_preemptions_too(tmp_path: Path, jobs: str) -> None:
    by_fan = {fan: schedules(tmp_path / str(fan), fan) for fan in (8, 2)}
    for fan, preemptions, threads in ((8, 3, 2), (8, 2, 3), (2, 1, 3)):
        done = run(by_fan[fan], preemptions, threads, jobs)
        assert done.returncode == 0, done.stdout


# What the protocol needs: without any of these lines, or with another in its place, some schedule goes wrong.
NEEDED = {
    "pool.cpp": {
        "if (tag > tag_ || index": "if (index",
        "tag == tag_ ? seen & mask : 0": "seen & mask",
        "    job_.fetch_add(1, std::memory_order_acq_rel);\n    if": "    if",
        "    while (num_inside_.load() > 0) std::this_thread::yield();\n": "",
        " && job_.load() == job && run": " && run",
        "    if (pool_.job_.load(std::memory_order_acquire) != job_) num_pieces_ = 0;\n": "",
        "std::exchange(num_done_, 0)": "num_done_",
        "while (seen < tag_ &&": "while (seen != tag_ &&",
    },
    "pool.h": {
        "guard(finish);\n            release();": "release();\n            guard(finish);",
        "    counter.store(0, std::memory_order_relaxed);": "    ",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "line"), [(name, line) for name, lines in NEEDED.items() for line in lines]
)
def test_the_search_finds_what_is_broken(tmp_path: Path, name: str, line: str) -> None:
    by_fan = {
        fan: schedules(tmp_path / str(fan), fan, name, line, NEEDED[name][line]) for fan in (8, 2)
    }
    cases = ((8, 3, 2), (2, 1, 3))
    assert any(
        run(by_fan[fan], preemptions, threads, jobs).returncode == 1
        for (fan, preemptions, threads), jobs in product(cases, JOBS)
    )
