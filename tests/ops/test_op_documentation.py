# SPDX-License-Identifier: Apache-2.0
"""The documentation of every op names the shape of each tensor."""

import re

from fuzz.fuzz_calls import op_names


def test_every_op_documents_the_shape_of_each_input_and_output():
    from rec_estimator import _ops

    undocumented = []
    for op in op_names(_ops.gen):
        text = " ".join(getattr(_ops.gen, f"rec_estimator_{op}").__doc__.split())
        # TensorFlow writes "keys: A `Tensor` of type `int64`." and then the text of .Doc.
        described = re.findall(
            r"(\w*:? ?)A [^`]*(?:`\w+` [^`]*)?`Tensor`(?:[^`]* type `\w+`|"
            r"\. (?:Must have|Has) the same type as `\w+`|"
            r"\. Must be one of the following types: `\w+`(?:, `\w+`)*)\.(?=(.{20}))",
            text + " " * 20,
        )
        assert described, op
        for name, words in described:
            if not re.match(r" (\[|Each \[|Per slot \[|Any shape|Shape of )", words):
                undocumented.append(f"{op}, {name}{words}")
    assert undocumented == []
