# SPDX-License-Identifier: Apache-2.0
"""Models on RecEstimator, one file each, with their data and their runner. See README.md."""
