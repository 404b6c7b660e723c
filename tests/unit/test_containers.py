"""The Dockerfile and the manifests name what exists, and have what a run needs."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from srl.cli import make_parser
from srl.overrides import parse_pairs

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage of the Dockerfile."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    found: dict[str, list[tuple[str, str]]] = {}
    for line in filter(None, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            name = rest.rpartition(" AS ")[2]
            found[name] = []
        found[name].append((word, rest))
    return found


def test_the_stages_end_as_another_user_than_root() -> None:
    assert list(stages()) == ["base", "all"]
    for steps in stages().values():
        assert [rest for word, rest in steps if word == "USER"][-1] == "srl"


def test_the_python_of_the_image_is_one_that_is_supported() -> None:
    (found,) = re.findall(r"python:(3\.\d+)-slim", stages()["base"][0][1])
    assert f"Programming Language :: Python :: {found}" in PROJECT["classifiers"]
    assert PROJECT["requires-python"] == ">=3.11"


def test_what_is_copied_exists_and_is_sent_to_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line[1:] for line in lines if line.startswith("!")}
    copied = [rest.split()[:-1] for word, rest in stages()["base"] if word == "COPY"]
    assert {name for names in copied for name in names} == sent
    assert all((ROOT / name).exists() for name in sent)
    # pip reads these when it builds SRL.
    assert {"src", "pyproject.toml", PROJECT["readme"]} <= sent


def test_the_image_is_installed_as_make_installs() -> None:
    steps = [rest for word, rest in stages()["base"] if word == "RUN" and "pip" in rest]
    make = re.findall(r"^\t\$\(PIP\) (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[:2]
    pip = "pip install -c constraints.txt"
    assert steps == [f"{pip} {what.removeprefix('-e ')}" for what in make]


def test_the_stage_all_has_every_extra() -> None:
    (step,) = [rest for word, rest in stages()["all"] if word == "RUN" and "pip install" in rest]
    command = step.replace("pip install", "echo")
    printed = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    extras = set(re.search(r"\.\[(.*)\]", printed)[1].split(","))  # type: ignore[index]
    assert extras == {*PROJECT["optional-dependencies"]} - {"dev", "docs"}


def clusters() -> list[Any]:
    folder = ROOT / "examples" / "kuberay"
    job = yaml.safe_load((folder / "rayjob.yaml").read_text())
    cluster = yaml.safe_load((folder / "raycluster.yaml").read_text())
    assert (job["kind"], cluster["kind"]) == ("RayJob", "RayCluster")
    assert {job["apiVersion"], cluster["apiVersion"]} == {"ray.io/v1"}
    return [job["spec"]["rayClusterSpec"], cluster["spec"]]


@pytest.mark.parametrize("index", [0, 1], ids=["job", "cluster"])
def test_each_pod_has_shared_memory_and_no_root(index: int) -> None:
    cluster = clusters()[index]
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert f"ray=={cluster['rayVersion']}" in pins
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert "rayStartParams" in group
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        (shm,) = (one for one in pod["volumes"] if one["name"] == mounts["/dev/shm"])
        assert shm["emptyDir"]["medium"] == "Memory"
        size, limit = shm["emptyDir"]["sizeLimit"], container["resources"]["limits"]["memory"]
        assert int(size.removesuffix("Gi")) < int(limit.removesuffix("Gi"))
        assert pod["securityContext"]["runAsNonRoot"] is True


def test_the_job_is_a_command_that_srl_understands() -> None:
    job = yaml.safe_load((ROOT / "examples" / "kuberay" / "rayjob.yaml").read_text())["spec"]
    program, *words = shlex.split(job["entrypoint"])
    assert program == "srl"
    given = make_parser().parse_args(words)
    assert (given.launcher, given.address) == ("ray", "auto")
    hosts = parse_pairs(given.set, "--set")["hosts"]
    workers = sum(group["replicas"] for group in job["rayClusterSpec"]["workerGroupSpecs"])
    assert len(hosts) == workers
