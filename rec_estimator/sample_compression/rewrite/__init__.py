# SPDX-License-Identifier: Apache-2.0
"""What the pass puts in the place of ops: repeated rows, split layers, rewired inputs."""
