"""The Optuna study of a sweep: its trials are kept in a journal in the sweep's folder."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from srl.errors import RunError
from srl.extras import import_extra
from srl.sweep.definition import SweepDefinition

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial

JOURNAL_FILE = "journal.log"
SLICES = 20
"""How often in a run it is asked whether to prune it."""
_FIRST_TRIALS = 5
"""Trials that are sampled at random and never pruned."""


def open_study(folder: Path, definition: SweepDefinition) -> Study:
    """Opens the study in a sweep's folder, or makes it."""
    optuna = import_extra("optuna", "srl sweep")
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    try:
        storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL_FILE)))
        study: Study = optuna.create_study(
            study_name="sweep",
            storage=storage,
            direction="minimize" if definition.minimize else "maximize",
            load_if_exists=True,
        )
    except (OSError, ValueError, KeyError) as error:
        raise RunError(
            f"{folder / JOURNAL_FILE}: expected the trials of a sweep: {error}."
        ) from error
    known = len(study.trials)
    study.sampler = _sampler(definition, known)
    study.pruner = _pruner(definition)
    return study


def _sampler(definition: SweepDefinition, known: int) -> BaseSampler:
    from optuna.samplers import RandomSampler, TPESampler

    # A resumed sweep must not draw the same values again.
    seed = definition.seed + 1_000_003 * known
    if definition.sampler == "random":
        return RandomSampler(seed=seed)
    return TPESampler(seed=seed, n_startup_trials=_FIRST_TRIALS, constant_liar=True)


def _pruner(definition: SweepDefinition) -> BasePruner:
    from optuna import pruners

    match definition.pruner:
        case "median":
            return pruners.MedianPruner(n_startup_trials=_FIRST_TRIALS, n_warmup_steps=2)
        case "hyperband":
            return pruners.HyperbandPruner(min_resource=2, max_resource=SLICES)
        case _:
            return pruners.NopPruner()


def unfinished(study: Study) -> list[Trial]:
    """Trials that a sweep had begun when it was ended."""
    from optuna.trial import Trial, TrialState

    return [
        Trial(study, frozen._trial_id)
        for frozen in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    ]
