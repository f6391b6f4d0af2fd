# SPDX-License-Identifier: Apache-2.0
"""Draws the graph of DIN before and after compression, from real exports.

    python -m benchmarks.draw_serving_graph docs/serving_graph.png

Exports the model zoo's DIN twice, loads both SavedModels, and draws the ops that do the work. The
rows of an op are measured: the graph is run for 3 users with 5, 7 and 11 candidates, and an op with
a multiple of 23 rows works for each candidate. The shapes in the boxes come from another run, for 1
user and 500 candidates. Needs matplotlib.
"""

import argparse
import tempfile
from typing import Any, Dict, List, NamedTuple, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from model_zoo import data, runner
from model_zoo.runner.build import build_estimator
from model_zoo.runner.config import Config, Export
from rec_estimator.graph_passes import op_registry
from rec_estimator.graph_passes.walk import ancestors

_HISTORY = 20
_PROBE = np.array([5, 7, 11], np.int32)
_SHOWN = np.array([500], np.int32)
_PRODUCTS = ("MatMul", "RecEstimator>SegmentLayer", "RecEstimator>SegmentMatMul")
_DRAWN = (*_PRODUCTS, "RecEstimator>RepeatRows", "GatherV2", "Softmax", "Sigmoid", "Sum")
_DRAWN_IF_FLOAT = ("ConcatV2", "Mul", "Sub", "BroadcastTo")
_COLORS = {"user": "#cfe3f7", "item": "#f9d9b8", "none": "#eeeeee"}


class Node(NamedTuple):
    """A box of the picture."""

    tensor: tf.Tensor
    title: str
    side: str  # A key of _COLORS.
    shape: Tuple[int, ...]
    mflop: float


def exports(folder: str) -> Tuple[str, str]:
    """Folders of the SavedModels of a trained DIN, as it is and compressed."""
    clicks = data.load("generated")
    config = Config(model="din", export=Export(kind="compressed"))
    estimator = build_estimator(config, clicks, f"{folder}/model")
    estimator.train(clicks.input_fn("train", 64), steps=1)
    receivers = {"before": clicks.receiver_fn(), "after": runner.receiver_fn(config, clicks)}
    before, after = (
        tf.compat.as_str(estimator.export_saved_model(f"{folder}/{name}", receiver))
        for name, receiver in receivers.items()
    )
    return before, after


def request(sizes: np.ndarray, is_compressed: bool) -> Dict[str, np.ndarray]:
    """One value per feature, the history full."""
    users, items = len(sizes), int(sizes.sum())
    rows = users if is_compressed else items
    values = {name: np.arange(rows)[:, None] for name in ("user", "hour")}
    values["history"] = np.arange(rows * _HISTORY).reshape(rows, _HISTORY)
    values["item"] = np.arange(items)[:, None]
    if is_compressed:
        return {**values, "item_size": sizes}
    return {name: v if name == "history" else v[:, 0] for name, v in values.items()}


def nodes_of(folder: str) -> Tuple[List[Node], Set[Tuple[str, str]]]:
    """The boxes of a SavedModel, and its edges as pairs of tensor names: source and consumer."""
    with tf.Session(graph=tf.Graph()) as session:
        signature = tf.saved_model.load(session, ["serve"], folder).signature_def["serving_default"]
        (output,) = (session.graph.get_tensor_by_name(o.name) for o in signature.outputs.values())
        needed = ancestors([output.op])
        tensors = [t for op in session.graph.get_operations() if op in needed for t in _drawn(op)]
        shapes = []
        for sizes in (_PROBE, _SHOWN):
            values = request(sizes, "item_size" in signature.inputs)
            feed = {signature.inputs[name].name: value for name, value in values.items()}
            widest = [t.op.inputs[0] if t.op.type in _PRODUCTS else t for t in tensors]
            found = session.run([tensors, widest], feed)
            shapes.append([[value.shape for value in part] for part in found])
        (probed, _), (shown, inputs) = shapes
        nodes = []
        for tensor, probe, shape, left in zip(tensors, probed, shown, inputs):
            mflop = 2e-6 * np.prod(shape) * left[-1] if tensor.op.type in _PRODUCTS else 0.0
            nodes.append(Node(tensor, _title(tensor), _side(probe), shape, mflop))
    return nodes, _edges(tensors)


def _drawn(op: tf.Operation) -> List[tf.Tensor]:
    if op.type in op_registry.LOOKUPS:
        return list(op.outputs)
    is_float = bool(op.outputs) and op.outputs[0].dtype == tf.float32
    shape = op.outputs[0].shape if is_float else tf.TensorShape([])
    is_data = bool(shape.rank) and tf.dimension_value(shape[0]) is None
    if is_data and op.type in (*_DRAWN, *_DRAWN_IF_FLOAT):
        return [op.outputs[0]]
    return []


