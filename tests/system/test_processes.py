"""What differs by operating system, as far as this one goes."""

from __future__ import annotations

import os
from pathlib import Path

from forerun.system import device, processes


def test_a_file_takes_the_place_of_another(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"old")
    with new.open("wb") as file:
        file.write(b"new")
        file.flush()
        processes.put_in_place(file, file.name, old)
    assert old.read_bytes() == b"new"
    assert not new.exists()


def test_memory_and_processors_are_told() -> None:
    assert processes.most_resident_nbytes() >= device.resident_nbytes() // 2
    assert 1 <= len(processes.usable_cpus()) <= (os.cpu_count() or 1)
    assert processes.c_function("no_such_function_anywhere") is None
