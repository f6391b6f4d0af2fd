# SPDX-License-Identifier: Apache-2.0
"""Draws one small model at each stage of sample-aware compression, by running the real pass.

    python -m benchmarks.draw_compression_stages docs/sample_compression.png

The model is that of docs/sample_compression.md: a loop over the user's row, a concat with the
candidate's row, a MatMul. The rows in a box are measured: the graph is run for 2 users who have 3
and 6 candidates, so 2 rows belong to users and 9 rows to candidates. Needs matplotlib.
"""

import argparse
from typing import Any, Dict, List, NamedTuple, Sequence, Set, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.graph_passes.walk import ancestors
from rec_estimator.sample_compression.analysis.sizes import ListSizes, Shape
from rec_estimator.sample_compression.analysis.values import DenseValue, Side
from rec_estimator.sample_compression.rewrite.rewrite import Rewrite
from rec_estimator.sample_compression.rules.control_flow import CALL_RULES
from rec_estimator.sample_compression.rules.op_rules import RULES

_SIZES = np.array([3, 6], np.int32)
_COLORS = {"user": "#cfe3f7", "item": "#f9d9b8", "fixed": "#eeeeee"}
_SIDES = {Side.USER: "user", Side.ITEM: "item", Side.FIXED: "fixed"}
# Ops that hand a tensor on, or compute the sizes of a request.
_PASSED_OVER = ("Identity", "RecEstimator>SampleRows")
_REPEAT = "RecEstimator>RepeatRows"
_STEP = 2.3  # From the middle of a box to that of its neighbour.


class Model(NamedTuple):
    """The inputs and the output of the model."""

    user: tf.Tensor
    item: tf.Tensor
    item_size: tf.Tensor
    output: tf.Tensor


class Box(NamedTuple):
    """An op in the picture."""

    lines: Tuple[str, ...]
    side: str  # A key of _COLORS.
    is_repeat: bool


class Stage(NamedTuple):
    """A graph in the picture."""

    title: str
    boxes: Dict[str, Box]
    edges: Set[Tuple[str, str]]


def build() -> Model:
    """The model of the page."""
    user = tf.placeholder(tf.float32, [None, 4], name="user")
    item = tf.placeholder(tf.float32, [None, 3], name="item")
    item_size = tf.placeholder(tf.int32, [None], name="item_size")
    _, state = tf.while_loop(
        lambda step, _: step < 3,
        lambda step, state: (step + 1, tf.tanh(state + user)),
        [0, user],
        name="loop",
    )
    both = tf.concat([state, item], axis=1, name="concat")
    kernel = tf.ones([7, 8], name="kernel")
    return Model(user, item, item_size, tf.nn.relu(tf.matmul(both, kernel), name="relu"))


def drawn_ops(output: tf.Tensor) -> List[tf.Operation]:
    """The ops of a model that compute something out of rows or of the kernel."""
    needed = ancestors([output.op])
    return [
        op
        for op in output.graph.get_operations()
        if op in needed and op.type not in _PASSED_OVER and main_output(op) is not None
    ]


def main_output(op: tf.Operation) -> Any:
    """The output that stands for an op: the last matrix of floats; None if it has none."""
    floats = [t for t in op.outputs if t.dtype == tf.float32 and t.shape.rank == 2]
    return floats[-1] if floats else None


def edges_of(ops: Sequence[tf.Operation]) -> Set[Tuple[str, str]]:
    """Pairs of names of drawn ops: source and consumer. Ops in between are passed over."""
    names = {op.name for op in ops}
    edges: Set[Tuple[str, str]] = set()
    for op in ops:
        stack = [tensor.op for tensor in op.inputs]
        while stack:
            source = stack.pop()
            if source.name in names:
                edges.add((source.name, op.name))
            elif source.type in _PASSED_OVER[:1]:
                stack += [tensor.op for tensor in source.inputs]
    return edges


def measured(title: str, model: Model, output: tf.Tensor, is_compressed: bool) -> Stage:
    """A graph with the shapes that its ops have in a run."""
    ops = drawn_ops(output)
    users, items = len(_SIZES), int(_SIZES.sum())
    rows = users if is_compressed else items
    feed = {model.user: np.ones([rows, 4]), model.item: np.ones([items, 3])}
    with tf.Session() as session:
        found = session.run([main_output(op) for op in ops], {**feed, model.item_size: _SIZES})
    sides = {users: "user", items: "item"}
    boxes = {}
    for op, value in zip(ops, found):
        shape = " x ".join(map(str, value.shape))
        boxes[op.name] = Box(
            (title_of(op), shape), sides.get(len(value), "fixed"), op.type == _REPEAT
        )
    return Stage(title, boxes, edges_of(ops))


def analysed(title: str, model: Model) -> Stage:
    """The original graph, with what the pass knows of it. Runs the pass."""
    ops = drawn_ops(model.output)
    edges = edges_of(ops)  # Before the pass changes them.
    rewrite = Rewrite([model.user], [model.item], model.item_size)
    rewrite.run()
    boxes = {}
    for op in ops:
        value = rewrite.value(main_output(op))
        rule = RULES.get(op.type) or CALL_RULES.get(op.type)
        lines = [title_of(op), f"{value.side.name} {shape_text(value.dims)}"]
        if rule is not None and value.side != Side.FIXED:
            lines.append(f"rule: {rule.__name__.strip('_')}")
        form = value.form if isinstance(value, DenseValue) else None
        if form is not None:
            lines.append(f"form: {type(form).__name__}")
        boxes[op.name] = Box(tuple(lines), _SIDES[value.side], False)
    return Stage(title, boxes, edges)


