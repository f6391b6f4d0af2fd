# SPDX-License-Identifier: Apache-2.0
"""The targets of the fuzz. The class ``Target`` in ``fuzz_<name>.py`` tries one seed of a target.

Target(folder)   makes what all seeds need, in an empty folder of its own
run(seed)        tries one hostile input; returns a word for what became of it, or raises
"""

# Which part of the seeds a target gets: a seed of some takes long.
SHARES = {
    "calls": 3.0,
    "checkpoints": 1.0,
    "folders": 1.0,
    "indexes": 1.0,
    "records": 1.0,
    "requests": 1.0,
    "resume": 0.1,
}
