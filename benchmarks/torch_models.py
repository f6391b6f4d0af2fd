# SPDX-License-Identifier: Apache-2.0
"""The tables and nets of bench_torch.py in PyTorch, with the CPU tables of FBGEMM.

This module runs in an interpreter that has torch and fbgemm-gpu-cpu, and neither TensorFlow nor
rec_estimator. Nets and data are those of bench_models.py.

A table batched embedding of FBGEMM looks up all tables of one width with one op, as a bag of one id
for each field and sample, and its backward op updates the rows. That is the way of TorchRec.
Accumulators begin at 0 and have an epsilon; rec_estimator's begin at 0.1. The dims of FBGEMM are
multiples of 4: a table of one float is one of 4, of which the first is used.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from benchmarks import bench_models, bench_table, criteo_ids

if TYPE_CHECKING:
    import torch

# (vectors [B, fields * DIM], weights [B, fields * 4], numbers [B, NUMBERS]) -> logits [B, 1]
Logits = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]
# The modules that are trained, and what applies them.
Net = Tuple[List["torch.nn.Module"], Logits]

_FIELDS = len(criteo_ids.FIELDS)
_NARROWEST = 4


def table(rows: int, batches: np.ndarray, value_dtype: str, rule: str) -> Dict[str, Any]:
    """One table, with the steps of bench_table.py.

    Args:
      rows: Rows of the table.
      batches: int64 [n, batch, fields].
      value_dtype: "float32" or "float16".
      rule: "Adagrad" or "RowwiseAdagrad".
    """
    import torch

    torch.set_flush_denormal(True)  # As TensorFlow's threads do.
    n, batch, fields = batches.shape
    embedding = _embedding([rows], bench_table.DIM, value_dtype, rule, [0] * fields)
    ids = torch.from_numpy(np.ascontiguousarray(batches.transpose(0, 2, 1)).reshape(n, -1))
    offsets = torch.arange(fields * batch + 1)
    noise = np.random.default_rng(1).normal(size=(batch, fields * bench_table.DIM))
    noise = torch.from_numpy(noise.astype(np.float32))
    number = itertools.cycle(range(n))

    def train() -> None:
        values = embedding(ids[next(number)], offsets)
        values.backward(values.detach() + noise)

    def lookup() -> None:
        with torch.no_grad():
            embedding(ids[next(number)], offsets)

    return _warmed_up({"train": train, "lookup": lookup}, n)


def model(name: str, batch: int, limit: int, value_dtype: str, rule: str) -> Dict[str, Any]:
    """A model of bench_models.py: {"train": a step}.

    Args:
      name: A key of NETS.
      batch: Samples of a batch.
      limit: The most rows of a table.
      value_dtype: "float32" or "float16".
      rule: "Adagrad" or "RowwiseAdagrad", of the tables. The net is trained with Adagrad.
    """
    import torch

    torch.set_flush_denormal(True)
    data = bench_models.draw_batches(batch, limit)
    numbers, labels = (torch.from_numpy(data.pop(part)) for part in ("numbers", "labels"))
    # [n, fields * batch], one field after the other.
    ids = torch.from_numpy(np.concatenate([data[field] for field in criteo_ids.FIELDS], axis=1))
    offsets = torch.arange(_FIELDS * batch + 1)
    rows = [criteo_ids.rows(field, limit) for field in criteo_ids.FIELDS.values()]
    embeddings = [
        _embedding(rows, max(width, _NARROWEST), value_dtype, rule, list(range(_FIELDS)))
        for width in bench_models.WIDTHS[name]
    ]
    modules, logits_of = NETS[name]()
    parameters = [each for module in modules for each in module.parameters()]
    optimizer = torch.optim.Adagrad(
        parameters, bench_models.LEARNING_RATE, initial_accumulator_value=0.1, fused=True
    )
    number = itertools.cycle(range(len(ids)))

    def train() -> None:
        i = next(number)
        vectors = [embedding(ids[i], offsets) for embedding in embeddings]
        logits = logits_of(vectors[0], vectors[-1], numbers[i])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return _warmed_up({"train": train}, len(ids))


def _warmed_up(run: Dict[str, Callable[[], None]], steps: int) -> Dict[str, Callable[[], None]]:
    for step in run.values():
        for _ in range(steps):
            step()
    return run


def _embedding(
    rows: Sequence[int], width: int, value_dtype: str, rule: str, tables: Sequence[int]
) -> torch.nn.Module:
    """Tables of one width.

    Args:
      rows: Rows of each table.
      width: Their dim.
      value_dtype: "float32" or "float16".
      rule: "Adagrad" or "RowwiseAdagrad".
      tables: The table of each field.
    """
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
        BoundsCheckMode,
        EmbeddingLocation,
        PoolingMode,
    )
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    rules = {
        "Adagrad": EmbOptimType.EXACT_ADAGRAD,
        "RowwiseAdagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    }
    precisions = {"float32": SparseType.FP32, "float16": SparseType.FP16}
    embedding = SplitTableBatchedEmbeddingBagsCodegen(
        [(each, width, EmbeddingLocation.HOST, ComputeDevice.CPU) for each in rows],
        feature_table_map=list(tables),
        weights_precision=precisions[value_dtype],
        optimizer=rules[rule],
        learning_rate=bench_models.LEARNING_RATE,
        pooling_mode=PoolingMode.SUM,
        bounds_check_mode=BoundsCheckMode.NONE,
    )
    embedding.init_embedding_weights_uniform(-0.05, 0.05)
    return embedding


def _layers(inputs: int, units: Sequence[int], last_relu: bool) -> torch.nn.Module:
    """Dense layers with Relu; the last one only with ``last_relu``."""
    import torch

    modules: List[torch.nn.Module] = []
    for width in units:
        modules += [torch.nn.Linear(inputs, width), torch.nn.ReLU()]
        inputs = width
    return torch.nn.Sequential(*modules[: None if last_relu else -1])


def _by_field(vectors: torch.Tensor) -> torch.Tensor:
    """[B, fields * width] -> [B, fields, width]."""
    return vectors.view(len(vectors), _FIELDS, -1)


def _wide_and_deep() -> Net:
    import torch

    deep = _layers(_FIELDS * bench_models.DIM + bench_models.NUMBERS, [1024, 512, 256, 1], False)

    def logits(vectors: torch.Tensor, weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        wide = _by_field(weights)[:, :, 0].sum(1, keepdim=True)
        return deep(torch.cat([vectors, numbers], 1)) + wide

    return [deep], logits


def _deepfm() -> Net:
    import torch

    deep = _layers(_FIELDS * bench_models.DIM + bench_models.NUMBERS, [400, 400, 400, 1], False)

    def logits(vectors: torch.Tensor, weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        stacked = _by_field(vectors)
        of_sum, sum_of = stacked.sum(1).square(), stacked.square().sum(1)
        pairs = 0.5 * (of_sum - sum_of).sum(1, keepdim=True)
        wide = _by_field(weights)[:, :, 0].sum(1, keepdim=True)
        return deep(torch.cat([vectors, numbers], 1)) + wide + pairs

    return [deep], logits


def _dlrm() -> Net:
    import torch

    n = _FIELDS + 1
    bottom = _layers(bench_models.NUMBERS, [512, 256, 64, bench_models.DIM], True)
    top = _layers(bench_models.DIM + n * (n - 1) // 2, [512, 256, 1], False)
    rows, columns = map(torch.from_numpy, np.tril_indices(n, -1))

    def logits(vectors: torch.Tensor, _: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        of_numbers = bottom(numbers)
        stacked = torch.cat([of_numbers.unsqueeze(1), _by_field(vectors)], 1)
        pairs = torch.bmm(stacked, stacked.transpose(1, 2))[:, rows, columns]
        return top(torch.cat([of_numbers, pairs], 1))

    return [bottom, top], logits


NETS: Dict[str, Callable[[], Net]] = {
    "wide_and_deep": _wide_and_deep,
    "deepfm": _deepfm,
    "dlrm": _dlrm,
}