def title_of(op: tf.Operation) -> str:
    """The name of an op of the model, or the type of one that the pass added."""
    kind = op.type.replace("RecEstimator>", "").replace("Stateless", "").replace("V2", "")
    if "sample_compression" in op.name:
        return "rows of the kernel" if kind == "StridedSlice" else kind
    return op.name if op.name.lower() in (kind.lower(), "user", "item") else f"{op.name} ({kind})"


def shape_text(dims: Shape) -> str:
    """A shape as the pass knows it."""
    if dims is None or isinstance(dims, ListSizes):
        return "?"
    sizes = [
        "?" if size is None else "rows" if size.is_batch else str(size.factor) for size in dims
    ]
    return f"[{', '.join(sizes)}]"


def compressed(title: str, exact: bool) -> Stage:
    """The graph after the pass."""
    with tf.Graph().as_default():
        model = build()
        with tf.name_scope("sample_compression"):
            rewrite = Rewrite([model.user], [model.item], model.item_size, exact=exact)
            rewrite.run()
            output = rewrite.full(model.output)
        return measured(title, model, output, is_compressed=True)


def stages() -> List[Stage]:
    """The graphs of the picture, from left to right."""
    with tf.Graph().as_default():
        model = build()
        written = measured("1  As written: 9 rows everywhere", model, model.output, False)
    with tf.Graph().as_default():
        known = analysed("2  Analysis and rules: a side for each op", build())
    return [
        written,
        known,
        compressed("3  Rewritten with exact=True", exact=True),
        compressed("4  Rewritten, layer split", exact=False),
    ]


def places_of(stage: Stage) -> Dict[str, Tuple[float, float]]:
    """The middle of each box: below its inputs; users left, candidates right."""
    layers = dict.fromkeys(stage.boxes, 0)
    for _ in stage.boxes:
        for source, target in stage.edges:
            layers[target] = max(layers[target], layers[source] + 1)
    for name in sorted(layers, key=lambda name: -layers[name]):
        if stage.boxes[name].side == "fixed":  # A kernel: right above the op that reads it.
            layers[name] = min(layers[t] for s, t in stage.edges if s == name) - 1
    sides = ("user", "fixed", "item")
    members = [[n for n in stage.boxes if layers[n] == i] for i in range(max(layers.values()) + 1)]
    kernels = max(sum(stage.boxes[n].side == "fixed" for n in names) for names in members)
    lane = _STEP * (1 + kernels) / 2
    places: Dict[str, Tuple[float, float]] = {}
    for layer, names in enumerate(members):
        wanted = {}
        for name in names:
            above = [places[source][0] for source, target in stage.edges if target == name]
            at_side = lane * (sides.index(stage.boxes[name].side) - 1)
            wanted[name] = sum(above) / len(above) if above else at_side
        names.sort(key=lambda name: (wanted[name], sides.index(stage.boxes[name].side)))
        xs: List[float] = []
        for name in names:
            xs.append(max([wanted[name], *(x + _STEP for x in xs[-1:])]))
        # Boxes that make room for each other share the way.
        shift = sum(x - wanted[name] for x, name in zip(xs, names)) / len(names)
        places.update({name: (x - shift, -1.45 * layer) for x, name in zip(xs, names)})
    return places


def draw(axes: Any, stage: Stage) -> None:
    """Draws one graph."""
    from matplotlib.patches import FancyBboxPatch

    places = places_of(stage)
    for source, target in sorted(stage.edges):
        (x0, y0), (x1, y1) = places[source], places[target]
        arrow = {"arrowstyle": "-|>", "color": "#888888", "lw": 0.9}
        axes.annotate("", (x1, y1 + 0.45), (x0, y0 - 0.45), arrowprops=arrow, zorder=1)
    for name, box in stage.boxes.items():
        x, y = places[name]
        patch = FancyBboxPatch(
            (x - 0.98, y - 0.38),
            1.96,
            0.76,
            boxstyle="round,pad=0.06",
            facecolor=_COLORS[box.side],
            edgecolor="#c0392b" if box.is_repeat else "#666666",
            linewidth=2.2 if box.is_repeat else 0.8,
            zorder=2,
        )
        axes.add_patch(patch)
        text = "\n".join(box.lines)
        axes.text(x, y, text, ha="center", va="center", fontsize=7.8, zorder=3)
    axes.set_title(stage.title, fontsize=11)
    xs, ys = zip(*places.values())
    axes.set_xlim(min(xs) - 1.3, max(xs) + 1.3)
    axes.set_ylim(min(ys) - 0.7, 0.7)
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

    tf.disable_eager_execution()
    found = stages()
    columns = [[x for x, _ in places_of(stage).values()] for stage in found]
    widths = [max(xs) - min(xs) + _STEP for xs in columns]
    figure, axes = pyplot.subplots(1, len(found), figsize=(19.5, 8), width_ratios=widths)
    for axis, stage in zip(axes, found):
        draw(axis, stage)
    edge = "#666666"
    figure.legend(
        handles=[
            Patch(facecolor=_COLORS["user"], edgecolor=edge, label="one row per user (2)"),
            Patch(facecolor=_COLORS["item"], edgecolor=edge, label="one row per candidate (9)"),
            Patch(facecolor=_COLORS["fixed"], edgecolor=edge, label="no rows"),
            Patch(facecolor="white", edgecolor="#c0392b", linewidth=2.2, label="rows repeated"),
        ],
        loc="lower center",
        ncols=4,
    )
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(options.output, dpi=100)


if __name__ == "__main__":
    main()
