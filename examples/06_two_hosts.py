"""Train on several hosts: here two agents on this machine, elsewhere the same with machines.

    python examples/06_two_hosts.py [FOLDER]

`hosts` says which host may hold which workers; the rest, here the trainer, runs where this script
does. With `launcher="processes"` the hosts are agents of this machine, joined through sockets that
only they have keys for. On real machines it would be `launcher="manual"`, this machine's address as
`listen`, and on each of the others

    srl worker --join ADDRESS:PORT --key-file FOLDER/keys/join.key --name NAME

While it trains, `srl status FOLDER` in another terminal lists every worker with its host.
"""

import sys

import srl

HOSTS = {"left": ["actor"], "right": ["policy"]}


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/example_06"
    run = srl.train(
        "cartpole",
        layout="remote",
        launcher="processes",
        set={"hosts": HOSTS, "actor.count": 2},
        run_dir=folder,
    )
    print(f"return: {run.evaluate(episodes=20).mean:.0f}, of at most 500")
