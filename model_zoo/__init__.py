# SPDX-License-Identifier: Apache-2.0
"""Click models for RecEstimator, one file each, with data sets and a runner. See README.md."""
