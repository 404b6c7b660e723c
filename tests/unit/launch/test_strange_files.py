"""Files of a run that a stranger wrote cost no more than a run needs, and steer no terminal."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import srl
from srl.cli import main
from srl.data.codec import save_state
from srl.errors import CheckpointError, ConfigError, RunError, SrlError
from srl.launch.run.status import RunStatus, read_status
from srl.reporting.console import final_report
from srl.reporting.summary import Summary, read_summary, write_summary
from srl.services.checkpoint_parts import hash_parts
from srl.services.manifest import MANIFEST_FILE, open_checkpoint
from srl.services.metrics import read_metrics

HUGE = 16 << 30
RED = "\x1b[31m\x9b2J\u202e"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    srl.train("CartPole-v1", layout="serial", steps=256, run_dir=path, quiet=True)
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A run that a test may spoil."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def strangers_config(run: Path, **settings: Any) -> Path:
    """A run beside another whose settings somebody else has written."""
    path = run.with_name("strangers")
    path.mkdir()
    plain = yaml.safe_load((run / "config.yaml").read_text())
    (path / "config.yaml").write_text(yaml.safe_dump({**plain, **settings}))
    return path


def weights_file(run: Path) -> Path:
    return sorted(run.glob("checkpoints/*/weights.*"))[-1]


def rewrite_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes a manifest and gives it the digest that it then must have."""
    import hashlib

    file = folder / MANIFEST_FILE
    manifest = json.loads(file.read_text())
    change(manifest)
    manifest["digest"] = ""
    digest = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
    manifest["digest"] = digest
    file.write_text(json.dumps(manifest))


def enlarge(file: Path) -> None:
    """Makes a file huge without taking room on the disk, and has the manifest say so."""
    with file.open("r+b") as opened:
        opened.truncate(HUGE)

    def change(manifest: dict[str, Any]) -> None:
        for part in manifest["parts"].values():
            if part["file"] == file.name:
                part["bytes"] = HUGE

    rewrite_manifest(file.parent, change)


def forbid_hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise AssertionError(f"all of {path} would be read")

    monkeypatch.setattr("srl.services.checkpoint_parts._sha256", refuse)


def test_weights_larger_than_their_policy_are_not_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enlarge(weights_file(run))
    forbid_hashing(monkeypatch)
    for ask in (
        lambda: srl.load(run).evaluate(1),
        lambda: srl.load(run).policy,
        lambda: srl.train(
            "CartPole-v1", layout="serial", steps=1, init_from=run, run_dir=tmp_path / "new"
        ),
    ):
        with pytest.raises(CheckpointError, match="17,179,869,184"):
            ask()


