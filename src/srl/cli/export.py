"""`srl export`: write a trained policy into one file that runs without SRL."""

from __future__ import annotations

import argparse

from srl.cli.options import Verbs, add_trust, add_verb

_EXAMPLES = """
srl export runs/cartpole --output policy.onnx
srl export runs/cartpole --output policy.pt2 --checkpoint best
srl export runs/tag --output chaser.onnx --of chaser --explore
"""


def add_verbs(verbs: Verbs) -> None:
    """Adds `srl export`."""
    text = "write a policy into one ONNX or PyTorch file that runs without SRL"
    parser = add_verb(verbs, "export", text, _EXAMPLES)
    parser.add_argument("directory", metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--output",
        metavar="FILE",
        required=True,
        help="a .onnx file, or a .pt2 file for torch.export; a page beside it (.md) says how to "
        "call it",
    )
    parser.add_argument(
        "--of", default="", metavar="NAME", help="the policy; needed where the run has several"
    )
    parser.add_argument(
        "--checkpoint",
        default="latest",
        metavar="latest|best|NUMBER|vVERSION",
        help="the checkpoint with the weights, as for `srl eval` (default: latest)",
    )
    parser.add_argument(
        "--explore",
        action="store_true",
        help="sample actions as training does, not greedily; random numbers become inputs",
    )
    add_trust(parser)
    parser.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> int:
    from srl.run import load

    written = load(args.directory).export(
        args.output,
        of=args.of,
        checkpoint=args.checkpoint,
        explore=args.explore,
        trust=args.trust,
    )
    print(written)
    print(f"how to call it: {written.with_suffix('.md')}")
    return 0
