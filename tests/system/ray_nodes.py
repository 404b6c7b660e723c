"""Holds a Ray cluster of several nodes: a line in is an order, a line out is its answer.

It leaves its parent at once, so that what the cluster starts is nobody's child but the cluster's.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

import psutil
import ray
from harness import runs
from ray.cluster_utils import Cluster

SMALL = {"object_store_memory": 80 * 2**20}


def main() -> None:
    cluster = Cluster()
    nodes: list[Any] = []
    for line in sys.stdin:
        match line.split():
            case ["head"]:
                cluster.add_node(
                    num_cpus=0, memory=2**30, include_dashboard=False, no_monitor=True,
                    include_log_monitor=False, **SMALL,
                )  # fmt: skip
                answer = cluster.address
            case ["add", cpus, gpus, gigabytes]:
                node = cluster.add_node(
                    num_cpus=int(cpus), num_gpus=int(gpus), memory=int(gigabytes) * 2**30,
                    include_log_monitor=False, **SMALL,
                )  # fmt: skip
                nodes.append(node)
                answer = node.node_id
            case ["free"]:
                with ray.init(cluster.address, logging_level=logging.ERROR, log_to_driver=False):
                    answer = json.dumps(ray.available_resources())
            case ["kill"]:
                busy = next(node for node in nodes if is_busy(node))
                nodes.remove(busy)
                kill(cluster, busy)
                answer = busy.node_id
            case _:
                break
        print(answer, flush=True)
    cluster.shutdown()
    print("ended", flush=True)


def is_busy(node: Any) -> bool:
    """Whether workers of ours run on a node."""
    return any(runs(process, "srl.launch.process.worker") for process in family(node))


def family(node: Any) -> list[psutil.Process]:
    """The raylet of a node, and all that it started."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    return [raylet, *raylet.children(recursive=True)]


def kill(cluster: Cluster, node: Any) -> None:
    """Kills the processes of a node, none of them warned."""
    for process in family(node):
        process.kill()
    cluster.remove_node(node, allow_graceful=False)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    main()
