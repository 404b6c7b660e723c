"""Trees of arrays: nested dicts whose leaves are arrays, specs or anything else that is not a dict.

A single array is a tree too, with one leaf at the empty path. Paths are dotted (`"camera.left"`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optree

from srl.errors import SpecError

Tree = Any
"""A leaf, or a dict of trees."""
MAX_DEPTH = 64
"""Limit on the levels of a tree that `unflatten` builds."""


def tree_map(function: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Applies `function` to every leaf, together with the leaves at the same paths in `rest`."""
    if isinstance(tree, np.ndarray):
        # The common case: a single array needs no walk through a tree.
        return function(tree, *rest)
    return optree.tree_map(function, tree, *rest)


def leaves(tree: Tree) -> list[Any]:
    """The leaves, in the order of their sorted paths. None has no leaves."""
    if isinstance(tree, np.ndarray):
        return [tree]
    if tree is None:
        return []
    found: list[Any] = optree.tree_leaves(tree)
    return found


def paths(tree: Tree) -> Iterator[tuple[str, Any]]:
    """Pairs of dotted path and leaf, in the order of `leaves`."""
    found, items, _ = optree.tree_flatten_with_path(tree)
    for path, leaf in zip(found, items, strict=True):
        yield ".".join(str(key) for key in path), leaf


def flatten(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """A flat dict of dotted paths; a lone leaf gets the prefix itself."""
    return {".".join(p for p in (prefix, path) if p): leaf for path, leaf in paths(tree)}


def unflatten(flat: dict[str, Any]) -> Tree:
    """The inverse of `flatten` with an empty prefix."""
    if set(flat) == {""}:
        return flat[""]
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, last = path.split(".")
        node = tree
        if len(parents) > MAX_DEPTH:
            raise SpecError(f"tree: expected at most {MAX_DEPTH} levels, got {len(parents)}.")
        for key in parents:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                raise SpecError(f"tree: the path {path!r} goes through a leaf.")
        if last in node:
            raise SpecError(f"tree: expected a leaf at {path!r}, got a subtree there, too.")
        node[last] = leaf
    return tree
