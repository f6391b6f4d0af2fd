# SPDX-License-Identifier: Apache-2.0
"""The filters that the contract tests run, in tests/table/ and tests/checkpoint/."""

import rec_estimator as rec

# Room for far more keys than a test has: no false positives.
LARGE = {"max_element_size": 10**6, "false_positive_probability": 1e-6}

# By name: a function of filter_freq that makes the filter.
FILTERS = {"counter": rec.CounterFilter, "bloom": lambda freq: rec.CBFFilter(freq, **LARGE)}

# The filters that give a key without a row an entry.
WITH_ENTRIES = (rec.CounterFilter,)
