# SPDX-License-Identifier: Apache-2.0
"""What the pass builds: repeated rows, split layers, rewired inputs."""
