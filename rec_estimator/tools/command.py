# SPDX-License-Identifier: Apache-2.0
"""The command ``rec-estimator``, with a sub-command for each tool."""

import argparse
import sys
from typing import Optional, Sequence

from rec_estimator import __version__
from rec_estimator.tools import (
    export_rows,
    import_rows,
    inspect_checkpoint,
    memory_share,
    tune_filter,
)
from rec_estimator.tools import shrink_ckpt_with_filtered_features as shrink

_TOOLS = {
    "export": export_rows,
    "import": import_rows,
    "inspect": inspect_checkpoint,
    "memory-share": memory_share,
    "shrink": shrink,
    "tune": tune_filter,
}


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs a sub-command and returns its exit code, 2 if an argument is invalid."""
    parser = argparse.ArgumentParser(
        prog="rec-estimator",
        description="Tools for checkpoints and data. `rec-estimator TOOL --help` lists arguments.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{name:14}{tool.DESCRIPTION}" for name, tool in _TOOLS.items()),
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("tool", choices=_TOOLS, metavar="TOOL", help="one of those below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="those of the tool")
    options = parser.parse_args(arguments)
    return _TOOLS[options.tool].main(options.arguments)


if __name__ == "__main__":
    sys.exit(main())
