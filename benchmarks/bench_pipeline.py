"""How much faster is an input-bound job with its keys computed ahead of the step?

    python -m benchmarks.bench_pipeline [--rows 20000000] [--rounds 11] \
        [--output benchmarks/results/bench_pipeline.json] [--plot docs/pipeline.png]

Workload: log lines of 26 string features, 2048 a batch, Zipf-distributed as in bench_table. The
dataset reads and splits them, the model hashes them to keys, looks up values of 8 floats and trains
a small network and the rows with Adagrad. Variants: a dataset that ends in prefetch, and one that
does not; each unmodified and modified. How it is measured: rounds.py; the batches that a pipeline
has prefetched while another one was measured are taken before the clock starts.
"""

import argparse
import json
import statistics

import numpy as np

from benchmarks import rounds as rounds_lib
from benchmarks.bench_table import ZIPF_Q, ZIPF_S

BATCH, FIELDS, DIM = 2048, 26, 8
NUM_BATCHES = 32  # Different ones; then they repeat.
LEARNING_RATE = 0.05
HASH_BUCKETS = 2**63 - 1
# More than all prefetch buffers hold together.
UNTIMED_STEPS = 60

VARIANTS = {
    "plain": (False, False),
    "modified": (False, True),
    "plain, prefetch": (True, False),
    "modified, prefetch": (True, True),
}


def log_lines(rows: int, seed: int = 0) -> np.ndarray:
    """Lines of a label and 26 values, bytes [NUM_BATCHES * BATCH]; values are of `rows` numbers."""
    rng = np.random.default_rng(seed)
    weights = (np.arange(1, rows + 1) + ZIPF_Q) ** -ZIPF_S
    cumulative = np.cumsum(weights / weights.sum())
    ranks = np.searchsorted(cumulative, rng.random((NUM_BATCHES * BATCH, FIELDS)))
    labels = rng.integers(0, 2, len(ranks))
    return np.array(
        [f"{label}," + ",".join(f"{r:08x}" for r in row) for label, row in zip(labels, ranks)],
        dtype=object,
    )


def _build(lines, has_prefetch, is_modified):
    """The training op of one variant, and what fills its table."""
    import tensorflow.compat.v1 as tf

    import rec_estimator as rec

    def parse(batch):
        label, *values = tf.io.decode_csv(batch, [[0.0]] + [[""]] * FIELDS)
        return {f"c{i}": value for i, value in enumerate(values)}, label

    data = tf.data.Dataset.from_tensor_slices(lines).repeat().batch(BATCH).map(parse)
    if has_prefetch:
        data = data.prefetch(2)
    features, label = tf.data.make_one_shot_iterator(data).get_next()
    table = rec.get_embedding_variable(
        "table", DIM, initializer=tf.random_uniform_initializer(-0.05, 0.05)
    )
    keys = [tf.strings.to_hash_bucket_fast(features[f"c{i}"], HASH_BUCKETS) for i in range(FIELDS)]
    values = rec.group_embedding_lookup_sparse([table] * FIELDS, keys, [None] * FIELDS)
    hidden = tf.concat(values, axis=1)
    for layer, units in enumerate([64, 1]):
        kernel = tf.get_variable(f"kernel_{layer}", [hidden.shape[1], units])
        hidden = tf.matmul(tf.nn.relu(hidden) if layer else hidden, kernel)
    loss = tf.losses.sigmoid_cross_entropy(label, hidden[:, 0])
    train = rec.optimizers.AdagradOptimizer(LEARNING_RATE).minimize(loss)
    if is_modified:
        rec.modify_graph_and_start_emb_cache()
    fed = tf.placeholder(tf.int64, [None])
    hashed = tf.strings.to_hash_bucket_fast(
        tf.strings.as_string(fed, width=8, fill="0"), HASH_BUCKETS
    )
    fill = rec._ops.gen.rec_estimator_table_apply(
        table.handle,
        hashed,
        tf.zeros([tf.size(fed), DIM]),
        tf.zeros([0], tf.int64),
        tf.constant(-1, tf.int64),
        [tf.constant(LEARNING_RATE)],
        rule="Adagrad",
        slot_names=["Adagrad"],
        slot_widths=[DIM],
        slot_initials=[0.1],
    )
    return train, fill, fed


def _system(variant, rows):
    """What rounds.alternate times, in a process of its own."""
    import tensorflow.compat.v1 as tf

    train, fill, fed = _build(log_lines(rows), *VARIANTS[variant])
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    for part in np.array_split(np.arange(rows), max(1, rows // 500_000)):
        session.run(fill, {fed: part})
    step = session.make_callable(train)
    return {"train": step, "before train": lambda: [step() for _ in range(UNTIMED_STEPS)]}


def report(seconds, rows, rounds, steps):
    """Prints the table and returns all of it for the raw result."""
    print(f"\n{rows:,} rows, {BATCH} x {FIELDS} strings, dim {DIM}, Adagrad")
    print(f"{'variant':20}{'ms/step':>9}{'speed-up':>10}   quartiles")
    speed_up = {}
    for variant, times in seconds.items():
        line = f"{variant:20}{statistics.median(times) * 1e3:9.2f}"
        if VARIANTS[variant][1]:
            plain = seconds[variant.replace("modified", "plain")]
            low, middle, high = rounds_lib.ratios(plain, times)
            speed_up[variant] = round(middle, 3)
            line += f"{middle:10.2f}   {low:.2f} - {high:.2f}"
        print(line)
    return {
        **rounds_lib.provenance(),
        "rows": rows,
        "batch": [BATCH, FIELDS],
        "dim": DIM,
        "rounds": rounds,
        "steps_per_round": steps,
        "seconds_per_step": seconds,
        "speed_up": speed_up,
    }


def plot(result, path):
    """Draws the time of a step, with its quartiles over the rounds; needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(6.4, 2.6), layout="constrained")
    for place, (variant, times) in enumerate(result["seconds_per_step"].items()):
        low, middle, high = (1e3 * t for t in statistics.quantiles(times, n=4))
        color = "tab:blue" if VARIANTS[variant][1] else "tab:gray"
        panel.barh(place, middle, xerr=[[middle - low], [high - middle]], color=color)
        if variant in result["speed_up"]:
            panel.text(0, place, f" {result['speed_up'][variant]:.2f}x", va="center", color="w")
    panel.set_yticks(range(len(VARIANTS)), result["seconds_per_step"])
    panel.invert_yaxis()
    panel.set_xlabel(f"ms a step, {result['rows']:,} rows: median and quartiles; x is the speed-up")
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=100, help="steps a round and variant")
    parser.add_argument("--output", help="file for the raw result, JSON")
    parser.add_argument("--plot", metavar="FILE", help="where to draw them, PNG or SVG")
    args = parser.parse_args()
    systems = {variant: (_system, (variant, args.rows)) for variant in VARIANTS}
    seconds = rounds_lib.alternate(systems, ["train"], args.rounds, args.steps)
    result = report(seconds["train"], args.rows, args.rounds, args.steps)
    if args.output:
        with open(args.output, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    if args.plot:
        plot(result, args.plot)


if __name__ == "__main__":
    main()
