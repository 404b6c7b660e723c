"""A run as one Slurm job: what it asks for, its script, and handing it in.

The first part of the job runs the head, which is `srl resume RUN`: whether the job runs for the
first time or was queued again after a preemption, a lost node or its time limit, it goes on from
what the run directory has. The other parts are hosts, on which the head starts agents.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from srl.errors import ConfigError, RunError
from srl.launch.engines import HostRequest, srl_command
from srl.resources import ResourceConfig, SlurmConfig

JOB_VARIABLE = "SRL_SLURM_JOB"
"""Holds, inside of a job that was made here, the job's number."""
PARTS_VARIABLE = "SRL_SLURM_PARTS"
"""Holds there the hosts of each part, as JSON."""
SCRIPT_FILE = "job.sh"
WAIT_SECONDS = 2.0
ANSWER_SECONDS = 30.0
"""How long a command of Slurm may take to answer."""
SILENCE_SECONDS = 120.0
"""How long Slurm may be out of reach while a job is waited for; a new start of it takes less."""


def inside_job() -> bool:
    """Whether this process is the head of a job, rather than who hands one in."""
    job = os.environ.get(JOB_VARIABLE)
    return bool(job) and job == os.environ.get("SLURM_JOB_ID")


@dataclass(frozen=True)
class Part:
    """Nodes of a job that need the same; the first node of the first part runs the head."""

    resources: ResourceConfig
    hosts: tuple[str, ...]
    """Names of hosts, one for each node; the head's is empty."""


def job_parts(home: ResourceConfig, hosts: Sequence[HostRequest]) -> list[Part]:
    """Hosts that need the same are one part of the job; the head's comes first."""
    parts = {home: [""]}
    for host in hosts:
        parts.setdefault(host.resources, []).append(host.name)
    return [Part(resources, tuple(names)) for resources, names in parts.items()]


def job_script(name: str, run_dir: Path, parts: Sequence[Part], config: SlurmConfig) -> str:
    """The batch script: options, and a head that is told in time when the job must end."""
    lines = ["#!/bin/bash"]
    for index, part in enumerate(parts):
        lines += ["#SBATCH hetjob"] if index else []
        options = _options(part, config)
        if index == 0:
            options = [*_job_options(name, run_dir, config), *options]
        lines += [f"#SBATCH {option}" for option in options]
    names = msgspec.json.encode([part.hosts for part in parts]).decode()
    lines += [
        "",
        *config.setup,
        f"export {JOB_VARIABLE}=$SLURM_JOB_ID",
        f"export {PARTS_VARIABLE}={shlex.quote(names)}",
        _BODY.format(head=shlex.join(srl_command("resume", str(run_dir), "--quiet"))),
    ]
    return "\n".join(lines)


_BODY = """\
again=
trap 'kill -TERM $head 2>/dev/null' TERM
trap 'again=yes; kill -TERM $head 2>/dev/null' USR1
{head} &
head=$!
while kill -0 $head 2>/dev/null; do wait $head; done
wait $head
code=$?
# The time is up, and the run is not over: it goes on when the job's turn comes again.
if test -n "$again" && test $code -gt 128; then scontrol requeue $SLURM_JOB_ID; sleep 30; fi
exit $code
"""


def _job_options(name: str, run_dir: Path, config: SlurmConfig) -> list[str]:
    """Options of the job as a whole."""
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    options = [
        f"--job-name=srl-{safe}",
        f"--output={_quoted(run_dir / 'logs' / 'slurm.log')}",
        "--open-mode=append",
        "--requeue",
    ]
    if config.signal_seconds:
        options.append(f"--signal=B:USR1@{config.signal_seconds}")
    return options


def _options(part: Part, config: SlurmConfig) -> list[str]:
    """Options of one part: Slurm takes over none of them from the first."""
    needs = part.resources
    named = {"partition": config.partition, "account": config.account, "qos": config.qos}
    options = [f"--{name}={value}" for name, value in named.items() if value]
    if config.time_minutes:
        options.append(f"--time={config.time_minutes}")
    options += [
        f"--nodes={len(part.hosts)}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={max(1, math.ceil(needs.cpus))}",
        "--no-kill",
    ]
    if needs.memory_gb:
        options.append(f"--mem={math.ceil(needs.memory_gb * 1024)}M")
    if needs.gpus:
        gpus = math.ceil(needs.gpus)
        gres = config.gres.replace("{gpus}", str(gpus))
        options.append(f"--gres={gres}" if gres else f"--gpus-per-node={gpus}")
    return [*options, *config.extra]


def _quoted(path: Path) -> str:
    """A path in an option line; Slurm reads % in it as a pattern."""
    return shlex.quote(str(path).replace("%", "%%"))


def submit(name: str, run_dir: Path, parts: Sequence[Part], config: SlurmConfig) -> str:
    """Hands in the job and returns its number.

    The run directory has the experiment's settings by then.
    """
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "--launcher slurm: expected the command sbatch, got none. Start the run on a machine "
            "that can hand in Slurm jobs."
        )
    run_dir = run_dir.absolute()
    script = run_dir / SCRIPT_FILE
    script.write_text(job_script(name, run_dir, parts, config))
    script.chmod(0o700)
    try:
        done = ask_slurm("sbatch", "--parsable", str(script))
    except RunError as error:
        raise RunError(
            f"{error} The job may have been handed in all the same: `squeue --me` lists it."
        ) from None
    if done.returncode != 0:
        words = " ".join(done.stderr.split()).removeprefix("sbatch: error: ")
        raise RunError(
            f"Slurm refused the job: {words or f'exit code {done.returncode}'}. What it was asked "
            f"for is in {script}; change it by the settings `slurm` and `resources`."
        )
    return done.stdout.strip().partition(";")[0]


def ask_slurm(*command: str) -> subprocess.CompletedProcess[str]:
    """What a command of Slurm answers, and its exit code; raises where it takes too long."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise RunError(
            f"`{shlex.join(command)}`: expected an answer of Slurm within {ANSWER_SECONDS:g} s, "
            "got none. `scontrol ping` says whether its controller is up."
        ) from None
    except OSError as error:
        raise RunError(
            f"`{shlex.join(command)}`: expected a command of Slurm, got {error}."
        ) from None


def wait_for_job(job: str) -> None:
    """Returns when a job has ended, however it did; one that is queued again has not."""
    answered = time.monotonic()
    while True:
        words = ""
        try:
            done = ask_slurm("squeue", "--noheader", "--jobs", job, "--format=%T")
            # Slurm forgets a job some minutes after its end, and then does not know its number.
            if not done.stdout.strip() and (done.returncode == 0 or "Invalid job" in done.stderr):
                return
            if done.returncode != 0:
                words = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        except RunError as error:
            words = str(error)
        now = time.monotonic()
        if not words:
            answered = now
        elif now - answered > SILENCE_SECONDS:
            raise RunError(
                f"job {job}: Slurm has not said for {now - answered:.0f} s how it is: {words} The "
                "job goes on; `squeue` and `srl status` show it."
            )
        time.sleep(WAIT_SECONDS)
