"""Every metric that a run reports, and what it means.

Names in angle brackets stand for several: of policies, worker kinds, hosts or environments. With
several policies a metric of one policy has `policies.<policy>.` before its name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """The meaning of one metric."""

    meaning: str
    section: str = ""
    """The section of TensorBoard that has its curve; empty if that is the text before its dot."""
    of_run: bool = False
    """Whether a run with several policies has it as a whole: its progress, but not its returns."""


METRICS = {
    "env_steps": Metric(
        "Environment steps that went through an update; with several policies those of the policy "
        "that is furthest.",
        "progress",
        of_run=True,
    ),
    "agent_steps": Metric(
        "The same, counted for every agent that acted; with several policies the sum over those "
        "that learn.",
        "progress",
        of_run=True,
    ),
    "episodes": Metric("Training episodes that have ended.", "progress", of_run=True),
    "seconds": Metric(
        "Seconds of training, those before a resume included.", "progress", of_run=True
    ),
    "env_steps_per_second": Metric(
        "Environment steps a second, over the last `logging.rate_seconds`.", "speed", of_run=True
    ),
    "update_seconds": Metric("Seconds of the last update.", "speed"),
    "policy_version": Metric("Number of updates: learner steps done.", "policy", of_run=True),
    "policy_age_mean": Metric(
        "Versions between choosing an action and learning from it: the mean of the last update.",
        "policy",
        of_run=True,
    ),
    "policy_age_max": Metric("The largest policy age of the last update.", "policy", of_run=True),
    "episode_return_mean": Metric(
        "Mean return of the last `logging.window` training episodes.", "episode"
    ),
    "episode_length_mean": Metric("Mean length of these episodes.", "episode"),
    "window_full": Metric("Whether there were `logging.window` training episodes already."),
    "episode.<name>": Metric(
        "What the environment reports at the end of an episode (its `metrics`); mean of these "
        "episodes."
    ),
    "eval_return_mean": Metric("Mean return of the last evaluation.", "eval"),
    "eval_length_mean": Metric("Mean length of the episodes of the last evaluation.", "eval"),
    "eval_policy_version": Metric("The policy version that was evaluated.", "eval"),
    "agents.<side>.episode_return_mean": Metric(
        "`episode_return_mean` of one side, if the policy plays several."
    ),
    "agents.<side>.eval_return_mean": Metric(
        "`eval_return_mean` of one side, if the policy plays several."
    ),
    "agents.<side>.window_full": Metric("`window_full` of one side."),
    "actors.<group>.episode_return_mean": Metric(
        "`episode_return_mean` in one group of actors (`main`, or a name in `actors`), if there "
        "are several."
    ),
    "train.<name>": Metric("A metric of the algorithm: see its page."),
    "workers.<kind>.busy": Metric("Share of the time that workers of a kind worked."),
    "workers.<kind>.wait.<what>": Metric("Share of the time that they waited for something."),
    "worker_seconds.<kind>.busy": Metric(
        "Seconds that workers of a kind worked since the start; only in metrics.jsonl."
    ),
    "worker_seconds.<kind>.wait.<what>": Metric("Seconds that they waited since the start."),
    "worker_seconds.<kind>.workers": Metric("Number of these workers."),
    "replay.<workers>.inserted": Metric(
        "Environment steps that replay workers have stored since the start; a sum over all of "
        "them, as is what follows."
    ),
    "replay.<workers>.stored": Metric(
        "Ticks of environments that they hold: steps, and final observations."
    ),
    "replay.<workers>.sampled": Metric("Windows that were drawn."),
    "replay.<workers>.lost": Metric(
        "Ticks of environments that were lost with a worker that died. It fills its share anew."
    ),
    "between_hosts.wait_requests_seconds": Metric(
        "Seconds that requests waited for replies of other hosts; a sum over all hosts, as is what "
        "follows."
    ),
    "between_hosts.wait_slots_seconds": Metric(
        "Seconds that writers waited for slots of other hosts."
    ),
    "between_hosts.data_messages": Metric(
        "Messages from other hosts that had requests, replies, fragments or weights in them."
    ),
    "between_hosts.resent": Metric("Messages that were sent again because no answer came."),
    "between_hosts.unsent": Metric(
        "Messages that were not sent: the queue was full, or there was no connection. They are "
        "tried again later."
    ),
    "between_hosts.stale": Metric("Messages that came twice or too late, and were ignored."),
    "between_hosts.rejected": Metric("Messages that did not fit the plan."),
    "between_hosts.refused": Metric("Connections without a valid key."),
    "samples.<stream>.produced": Metric(
        "Fragments that were committed to a sample stream; this and what follows only in "
        "summary.json."
    ),
    "samples.<stream>.consumed": Metric("Fragments whose update is done."),
    "samples.<stream>.in_flight": Metric("Fragments between the two at the end of the run."),
    "samples.<stream>.dropped.<reason>": Metric(
        "Fragments that were lost: `writer died`, `reader died`, `out of turn` (its batch was "
        "complete without it), `host lost`, `too late`."
    ),
    "updates.<policy>.lost": Metric("Updates that were lost with a trainer."),
    "updates.<policy>.too_old": Metric("Updates on data older than `algorithm.max_policy_age`."),
    "actions.dropped": Metric(
        "Actions of turn-based games that were older than `algorithm.max_policy_age` allows when "
        "their rewards came; no update uses them."
    ),
    "env_failures": Metric("Failures of environments that actors recovered from."),
    "time": Metric("When the line was written, in seconds since 1970; only in metrics.jsonl."),
}
RUN_METRICS = frozenset(name for name, metric in METRICS.items() if metric.of_run)
"""Metrics that a run with several policies has as a whole."""
