# SPDX-License-Identifier: Apache-2.0
"""Classes and functions are short enough to be read as one thing."""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The most lines of a class, and of a function without its docstring. Split what is longer by what
# its parts do.
MOST_LINES = {"class": 300, "function": 60}

# What was longer when the rule was made, with its number of lines. Never raise a number, never add
# an entry. A name of Python has its module; a name of C++ has its file.
LONGER: dict = {
    "rec_estimator.rec_sdk.create_table.create_table": 63,
    "tests.porting.scripts.tf1_deepfm.model_fn": 65,
}

PYTHON = ("*.py", *(f"{tree}/**/*.py" for tree in ("_build", "benchmarks", "docs", "model_zoo")))
PYTHON += ("rec_estimator/**/*.py", "tests/**/*.py")
CPP = ("ops/**/*.h", "ops/**/*.cc", "tests/ops/**/*.h", "tests/ops/**/*.cc")

# Text of C++ in which braces and semicolons mean nothing.
_OPAQUE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|^[ ]*\#(?:[^\n]*\\\n)*[^\n]*|R"(\w*)\(.*?\)\1"|"""
    r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""",
    re.DOTALL | re.MULTILINE,
)
_CLASS = re.compile(r"(?:template <.*> )?(?:class|struct|union|enum(?: class)?)\b\s*([\w:]*)")
_FUNCTION = re.compile(r"TEST\(\w+\)|[\w:~]*(?:operator[^\w\s(]+|\w)(?=\s*\()")


def sizes_of_python(text, module):
    """Yields (kind, name, lines) of each class and function of a module."""

    def walk(node, prefix):
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.ClassDef, ast.FunctionDef)):
                yield from walk(child, prefix)
                continue
            name = f"{prefix}.{child.name}"
            lines = child.end_lineno - child.lineno + 1
            if isinstance(child, ast.ClassDef):
                yield "class", name, lines
            else:
                first = child.body[0]
                has_docstring = ast.get_docstring(child) is not None
                docstring = first.end_lineno - first.lineno + 1 if has_docstring else 0
                yield "function", name, lines - docstring
            yield from walk(child, name)

    yield from walk(ast.parse(text), module)


def opens(statement, is_outside):
    """(kind, name) of the block that a statement of C++ opens.

    Args:
      statement: The text before the brace.
      is_outside: Whether it is in a namespace or a class, not in a function.
    """
    statement = " ".join(statement.split())
    if not is_outside:
        return "block", ""
    if re.match(r"(inline )?namespace\b|extern\b", statement):
        return "namespace", ""
    found = _CLASS.match(statement)
    if found and not statement.endswith((")", "const", "override", "noexcept")):
        return "class", found.group(1)
    found = _FUNCTION.search(statement)
    return ("function", found.group()) if found else ("block", "")


def sizes_of_cpp(text):
    """Yields (kind, name, lines) of each class and function of a file, which must be formatted."""
    text = _OPAQUE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    blocks, start = [], 0
    for match in re.finditer(r"[;{}]|\b(?:public|private|protected):", text):
        if match.group() == "{":
            statement = text[start : match.start()]
            is_outside = not blocks or blocks[-1][0] in ("namespace", "class")
            begin = start + len(statement) - len(statement.lstrip())
            blocks.append((*opens(statement, is_outside), begin))
        elif match.group() == "}":
            kind, name, begin = blocks.pop()
            owners = [block[1] for block in blocks if block[0] == "class"]
            if kind in MOST_LINES:
                yield kind, "::".join([*owners, name]), text.count("\n", begin, match.end()) + 1
        start = match.end()


@functools.cache
def all_sizes():
    """{(kind, name): lines} of all classes and functions; of names that are twice, the longest."""
    found = []
    for path in (path for pattern in PYTHON for path in ROOT.glob(pattern)):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found += sizes_of_python(path.read_text(), ".".join(parts))
    for path in (path for pattern in CPP for path in ROOT.glob(pattern)):
        sizes = sizes_of_cpp(path.read_text())
        found += [(kind, f"{path.name} {name}", lines) for kind, name, lines in sizes]
    longest: dict = {}
    for kind, name, lines in found:
        longest[kind, name] = max(lines, longest.get((kind, name), 0))
    return longest


@pytest.mark.parametrize("kind", MOST_LINES)
def test_no_class_and_no_function_is_too_long(kind):
    sizes = {name: lines for (of, name), lines in all_sizes().items() if of == kind}
    assert len(sizes) > 300, "the sources were not found"
    most = MOST_LINES[kind]
    found = {name: lines for name, lines in sizes.items() if lines > max(most, LONGER.get(name, 0))}
    assert not found, f"a {kind} has at most {MOST_LINES[kind]} lines: split it by what it does"


def test_what_has_become_short_enough_is_not_listed():
    longer = {name for (kind, name), lines in all_sizes().items() if lines > MOST_LINES[kind]}
    assert sorted(set(LONGER) - longer) == [], "take the name off LONGER"


def test_python_is_measured():
    text = '''
class A:
    """Docstring."""

    @decorator
    def method(self):
        """Two
        lines."""
        def inner():
            return 1
        return inner
'''
    assert list(sizes_of_python(text, "m")) == [
        ("class", "m.A", 10),
        ("function", "m.A.method", 4),
        ("function", "m.A.method.inner", 2),
    ]


def test_cpp_is_measured():
    text = """
#define OPEN {
namespace rec_estimator {
namespace {
int table[] = {1, 2};
// A comment with { in it.
template <typename T>
class Table final : public Base<T> {
 public:
  explicit Table(int n) : n_(n) {}
  bool operator==(const Table& other) const {
    return n_ == other.n_ && text_ != "{" && c_ != '{';
  }
  struct Row {
    int a;
  };

 private:
  int n_ = 0;
};
}  // namespace

void Table::Grow(
    int n) {
  if (n) {
    for (;;) {
    }
  }
}

TEST(Grows) {
  auto run = [&](int i) { return i; };
}
}  // namespace rec_estimator
"""
    assert list(sizes_of_cpp(text)) == [
        ("function", "Table::Table", 1),
        ("function", "Table::operator==", 3),
        ("class", "Table::Row", 3),
        ("class", "Table", 14),
        ("function", "Table::Grow", 7),
        ("function", "TEST(Grows)", 3),
    ]
