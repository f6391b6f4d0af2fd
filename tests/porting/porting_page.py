# SPDX-License-Identifier: Apache-2.0
"""The tables of names in docs/porting.md, and docs/porting.sed, which is made from them.

python tests/porting/porting_page.py > docs/porting.sed
"""

import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "porting.md"
SED = PAGE.with_suffix(".sed")
SECTIONS = ["Names: Rec SDK", "Names: DeepRec"]

# Modules of DeepRec in the tables that TensorFlow has, too.
_OF_TENSORFLOW = ["sequence_feature_column"]

_HEAD = r"""# SPDX-License-Identifier: Apache-2.0
# Replaces the names of DeepRec and Rec SDK in a script: sed -i -E -f docs/porting.sed script.py
# Made from the tables of docs/porting.md: python tests/porting/porting_page.py > docs/porting.sed
s/^import tensorflow as tf$/import tensorflow.compat.v1 as tf/
s/^import tensorflow\.compat\.v1 as tf$/&\n\nimport rec_estimator as rec/
"""
# After the rules for single names, such as that for tf.estimator.Estimator.
_TAIL = r"""s/\btf\.(compat\.v1\.)?estimator\./rec./g
"""


def rows(section):
    """(theirs, ours) of each row of a section's table."""
    text = PAGE.read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert all(len(cells) == 2 for cells in lines)
    return lines


def ours(cell):
    return re.findall(r"`(rec_estimator[\w.]*)`", cell)


def renamed():
    """{name of a vendor, with its module: name of this package}, in the order of the tables."""
    found = {}
    for theirs, cell in (row for section in SECTIONS for row in rows(section)):
        names = {name.rpartition(".")[2]: name for name in ours(cell)}
        # The name that takes the place of all others, if the row has no further words.
        other = cell.strip("`") if cell.count("`") == 2 and cell[0] == cell[-1] == "`" else None
        prefix = ""
        for written in re.findall(r"`([\w.]+)(?:\([^`]*\))?`", theirs):
            # A name without a module is in that of the name before it.
            prefix, _, last = written.rpartition(".") if "." in written else (prefix, "", written)
            new = names.get(last, other)
            if prefix and new and re.match(r"rec_estimator\.(optimizers\.(\w+\.)?)?\w+$", new):
                found[f"{prefix}.{last}".replace("tf.compat.v1.", "tf.")] = new
    return found


def sed_rules():
    """The text of docs/porting.sed."""
    imports, names, modules = [], [], set()
    for theirs, new in renamed().items():
        (module, _, last), (new_module, _, new_last) = theirs.rpartition("."), new.rpartition(".")
        if module.startswith(("mx_rec", "rec_sdk_common")):
            old, new = ("", "") if last == new_last else (f" {last}", f" {new_last} as {last}")
            imports.append(
                rf"s/\bfrom {re.escape(module)} import{old}\b/from {new_module} import{new}/"
            )
            continue
        path = re.escape(theirs).replace(r"tf\.", r"tf\.(compat\.v1\.)?", 1)
        names.append(rf"s/\b{path}\b/{new.replace('rec_estimator', 'rec')}/g")
        if "." not in module and module not in ("tf", *_OF_TENSORFLOW):
            modules.add(module)
    imports.append(rf"/^from tensorflow\.[a-z_.]+ import ({'|'.join(sorted(modules))})$/d")
    return _HEAD + "".join(f"{rule}\n" for rule in [*dict.fromkeys(imports), *names]) + _TAIL


if __name__ == "__main__":
    print(sed_rules(), end="")