def _title(tensor: tf.Tensor) -> str:
    op = tensor.op
    if op.type in op_registry.LOOKUPS:
        return f"look up in {tf.compat.as_str(op.inputs[0].op.get_attr('shared_name'))}"
    name = op.type.replace("RecEstimator>", "").replace("V2", "")
    scope = op.name.split("/")[0]
    return f"{name} ({scope})" if scope in ("attention", "deep") else name


def _side(shape: Tuple[int, ...]) -> str:
    if shape and shape[0] % _PROBE.sum() == 0:
        return "item"
    return "user" if shape and shape[0] % len(_PROBE) == 0 else "none"


def _edges(tensors: List[tf.Tensor]) -> Set[Tuple[str, str]]:
    """Pairs of names of drawn tensors: source and consumer. Other ops are passed over."""
    names = {tensor.name for tensor in tensors}
    edges = set()
    for tensor in tensors:
        stack, seen = list(tensor.op.inputs), set()
        if tensor.op.type in op_registry.LOOKUPS:
            continue
        while stack:
            source = stack.pop()
            if source.name in names:
                edges.add((source.name, tensor.name))
            elif source.name not in seen:
                seen.add(source.name)
                stack.extend(source.op.inputs)
    return edges


def _layers(nodes: List[Node], edges: Set[Tuple[str, str]]) -> Dict[str, int]:
    """The layer of each box: the length of the longest path to it."""
    layer: Dict[str, int] = {}
    for node in nodes * len(nodes):  # The graph of one export may list ops in any order.
        sources = [source for source, target in edges if target == node.tensor.name]
        above = max((layer.get(source, 0) + 1 for source in sources), default=0)
        if layer.get(node.tensor.name) != above:
            layer[node.tensor.name] = above
    return layer


def draw(axes: Any, title: str, folder: str) -> None:
    """Draws one graph."""
    from matplotlib.patches import FancyBboxPatch

    nodes, edges = nodes_of(folder)
    layers = _layers(nodes, edges)
    rows: Dict[Tuple[int, str], List[Node]] = {}
    for node in nodes:
        lane = "user" if node.side == "user" else "item"
        rows.setdefault((layers[node.tensor.name], lane), []).append(node)
    places = {}
    for (layer, lane), members in rows.items():
        for i, node in enumerate(members):
            x = -1.15 - 2.1 * i if lane == "user" else 1.15 + 2.1 * i
            places[node.tensor.name] = (x, -layer * 1.25)
    for source, target in edges:
        (x0, y0), (x1, y1) = places[source], places[target]
        axes.annotate(
            "",
            (x1, y1 + 0.42),
            (x0, y0 - 0.42),
            arrowprops={"arrowstyle": "-|>", "color": "#999999", "lw": 0.8},
            zorder=1,
        )
    for node in nodes:
        x, y = places[node.tensor.name]
        box = FancyBboxPatch(
            (x - 0.9, y - 0.35),
            1.8,
            0.7,
            boxstyle="round,pad=0.06",
            facecolor=_COLORS[node.side],
            edgecolor="#666666",
            linewidth=0.7,
            zorder=2,
        )
        axes.add_patch(box)
        shape = " x ".join(map(str, node.shape))
        work = f"\n{node.mflop:.2f} MFLOP" if node.mflop else ""
        axes.text(
            x, y, f"{node.title}\n{shape}{work}", ha="center", va="center", fontsize=6.5, zorder=3
        )
    total = sum(node.mflop for node in nodes)
    axes.set_title(f"{title}: {total:.1f} MFLOP in products", fontsize=11)
    xs, ys = zip(*places.values())
    axes.set_xlim(min(*xs, -2) - 1.2, max(xs) + 1.2)
    axes.set_ylim(min(ys) - 0.8, 0.8)
    axes.axis("off")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", help="PNG or SVG file to write")
    options = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.disable_eager_execution()
    figure, axes = pyplot.subplots(1, 2, figsize=(15, 12.5))
    with tempfile.TemporaryDirectory() as folder:
        before, after = exports(folder)
        draw(axes[0], "As written", before)
        draw(axes[1], "Compressed", after)
    figure.legend(
        handles=[
            Patch(facecolor=_COLORS["user"], edgecolor="#666666", label="a row per user"),
            Patch(facecolor=_COLORS["item"], edgecolor="#666666", label="a row per candidate"),
        ],
        loc="lower center",
        ncols=2,
    )
    figure.suptitle("DIN, one user with a history of 20 and 500 candidates", fontsize=13)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(options.output, dpi=110)


if __name__ == "__main__":
    main()
