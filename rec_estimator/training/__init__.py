# SPDX-License-Identifier: Apache-2.0
"""What a training run needs: settings, cluster, step loop, train_op, lines that show progress."""
