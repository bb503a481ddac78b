"""The three trackers.  Each imports what it needs when it is made."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from . import Maker

PROJECT = "fedquilt"
LONGEST = 6000  # characters that MLflow takes as a parameter


class TensorBoard:
    """Event files in the run's folder: ``tensorboard --logdir runs``."""

    mark = ""

    def __init__(self, folder: Path, settings: Mapping[str, str], mark: str) -> None:
        from tensorboardX import SummaryWriter

        # a name of its own: two files of one second would be one, and the first be lost
        self.writer = SummaryWriter(str(folder / "tensorboard"), filename_suffix=f".{time.time_ns()}")
        rows = "\n".join(f"| {k} | `{v}` |" for k, v in settings.items())
        self.writer.add_text("settings", f"| setting | value |\n| --- | --- |\n{rows}", 0)

    def tell(self, round: int, figures: Mapping[str, float]) -> None:
        """A point in each chart."""
        for name, value in figures.items():
            self.writer.add_scalar(name, value, round)
        self.writer.flush()

    def end(self, finished: bool) -> None:
        """Close the file."""
        self.writer.close()


class MLflow:
    """A run in ``mlflow.db`` beside the run's folder, or where MLFLOW_TRACKING_URI says."""

    def __init__(self, folder: Path, settings: Mapping[str, str], mark: str) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        default = f"sqlite:///{(folder.resolve().parent / 'mlflow.db')}"
        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or default)
        if mark:
            self.mark = mark
            self.client.update_run(mark, status="RUNNING")
            return
        known = self.client.get_experiment_by_name(PROJECT)
        experiment = known.experiment_id if known else self.client.create_experiment(PROJECT)
        self.mark = self.client.create_run(experiment, run_name=folder.name).info.run_id
        params = [Param(k, v[:LONGEST]) for k, v in settings.items()]
        self.client.log_batch(self.mark, params=params)

    def tell(self, round: int, figures: Mapping[str, float]) -> None:
        """A point in each chart."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.mark, [Metric(k, v, now, round) for k, v in figures.items()])

    def end(self, finished: bool) -> None:
        """Say how it ended."""
        self.client.set_terminated(self.mark, "FINISHED" if finished else "KILLED")


class WandB:
    """A run of Weights & Biases, offline unless WANDB_MODE says otherwise: ``wandb sync RUN/wandb/offline-run-*``."""

    def __init__(self, folder: Path, settings: Mapping[str, str], mark: str) -> None:
        import wandb

        self.mark = mark or uuid4().hex[:8]
        self.run: Any = wandb.init(
            project=PROJECT,
            name=folder.name,
            id=self.mark,
            resume="allow",
            reinit="create_new",  # several runs of a comparison are told at a time
            dir=str(folder),
            mode=os.environ.get("WANDB_MODE") or "offline",
            config=dict(settings),
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        self.run.define_metric("*", step_metric="round")

    def tell(self, round: int, figures: Mapping[str, float]) -> None:
        """A point in each chart."""
        self.run.log({**figures, "round": round})

    def end(self, finished: bool) -> None:
        """Say how it ended."""
        self.run.finish(0 if finished else 1)


MAKERS: Mapping[str, Maker] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
