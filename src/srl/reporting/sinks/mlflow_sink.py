"""Sends metrics to MLflow: to its server, or to a folder of files beside the run."""

from __future__ import annotations

import os
import re

from srl.reporting.sinks.sink import Ended, SinkOrder

FOLDER = "mlruns"
"""The folder of MLflow's file store, beside the run directory: all runs there share it."""
_INVALID = re.compile(r"[^\w\-. :/]")
_MOST_METRICS = 1000
"""Metrics that one request of MLflow may have."""
_MOST_PARAMETERS = 100
_MAX_PARAMETER_CHARS = 6000
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED", "lost": "FAILED"}


class MlflowSink:
    """A run in MLflow, at MLFLOW_TRACKING_URI or else in the file store."""

    def __init__(self, order: SinkOrder, tracker_id: str) -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        # MLflow develops its file store no further, and refuses it without this variable.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        store = (order.path.resolve().parent / FOLDER).as_uri()
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or store)
        self._metric = Metric
        self.tracker_id = tracker_id or self._create(order)
        self._client.update_run(self.tracker_id, status="RUNNING")

    def _create(self, order: SinkOrder) -> str:
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        client = self._client
        experiment = client.get_experiment_by_name(order.project)
        if experiment is not None:
            number = experiment.experiment_id
        else:
            try:
                number = client.create_experiment(order.project)
            except MlflowException:
                # Another run has made it meanwhile.
                experiment = client.get_experiment_by_name(order.project)
                if experiment is None:
                    raise
                number = experiment.experiment_id
        made: str = client.create_run(number, run_name=order.name).info.run_id
        parameters = [
            Param(_valid(key), str(value)[:_MAX_PARAMETER_CHARS])
            for key, value in order.settings().items()
        ]
        for start in range(0, len(parameters), _MOST_PARAMETERS):
            client.log_batch(made, params=parameters[start : start + _MOST_PARAMETERS])
        return made

    def write(self, values: dict[str, float], wall: float, step: int) -> None:
        """Adds one point to every curve."""
        at = int(wall * 1000)
        points = [self._metric(_valid(key), value, at, step) for key, value in values.items()]
        for start in range(0, len(points), _MOST_METRICS):
            self._client.log_batch(self.tracker_id, points[start : start + _MOST_METRICS])

    def close(self, ended: Ended) -> None:
        """Ends the run in MLflow."""
        self._client.set_terminated(self.tracker_id, _STATUS[ended])


def _valid(name: str) -> str:
    """A name that MLflow takes; sides of policies are patterns like `tank_*`."""
    return _INVALID.sub("_", name)
