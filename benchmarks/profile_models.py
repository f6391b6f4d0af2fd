# SPDX-License-Identifier: Apache-2.0
"""Shows by perf where the CPU time of whole models goes, above what their net takes.

    python -m benchmarks.profile_models [--batch 2048] [--rounds 3] [--output FILE.json]

The models and engines of bench_models.py; profiles.py describes the measurement and what is
printed, milliseconds of CPU a step.
"""

from typing import Dict

import numpy as np

from benchmarks import bench_models, criteo_ids, profiles, result_file

ENGINES = ("floor", "stock", "single")
STRIPES = 64  # In a table: kStripes in ops/core/base/key_hash.h.


def _sizes(batch: int, limit: int) -> Dict[str, int]:
    """Ids of a step and, by field, distinct ones and the stripes in which they are expected.

    Each table of a field has all of them.
    """
    drawn = criteo_ids.draw((bench_models.NUM_BATCHES, batch), limit).values()
    distinct = np.array([len(np.unique(each)) for ids in drawn for each in ids])
    stripes = STRIPES * (1 - (1 - 1 / STRIPES) ** distinct)
    return {
        "ids": batch * len(drawn),
        "distinct_ids": round(distinct.sum() / bench_models.NUM_BATCHES),
        "stripes": round(stripes.sum() / bench_models.NUM_BATCHES),
    }


def main() -> None:
    parser = result_file.parser(__doc__, rows=1_000_000, rounds=3)
    parser.add_argument("--batch", type=int, default=2048)
    args = parser.parse_args()
    models = {}
    for model in bench_models.NETS:
        engines = {
            engine: (bench_models.build, (model, engine, args.batch, args.rows))
            for engine in ENGINES
        }
        models[model] = profiles.measure(engines, args.rounds)
        for engine, profile in models[model].items():
            profiles.show(f"{model}, {engine}", profile)
    sizes = {"batch": args.batch, **_sizes(args.batch, args.rows)}
    found = {**sizes, "rounds": args.rounds, "models": models}
    result_file.write(args.output, found)


if __name__ == "__main__":
    main()
