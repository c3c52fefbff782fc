"""Peers' processes: answers over the pipe, noise and failures included, with adapters written by the tests."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from forerun.core.errors import ConfigError
from forerun.lab.bench.peers import __main__ as environments
from forerun.lab.bench.peers import base
from forerun.lab.bench.peers._worker import Clock
from forerun.lab.bench.run import PeerError

ADAPTER = """
print("a library that talks")
def convert(gguf, checkpoint, target):
    {convert}
def load(model, way, num_threads, max_len, draft):
    {load}
    def generate(prompt, num_tokens, emit):
        {generate}
        for i in range(0, num_tokens, 2):
            emit([prompt[-1] + num_threads + i, prompt[-1] + num_threads + i + 1])
    return generate
"""
ALL = sorted(base.adapters())


def stat(pid):
    """What Linux says of a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def cpu_s(system):
    """Processor seconds of a peer's process so far."""
    return sum(map(int, stat(system._process.pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def environment(folder, name="toy"):
    """An environment of that name which is this one."""
    (folder / name / "bin").mkdir(parents=True)
    python = folder / name / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)


@pytest.fixture
def peer(tmp_path):
    """A system with an adapter made of a line or two."""
    environment(tmp_path)
    (tmp_path / "m.gguf").write_text("weights")
    made = []

    def make(load="pass", generate="pass", convert=None, keeps=True, **setup):
        path = tmp_path / "toy.py"
        path.write_text(ADAPTER.format(load=load, generate=generate, convert=convert or "pass"))
        module = SimpleNamespace(
            NAME="toy", WAYS=("plain",), QUANT="int4", KEEPS_PREFIXES=keeps, __file__=str(path)
        )
        if convert is not None:
            module.convert = None
        given = base.Setup(
            **{"model": tmp_path / "m.gguf", **setup}, num_threads=2, max_len=64, folder=tmp_path
        )
        made.append(base.PeerSystem(module, "plain", given))
        return made[-1]

    yield make
    for system in made:
        system.close()


def test_a_peer_gives_logits_row_by_row(peer):
    """Three rows of two logits each, through a file; a longer text than before too."""
    write = """
    import array
    def logits(tokens, path):
        rows = array.array("f", [x for t in tokens for x in (t, t / 2)])
        open(path, "wb").write(rows.tobytes())
        return len(tokens)
    return logits"""
    system = peer(load=write.strip())
    system.start()
    assert system.logits([4, 5, 6]).tolist() == [[4, 2], [5, 2.5], [6, 3]]
    assert system.logits([1] * 50).shape == (50, 2)


def test_a_peer_answers_with_as_many_tokens_as_asked(peer):
    system = peer()
    system.restart([1])
    answer = system.answer([[5], [7]], [3, 1])
    assert answer.token_ids == [[7, 8, 9], [9]]
    assert answer.decode_tokens == 1, (
        "two came with the first group, and the last was not asked for"
    )
    assert (system.name, system.quant) == ("toy plain", "int4")
    assert 1 < answer.peak_rss_mb < 200, "its own memory, not that of the process that started it"


def test_the_first_token_of_a_peer_that_reads_all_anew_is_not_compared(peer):
    for keeps in (True, False):
        system = peer(keeps=keeps)
        system.restart([1])
        answer = system.answer([[5]], [3])
        assert bool(answer.ttft_s) == keeps
        assert answer.prefill_s > 0


def test_the_clock_of_decoding_starts_with_the_first_group_and_ends_with_the_last_token_asked_for():
    clock = Clock(3)
    for group in ([], [1, 2], [3, 4], [5]):
        clock.emit(group)
        time.sleep(0.002)
    assert (clock.token_ids, clock.num_first) == ([1, 2, 3], 2)
    assert clock.start_s < clock.first_s < clock.end_s < time.perf_counter() - 0.003


@pytest.mark.parametrize(
    ("adapter", "reason"),
    [
        ({"load": "raise ValueError('cannot load')"}, "ValueError: cannot load"),
        ({"load": "import no_such_library"}, "ModuleNotFoundError"),
        ({"generate": "raise RuntimeError('cannot say')"}, "RuntimeError: cannot say"),
        ({"generate": "return"}, "gave 0 of 8 tokens"),
        ({"generate": "import os; os._exit(3)"}, "exit code 3"),
        (
            {"load": "import os; os.write(2, b'illegal step'); os.abort()"},
            "exit code -6: illegal step",
        ),
    ],
)
def test_what_goes_wrong_in_the_peer_is_told(peer, adapter, reason):
    with pytest.raises(PeerError, match=reason):
        peer(**adapter).restart([1])


def test_a_peer_that_never_answers_is_given_up(peer, monkeypatch):
    monkeypatch.setattr(base, "REQUEST_TIMEOUT_S", 0.5)
    with pytest.raises(PeerError, match="exit code -9"):
        peer(load="import time; time.sleep(60)").restart([1])


def test_an_interrupt_leaves_no_timer_that_python_would_wait_for(peer):
    before = threading.active_count()
    threading.Timer(1, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        peer(load="import time; time.sleep(60)").restart([1])
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_a_peer_that_is_not_installed_says_what_to_do(peer, tmp_path):
    system = peer()
    (tmp_path / "toy" / "bin" / "python").unlink()
    with pytest.raises(PeerError, match="make peers"):
        system.restart([1])


SPINNING = (
    "import threading; threading.Thread(target=exec, args=('while 1: pass',), daemon=True).start()"
)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_between_its_turns_a_peer_uses_no_processor_whatever_its_threads_do(peer):
    system = peer(load=SPINNING)
    system.restart([1])
    deadline = time.monotonic() + 5
    while stat(system._process.pid)[0] != "T" and time.monotonic() < deadline:
        time.sleep(0.01)
    before_s = cpu_s(system)
    time.sleep(0.1)
    assert cpu_s(system) == before_s
    assert system.answer([[5]], [2]).token_ids == [[7, 8]], "and it wakes up when it is asked"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_a_sleeping_peer_ends_with_the_process_that_started_it(tmp_path):
    adapter = tmp_path / "toy.py"
    adapter.write_text(ADAPTER.format(load="pass", generate="pass", convert="pass"))
    starts = (
        "import subprocess, sys, signal\n"
        f"p = subprocess.Popen([sys.executable, '-P', {str(base.WORKER)!r}, {str(adapter)!r},"
        ' \'{"model": "", "way": "", "num_threads": 1, "max_len": 1, "draft": null}\'],'
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)\n"
        "p.stdout.readline(); p.send_signal(signal.SIGSTOP); print(p.pid, flush=True)\n"
        "import os; os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", starts], capture_output=True, text=True, check=True
    )
    pid = int(done.stdout)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        if stat(pid)[0] == "Z":
            return  # dead; whoever adopted it has not noticed yet
        time.sleep(0.02)
    if Path(f"/proc/{pid}").exists():
        os.kill(pid, signal.SIGKILL)
        pytest.fail("the peer is still there")


CONVERT = "import os; os.rename(checkpoint(), target)"


@pytest.fixture
def no_checkpoint(monkeypatch, tmp_path):
    """The converter without its first half, which needs the peer's libraries."""
    script = tmp_path / "converter.py"
    script.write_text(
        "import runpy, pathlib, sys\n"
        f"names = runpy.run_path({str(base.CONVERTER)!r})\n"
        "convert = names['convert']\n"
        "convert.__globals__['checkpoint'] = lambda gguf, folder: folder.mkdir()\n"
        "convert(sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))\n"
    )
    monkeypatch.setattr(base, "CONVERTER", script)


@pytest.mark.usefixtures("no_checkpoint")
def test_a_model_is_converted_once_and_anew_when_the_file_changes(peer, tmp_path):
    notes, models = [], tmp_path / "toy" / "models"
    (models / "m-7.partial" / "checkpoint").mkdir(parents=True)  # an interrupted attempt

    def num_formats():
        peer(convert=CONVERT, load="assert 'models' in model", tell=notes.append).restart([1])
        return sum(path.is_dir() for path in models.iterdir())

    assert [num_formats(), num_formats()] == [1, 1]
    (tmp_path / "m.gguf").write_text("other weights")
    assert num_formats() == 2
    assert [text.split()[0] for text in notes] == ["converting", "converted"] * 2


@pytest.mark.usefixtures("no_checkpoint")
def test_a_conversion_that_fails_is_the_peers_error_and_leaves_nothing_that_counts(peer, tmp_path):
    with pytest.raises(PeerError, match=r"cannot convert m\.gguf: ValueError: odd layer"):
        peer(convert="raise ValueError('odd layer')").restart([1])
    assert not (tmp_path / "toy" / "models" / "m-7").exists()


def test_only_gguf_files_are_given_to_peers(peer, tmp_path):
    with pytest.raises(PeerError, match="GGUF files only, and folder"):
        peer(model=tmp_path / "folder").restart([1])


def test_a_draft_that_cannot_be_read_stops_only_the_way_that_drafts_with_it(peer, tmp_path):
    system = peer(draft=tmp_path / "odd.bin")
    system.restart([1])
    system._way = base.DRAFT_MODEL
    with pytest.raises(PeerError, match=r"odd\.bin is none"):
        system.restart([1])


def test_peers_are_found_by_name():
    assert ALL == ["ctranslate2", "llama.cpp", "transformers"]
    with pytest.raises(ConfigError, match="did you mean 'llama"):
        base.adapter("lama.cpp")


@pytest.mark.parametrize("name", ALL)
def test_a_peer_drafts_with_a_model_only_if_there_is_one(name, tmp_path):
    setup = base.Setup(tmp_path / "m.gguf", 1, 64, tmp_path)
    ways = [system.name for system in base.systems(name, setup)]
    assert f"{name} plain" in ways
    assert f"{name} draft_model" not in ways


@pytest.mark.parametrize("name", ALL)
def test_every_requirement_is_pinned_and_torch_as_everywhere(name):
    pins = Path(__file__).parents[3].joinpath("constraints.txt").read_text().splitlines()
    for requirement in base.adapter(name).REQUIREMENTS:
        assert "==" in requirement
        assert not requirement.startswith("torch=") or requirement in pins


def test_an_installation_that_fails_does_not_stop_the_others(monkeypatch, tmp_path):
    asked = []

    def pip(command, check):
        asked.append(command[-1])
        return SimpleNamespace(returncode=int("llama" in command[-1]))

    monkeypatch.setattr(environments.subprocess, "run", pip)
    monkeypatch.setattr(environments.venv, "create", lambda home, **_: home.mkdir(exist_ok=True))
    names = ["llama.cpp", "ctranslate2"]
    assert environments.install(tmp_path, names) == ["llama.cpp"]
    assert environments.install(tmp_path, names) == ["llama.cpp"], "tried again"
    assert len(asked) == 3, "what is complete stays"


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_the_installed_peers_answer_in_all_their_ways(name, default_model):
    """Needs `make peers`. A model is its own draft: every guess is right, whoever makes it."""
    folder = Path(__file__).parents[3] / ".peers"
    if not (folder / name / "bin" / "python").exists():
        pytest.skip(f"{name} is not installed: make peers")
    prompt = [1, 4093, 198, 5820, 1296, 14797, 30, 2, 198, 1, 520, 9531, 198]
    setup = base.Setup(default_model, 1, 256, folder, draft=default_model)
    answers = []
    for system in base.systems(name, setup):
        try:
            system.restart(prompt)
            begin_s, used_s = time.monotonic(), cpu_s(system)
            answers.append(system.answer([prompt, [*prompt, 33]], [12, 5]).token_ids)
            wall_s, used_s = time.monotonic() - begin_s, cpu_s(system) - used_s
            assert used_s < 1.2 * wall_s + 0.1, "one thread was asked for"
        finally:
            system.close()
    assert [list(map(len, answer)) for answer in answers] == [[12, 5]] * len(answers)
    assert len({tuple(answer[0][:3]) for answer in answers}) == 1, "whatever the way"
