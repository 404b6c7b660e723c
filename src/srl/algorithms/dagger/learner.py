"""DAgger (Ross et al. 2011): the learner acts, and learns what an expert would have done there."""

from __future__ import annotations

from srl.algorithms.dagger.config import DAggerConfig
from srl.algorithms.learning.imitation import ImitationLearner


class DAgger(ImitationLearner):
    """Learns from its own episodes, in which an expert has replaced every action."""

    Config = DAggerConfig
    config: DAggerConfig
