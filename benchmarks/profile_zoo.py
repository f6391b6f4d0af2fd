# SPDX-License-Identifier: Apache-2.0
"""Shows by perf where the CPU time of a training step goes, for models of the zoo with tables.

    python -m benchmarks.profile_zoo [--rounds 3] [--output FILE.json]

Only the lookups and updates of a step can be faster with tables. This explains the cases of the
committed result of bench_zoo.py that are less than bench_zoo.ENOUGH times as fast; models, data and
tables are those of bench_zoo.py. profiles.py describes the measurement and what is printed,
milliseconds of CPU a step.
"""

from typing import Any, Callable

from benchmarks import bench_zoo, profiles, result_file


def build(model: str, batch_size: int) -> Callable[[], Any]:
    """A training step of a model with tables that have all their rows."""
    data, batches, sizes = bench_zoo.inputs_of(model, batch_size)
    step = bench_zoo.build(model, "tables", data, batches, sizes)
    for _ in range(bench_zoo.BATCHES):
        step()
    return step


def main() -> None:
    """Runs the command."""
    parser = result_file.parser(__doc__, rounds=3)
    args = parser.parse_args()
    results = []
    for model, batch in bench_zoo.slow_cases(result_file.read("bench_zoo")):
        measured = profiles.measure({model: (build, (model, batch))}, args.rounds)
        results.append({"model": model, "batch": batch, **measured[model]})
        profiles.show(f"{model}, batch {batch}", measured[model])
        result_file.write(args.output, {"rounds": args.rounds, "results": results})


if __name__ == "__main__":
    main()
