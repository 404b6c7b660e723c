"""A run as one Slurm job: its options, its script, and its submission.

The first part of the job runs the head, with `srl resume RUN`. So the run continues from its run
directory, also if the job was queued again after a preemption, a lost node or its time limit. The
other parts are hosts, on which the head starts agents.
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
from srl.launch.backends.backend import HostRequest, srl_command
from srl.resources import ResourceConfig, SlurmConfig

JOB_VARIABLE = "SRL_SLURM_JOB"
"""Environment variable with the job's number, inside a job that `submit` made."""
PARTS_VARIABLE = "SRL_SLURM_PARTS"
"""Environment variable with the hosts of each part as JSON, inside such a job."""
SCRIPT_FILE = "job.sh"
WAIT_SECONDS = 2.0
"""Time between two queries for the state of a job."""
ANSWER_SECONDS = 30.0
"""How long a command of Slurm may take to answer."""
SILENCE_SECONDS = 120.0
"""How long Slurm may not answer while `wait_for_job` waits. A restart of Slurm takes less."""


def inside_job() -> bool:
    """Whether this process is the head of a Slurm job; False in the command that submits a job."""
    job = os.environ.get(JOB_VARIABLE)
    return bool(job) and job == os.environ.get("SLURM_JOB_ID")


@dataclass(frozen=True)
class JobPart:
    """Nodes of a job with the same resources. The first node of the first part runs the head."""

    resources: ResourceConfig
    hosts: tuple[str, ...]
    """The name of the host on each node; empty for the head's."""


def job_parts(head: ResourceConfig, hosts: Sequence[HostRequest]) -> list[JobPart]:
    """The parts of a job. Hosts with the same resources share one; the head's is the first."""
    parts = {head: [""]}
    for host in hosts:
        parts.setdefault(host.resources, []).append(host.name)
    return [JobPart(resources, tuple(names)) for resources, names in parts.items()]


def job_script(name: str, run_dir: Path, parts: Sequence[JobPart], config: SlurmConfig) -> str:
    """The batch script: the options, and the head, which gets a signal before the time limit."""
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
        _BODY.format(head=shlex.join(_head_command(run_dir))),
    ]
    return "\n".join(lines)


def _head_command(run_dir: Path) -> list[str]:
    """The command that runs the head.

    With `--trust`, because the user who submits the job has agreed to run its code. The node may
    lack the user's home folder, and with it the key that proves this.
    """
    return srl_command("resume", str(run_dir), "--quiet", "--trust")


_BODY = """\
again=
trap 'kill -TERM $head 2>/dev/null' TERM
trap 'again=yes; kill -TERM $head 2>/dev/null' USR1
{head} &
head=$!
while kill -0 $head 2>/dev/null; do wait $head; done
wait $head
code=$?
# The time limit is near and the run is not over: queue the job again, and the run continues then.
if test -n "$again" && test $code -gt 128; then scontrol requeue $SLURM_JOB_ID; sleep 30; fi
exit $code
"""


def _job_options(name: str, run_dir: Path, config: SlurmConfig) -> list[str]:
    """The options that are for the whole job."""
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


def _options(part: JobPart, config: SlurmConfig) -> list[str]:
    """The options of one part. Slurm copies none of them from the first part."""
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
    """A path for an option line, quoted. `%` is doubled, because Slurm reads it as a pattern."""
    return shlex.quote(str(path).replace("%", "%%"))


def submit(name: str, run_dir: Path, parts: Sequence[JobPart], config: SlurmConfig) -> str:
    """Submits the job and returns its number.

    The run directory must already have the experiment's settings.
    """
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "--launcher slurm: expected the command sbatch, got none. Start the run on a machine "
            "that can submit Slurm jobs."
        )
    run_dir = run_dir.absolute()
    script = run_dir / SCRIPT_FILE
    script.write_text(job_script(name, run_dir, parts, config))
    script.chmod(0o700)
    try:
        done = ask_slurm("sbatch", "--parsable", str(script))
    except RunError as error:
        raise RunError(
            f"{error} The job may have been submitted nevertheless: then `squeue --me` lists it."
        ) from None
    if done.returncode != 0:
        words = " ".join(done.stderr.split()).removeprefix("sbatch: error: ")
        raise RunError(
            f"Slurm refused the job: {words or f'exit code {done.returncode}'}. Its options are in "
            f"{script}; change them by the settings `slurm` and `resources`."
        )
    return done.stdout.strip().partition(";")[0]


def ask_slurm(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a Slurm command; returns output and exit code. RunError if it takes too long."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise RunError(
            f"`{shlex.join(command)}`: expected an answer of Slurm within {ANSWER_SECONDS:g} s, "
            "got none. `scontrol ping` shows whether its controller is up."
        ) from None
    except OSError as error:
        raise RunError(
            f"`{shlex.join(command)}`: expected a command of Slurm, got {error}."
        ) from None


def wait_for_job(job: str) -> None:
    """Returns when a job has ended, with any result. A job that is queued again has not ended."""
    answered = time.monotonic()
    while True:
        words = ""
        try:
            done = ask_slurm("squeue", "--noheader", "--jobs", job, "--format=%T")
            # Some minutes after its end, Slurm does not know the number of a job any more.
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
                f"job {job}: Slurm has not reported its state for {now - answered:.0f} s: {words} "
                "The job goes on; `squeue` and `srl status` show it."
            )
        time.sleep(WAIT_SECONDS)
