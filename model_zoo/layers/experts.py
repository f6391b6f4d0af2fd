# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts for models of several tasks."""

from typing import Any, List, Mapping, Sequence

import tensorflow.compat.v1 as tf

from model_zoo.layers.networks import dense, hidden


def mixture(experts: Sequence[tf.Tensor], gate_inputs: tf.Tensor, name: str) -> tf.Tensor:
    """Weights experts by a softmax gate.

    Args:
      experts: float32 [B, n] each.
      gate_inputs: float32 [B, m].
      name: Variable scope of the gate.

    Returns:
      float32 [B, n].
    """
    weights = tf.nn.softmax(dense(gate_inputs, len(experts), name))
    return tf.reduce_sum(tf.stack(experts, axis=1) * weights[:, :, tf.newaxis], axis=1)


def _experts(
    inputs: tf.Tensor, count: int, units: Sequence[int], name: str, options: Mapping[str, Any]
) -> List[tf.Tensor]:
    return [hidden(inputs, units, f"{name}_{i}", **options) for i in range(count)]


def multi_gate_mixtures(
    inputs: tf.Tensor,
    num_tasks: int,
    num_experts: int,
    units: Sequence[int],
    name: str,
    **options: Any,
) -> List[tf.Tensor]:
    """MMoE: experts that all tasks share, and a gate for each task.

    Args:
      inputs: float32 [B, n].
      num_tasks: Number of tasks.
      num_experts: Number of experts.
      units: Units of the layers of an expert.
      name: Variable scope.
      **options: Of the layers of an expert, as in `hidden`.

    Returns:
      float32 [B, units[-1]] for each task.

    Source: Ma et al., Modeling Task Relationships in Multi-task Learning with Multi-gate
    Mixture-of-Experts, KDD 2018, equations 5 to 7.
    """
    with tf.variable_scope(name):
        experts = _experts(inputs, num_experts, units, "expert", options)
        return [mixture(experts, inputs, f"gate_{task}") for task in range(num_tasks)]


def progressive_extraction(
    inputs: tf.Tensor,
    num_tasks: int,
    num_shared: int,
    num_own: int,
    units: Sequence[Sequence[int]],
    name: str,
    **options: Any,
) -> List[tf.Tensor]:
    """PLE: levels of experts, some of them shared and some of one task.

    Args:
      inputs: float32 [B, n].
      num_tasks: Number of tasks.
      num_shared: Shared experts of a level.
      num_own: Experts of each task in a level.
      units: For each level, the units of the layers of an expert.
      name: Variable scope.
      **options: Of the layers of an expert, as in `hidden`.

    Returns:
      float32 [B, units[-1][-1]] for each task.

    Source: Tang et al., Progressive Layered Extraction, RecSys 2020, section 4.2; the last level
    has no shared gate, because nothing reads it.
    """
    of_task, of_all = [inputs] * num_tasks, inputs
    with tf.variable_scope(name):
        for level, layers in enumerate(units):
            with tf.variable_scope(f"level_{level}"):
                shared = _experts(of_all, num_shared, layers, "shared", options)
                own = [
                    _experts(of_task[task], num_own, layers, f"task_{task}", options)
                    for task in range(num_tasks)
                ]
                of_task = [
                    mixture([*own[task], *shared], of_task[task], f"gate_{task}")
                    for task in range(num_tasks)
                ]
                if level < len(units) - 1:
                    every = [expert for experts in own for expert in experts]
                    of_all = mixture([*every, *shared], of_all, "gate_shared")
        return of_task
