"""Holds a Ray cluster of several nodes: a line in is an order, a line out is its answer.

It leaves its parent at once, so that what the cluster starts is nobody's child but the cluster's.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import psutil
from ray.cluster_utils import Cluster

SMALL = {"object_store_memory": 80 * 2**20}


def main() -> None:
    cluster = Cluster()
    nodes: dict[str, Any] = {}
    for line in sys.stdin:
        match line.split():
            case ["head"]:
                cluster.add_node(
                    num_cpus=0, include_dashboard=False, no_monitor=True, include_log_monitor=False,
                    **SMALL,
                )  # fmt: skip
                answer = cluster.address
            case ["add", cpus]:
                node = cluster.add_node(num_cpus=int(cpus), include_log_monitor=False, **SMALL)
                nodes[node.node_id] = node
                answer = node.node_id
            case ["kill", name]:
                answer = kill(cluster, nodes.pop(name))
            case _:
                break
        print(answer, flush=True)
    cluster.shutdown()
    print("ended", flush=True)


def kill(cluster: Cluster, node: Any) -> str:
    """Kills the processes of a node and all that they started, none of them warned."""
    raylet = node.all_processes["raylet"][0].process
    family = psutil.Process(raylet.pid).children(recursive=True)
    for process in [psutil.Process(raylet.pid), *family]:
        process.kill()
    cluster.remove_node(node, allow_graceful=False)
    return str(len(family))


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    main()