def test_weights_of_other_shapes_are_named_before_they_are_read(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = weights_file(run)
    save_state(file, {"other": np.zeros((3, 4), np.float32)})

    def change(manifest: dict[str, Any]) -> None:
        parts = hash_parts(file.parent)
        manifest["parts"] = {
            name: {"file": part.file, "sha256": part.sha256, "bytes": part.bytes}
            for name, part in parts.items()
        }

    rewrite_manifest(file.parent, change)
    forbid_hashing(monkeypatch)
    with pytest.raises(CheckpointError, match=r"expected shape .*, got None"):
        srl.load(run).evaluate(1)


def test_a_checkpoint_larger_than_the_memory_is_not_resumed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("srl.services.checkpoint_parts.machine_memory", lambda: HUGE - 1)
    for folder in (run / "checkpoints").iterdir():
        enlarge(next(folder.glob("weights.*")))
    forbid = "srl.services.checkpoint_parts._sha256"
    real = __import__("srl.services.checkpoint_parts", fromlist=["_sha256"])._sha256

    def small_only(path: Path) -> str:
        assert path.stat().st_size < HUGE
        return str(real(path))

    monkeypatch.setattr(forbid, small_only)
    with pytest.raises(CheckpointError, match="this machine's memory"):
        srl.resume(run, set={"steps": 512}, quiet=True)


@pytest.mark.parametrize("name", ["weights.*", "collector.*", "trainer*"])
def test_a_strangers_checkpoint_larger_than_its_run_needs_is_not_read(
    run: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("srl.services.checkpoint_parts.machine_memory", lambda: HUGE)
    (run / "config.sig").unlink()
    enlarge(sorted(run.glob(f"checkpoints/*/{name}"))[-1])
    forbid_hashing(monkeypatch)
    for again in (
        lambda: srl.resume(run, set={"steps": 512}, quiet=True),
        lambda: srl.train("CartPole-v1", layout="serial", steps=512, run_dir=run, quiet=True),
    ):
        with pytest.raises(CheckpointError, match=r"expected at most [\d,]+ bytes for a run with"):
            again()


def test_a_strangers_run_is_resumed(run: Path) -> None:
    (run / "config.sig").unlink()
    assert srl.resume(run, set={"steps": 512}, quiet=True).summary.env_steps >= 512


def test_a_network_larger_than_the_memory_is_not_made(run: Path) -> None:
    file = run / "config.yaml"
    text = file.read_text().replace("  - 64\n", "  - 4000000\n")
    assert text != file.read_text()
    file.write_text(text)
    with pytest.raises(ConfigError, match="fits into this machine's memory"):
        srl.load(run).evaluate(1)


@pytest.mark.parametrize("name", ["../../secret.safetensors", "/dev/zero", "sub/x.safetensors"])
def test_parts_are_files_of_their_checkpoint(run: Path, name: str) -> None:
    folder = weights_file(run).parent

    def change(manifest: dict[str, Any]) -> None:
        for part in manifest["parts"].values():
            part["file"] = name

    rewrite_manifest(folder, change)
    with pytest.raises(CheckpointError, match="has a part"):
        open_checkpoint(folder)


def test_a_part_that_is_a_link_is_not_followed(run: Path, tmp_path: Path) -> None:
    file = weights_file(run)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="is a link"):
        srl.load(run).evaluate(1)


@pytest.mark.parametrize("key", ["number", "env_steps", "episodes"])
def test_numbers_of_a_manifest_fit_where_they_are_added_up(run: Path, key: str) -> None:
    folder = weights_file(run).parent
    rewrite_manifest(folder, lambda manifest: manifest.update({key: 1 << 62}))
    with pytest.raises(CheckpointError, match=f"unreadable .*{key}"):
        open_checkpoint(folder)


# -- settings --------------------------------------------------------------------------------------


def test_aliases_do_not_multiply(run: Path) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for one, two in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{two}: &{two} [{', '.join([f'*{one}'] * 9)}]")
    (run / "config.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="alias"):
        srl.load(run)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed: " + "9" * 6000, r"a number of [\d,]+ digits"),
        ("seed: 1" + ":1" * 100_000, r"a number of [\d,]+ digits"),
        ("seed: " + "9" * 40, "64 bits"),
        ("[" * 100_000, "50 deep"),
        ("name: " + "{a: " * 50_000, "50 deep"),
        ("# " + "x" * 300_000, "at most"),
        ('name: "\\e[31m"', "control characters"),
        ('"\\u202e": 1', "control characters"),
        ("", "empty"),
    ],
)
def test_odd_settings_are_one_message(run: Path, text: str, words: str) -> None:
    (run / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        srl.load(run)


@pytest.mark.parametrize("name", ["/x/evil", "../x", "a/b", ".x", "-x", "", "a b", "é", "a" * 65])
def test_policies_and_hosts_are_not_called_by_paths(run: Path, name: str) -> None:
    env = srl.EnvConfig(id="CartPole-v1")
    with pytest.raises(ConfigError, match=r"policies: expected names .* Rename it"):
        srl.Experiment(env=env, policies={name: srl.PolicyConfig()})
    with pytest.raises(ConfigError, match=r"hosts: expected names .* Rename it"):
        srl.Experiment(env=env, hosts={name: ("actor",)})
    assert srl.Experiment(env=env, hosts={"_a.b-C9": ("actor",)}).hosts


def test_a_run_keeps_no_weights_outside_of_its_folder(run: Path, tmp_path: Path) -> None:
    evil = strangers_config(run, policies={f"{tmp_path}/evil": {"source": str(run)}})
    with pytest.raises(ConfigError, match=r"policies: expected names"):
        srl.resume(evil, quiet=True)
    assert not list(tmp_path.glob("evil*"))


# -- other files -----------------------------------------------------------------------------------

READERS: dict[str, Callable[[Path], Any]] = {
    "config.yaml": srl.load,
    "summary.json": read_summary,
    "status.json": read_status,
    "metrics.jsonl": read_metrics,
}


@pytest.mark.parametrize("name", READERS)
def test_a_huge_file_is_not_read(run: Path, name: str) -> None:
    with (run / name).open("ab") as file:
        file.truncate(HUGE)
    with pytest.raises(SrlError, match="expected"):
        READERS[name](run)


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_or_a_device_is_not_waited_for(run: Path, name: str) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with pytest.raises(SrlError, match="expected a file"):
        READERS[name](run)
    (run / name).unlink()
    (run / name).symlink_to("/dev/zero")
    with pytest.raises(SrlError, match="expected a file"):
        READERS[name](run)


def test_a_strangers_links_are_not_written_through(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (run / "plot.png").unlink(missing_ok=True)
    (run / "plot.png").symlink_to(precious)
    assert main(["plot", str(run)]) == 1
    (run / "plot.png").unlink()
    (run / "config.sig").unlink()
    for name in ("metrics.jsonl", "logs/controller.log"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(precious)
        with pytest.raises(ConfigError, match="precious"):
            srl.resume(run, set={"steps": 512}, quiet=True)
        (run / name).unlink()
    assert precious.read_text() == "mine"
    assert "--output" in capsys.readouterr().err


# -- terminals -------------------------------------------------------------------------------------


def is_shown(text: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in text)


def test_messages_show_what_would_steer_a_terminal() -> None:
    said = str(RunError(f"a\tb\n{RED}é"))
    assert said == "a\tb\n\\x1b[31m\\x9b2J\\u202eé"


def test_no_verb_prints_escapes_of_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = RunStatus(
        written=0.0,
        name=RED,
        seconds=1.0,
        env_steps=1,
        policy_version=1,
        join=RED,
        hosts=(),
        workers=(),
        scaled={RED: 1},
        capacity={RED: 1},
    )
    import msgspec

    (run / "status.json").write_bytes(msgspec.json.encode(status))
    assert main(["status", str(run)]) == 0
    assert main(["status", str(run), "--json"]) == 0
    tags = weights_file(run).parent / "tags"
    tags.mkdir(exist_ok=True)
    (tags / f"x{RED}").touch()
    assert main(["eval", str(run), "--checkpoint", "y"]) == 1
    write_summary(run, Summary(status="finished", reason=RED, env_steps=256, name=RED))
    assert main(["resume", str(run)]) == 0
    (run / "summary.json").write_text(json.dumps({"status": RED}))
    with pytest.raises(RunError) as caught:
        read_summary(run)
    said = capsys.readouterr()
    assert "is finished (\\x1b" in said.out
    assert is_shown(said.out + said.err + str(caught.value))


def test_a_report_shows_escapes(tmp_path: Path) -> None:
    write_summary(tmp_path, Summary(status="failed", error=RED, bottleneck=RED, reason=RED))
    assert is_shown(final_report(read_summary(tmp_path), tmp_path))


def test_names_in_a_plot_are_not_formulas(run: Path, tmp_path: Path) -> None:
    line = {"env_steps": 1, "policies.$\\frac{.episode_return_mean": 1.0, "policies.b.x": 2.0}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert srl.load(run).plot(tmp_path / "plot.png").exists()
