"""What is sent to a Ray cluster, and what is said of one that lacks something."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from srl.errors import ConfigError, MissingDependency, install_command
from srl.launch.backends.ray_cluster import bundle, explain_missing, import_ray, runtime_environment
from srl.resolve import SENT_FROM, resolve
from srl.resources import RayConfig, ResourceConfig, ResourcesConfig

GIGABYTE = 2**30


def test_a_host_needs_the_sum_of_its_workers() -> None:
    resources = ResourcesConfig(
        actor=ResourceConfig(cpus=0.5), trainer=ResourceConfig(cpus=2, gpus=0.25, memory_gb=1)
    )

    total = resources.of(["actor", "actor", "trainer-red", "of-my-own"])

    assert total == ResourceConfig(cpus=4.0, gpus=0.25, memory_gb=1.0)
    assert bundle(total) == {"CPU": 4.0, "GPU": 0.25, "memory": GIGABYTE}


def test_several_gpus_are_whole_ones() -> None:
    """Ray refuses 1.5 GPUs."""
    assert bundle(ResourceConfig(gpus=1.5)) == {"CPU": 1.0, "GPU": 2}
    assert bundle(ResourceConfig(gpus=0.5)) == {"CPU": 1.0, "GPU": 0.5}


def test_resources_below_zero_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"gpus of at least 0, got -1"):
        ResourceConfig(gpus=-1)


@pytest.mark.parametrize(("wanted", "words"), [
    ({"CPU": 8}, "needs 8 CPU; no node has 8 CPU (the largest of 2 has 4)"),
    ({"CPU": 1, "GPU": 0.5}, "needs 1 CPU and 0.5 GPU; no node has 0.5 GPU (the largest of 2 has "
     "0)"),
    ({"CPU": 4}, "needs 4 CPU; 3 of 6 CPU are free"),
    ({"memory": 2 * GIGABYTE}, "needs 2 GB of memory; 1 of 16 GB of memory are free"),
    ({"CPU": 3}, "needs 3 CPU; there is enough in the cluster, but not on one node at the moment"),
])  # fmt: skip
def test_a_cluster_without_room_is_explained(wanted: dict[str, float], words: str) -> None:
    nodes = [{"CPU": 4.0, "memory": 8.0 * GIGABYTE}, {"CPU": 2.0, "memory": 8.0 * GIGABYTE}]

    assert explain_missing(wanted, nodes, {"CPU": 3.0, "memory": GIGABYTE}) == words


def test_code_is_sent_with_srl_itself(tmp_path: Path) -> None:
    config = RayConfig(working_dir=str(tmp_path), env_vars={"A": "1"}, pip=("einops",))

    sent = runtime_environment(config)

    assert sent["working_dir"] == str(tmp_path)
    assert sent["env_vars"] == {"A": "1", SENT_FROM: str(tmp_path)}
    assert sent["pip"] == ["einops"]
    assert (Path(sent["py_modules"][0]) / "launch" / "backends" / "ray.py").exists()


def test_no_code_is_sent_where_none_is_named() -> None:
    assert "working_dir" not in runtime_environment(RayConfig(working_dir=""))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ray.working_dir: expected a folder, got .*none"):
        runtime_environment(RayConfig(working_dir=str(tmp_path / "none")))


def test_a_file_that_was_sent_is_found_where_it_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = tmp_path / "arrived"
    (arrived / "envs").mkdir(parents=True)
    (arrived / "envs" / "mine.py").write_text("ANSWER = 42\n")
    monkeypatch.chdir(arrived)
    monkeypatch.setenv(SENT_FROM, "/far/away")

    assert resolve("/far/away/envs/mine.py:ANSWER") == 42


def test_missing_ray_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(MissingDependency, match=re.escape(install_command("ray"))):
        import_ray()
