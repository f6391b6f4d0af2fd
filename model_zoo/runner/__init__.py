# SPDX-License-Identifier: Apache-2.0
"""The runner: what `python -m model_zoo` does, from Python.

    config (a YAML file) -> build (an Estimator) -> rounds (training, validation) -> record (JSON)

A module per task; ``commands`` has the functions that are named as the commands are.
"""

from model_zoo.runner.commands import evaluate, export, predict, receiver_fn, train

__all__ = ["evaluate", "export", "predict", "receiver_fn", "train"]
