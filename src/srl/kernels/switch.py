"""The setting that chooses between kernels and the plain code that each of them must equal.

A kernel here is a function of tensors that is written by hand: a gradient without autograd, or
inference in memory that is kept. Kernels know nothing of policies and algorithms, which choose.
"""

from __future__ import annotations

from typing import Literal

Kernels = Literal["auto", "reference", "fast"]
"""`auto` uses kernels where there are some, `reference` only modules of torch and autograd. `fast`
refuses a network for which there are none."""
