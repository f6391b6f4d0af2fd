# SPDX-License-Identifier: Apache-2.0
"""Sample-aware graph compression, under the name of DeepRec's module ``tf.graph_optimizer``."""

from rec_estimator.sample_compression import (
    CompressionReport,
    compress,
    compression_report,
    enable_sample_awared_graph_compression,
)

__all__ = [
    "CompressionReport",
    "compress",
    "compression_report",
    "enable_sample_awared_graph_compression",
]
