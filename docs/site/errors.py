# SPDX-License-Identifier: Apache-2.0
"""Finds the words of every error in the sources, without running them.

In Python, these are the arguments of exceptions. A name stands for what its function assigns to it
or, if it is a parameter, for what the callers in the same module pass. In C++, they are the strings
of statuses, of storage errors and of texts that say what must be.
"""

import ast
import itertools
import pathlib
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set

# Reasons in the report of a compression, which no user meets as an error.
_REASONS = {"CannotMove", "NotYetKnown"}
# Raised inside of a package, which puts the words into an error of this class.
_INNER = {"DamagedIndexError": "DataLossError"}
_VERB = re.compile(r"^(take|have|be) ")

_MOST_ALTERNATIVES = 20


class Error(NamedTuple):
    """An error: its class, its words with <names> for values, and the file that raises it."""

    kind: str
    words: str
    path: str

    @property
    def fact(self) -> str:
        """What must hold and what was found."""
        return self.words.partition("; ")[0]

    @property
    def remedy(self) -> str:
        """What the words say after the fact; "" if nothing."""
        return self.words.partition("; ")[2]


class PythonModule:
    """The errors of one Python file."""

    def __init__(self, path: str, source: str) -> None:
        self._path = path
        self._tree = ast.parse(source)
        self._parents = {
            child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)
        }
        self._functions = {
            node.name: node for node in ast.walk(self._tree) if isinstance(node, ast.FunctionDef)
        }

    def errors(self) -> Iterator[Error]:
        """Yields the errors, in the order of the source."""
        for node in ast.walk(self._tree):
            kind = _class_of(node)
            if kind is None or kind in _REASONS or not isinstance(node, ast.Call):
                continue
            message = node.args[-1] if "errors." in ast.unparse(node.func) else node.args[0]
            for words in self._texts(message, self._function(node), set()):
                if kind in _INNER:
                    words = _VERB.sub(r"tensor <name> must \1 ", words)
                yield Error(_INNER.get(kind, kind), words, self._path)

    def _function(self, node: ast.AST) -> Optional[ast.FunctionDef]:
        while node in self._parents:
            node = self._parents[node]
            if isinstance(node, ast.FunctionDef):
                return node
        return None

    def _texts(self, node: ast.AST, function: Any, seen: Set[str]) -> List[str]:
        """The words that an expression may have; [] if it has none of its own."""
        if isinstance(node, ast.Constant):
            return [node.value] if isinstance(node.value, str) else []
        if isinstance(node, ast.IfExp):
            return self._texts(node.body, function, seen) + self._texts(node.orelse, function, seen)
        if isinstance(node, ast.JoinedStr):
            return self._joined([self._part(value, function, seen) for value in node.values])
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Mod):  # "…%s…" % values
                node = node.left
                return [_formatted(text) for text in self._texts(node, function, seen)]
            parts = [self._texts(side, function, seen) for side in (node.left, node.right)]
            return self._joined([found or ["<…>"] for found in parts]) if any(parts) else []
        if isinstance(node, ast.Call):
            return self._called(node, function, seen)
        if isinstance(node, ast.Name) and function is not None and node.id not in seen:
            return self._named(node.id, function, seen | {node.id})
        return []

    def _part(self, value: ast.AST, function: Any, seen: Set[str]) -> List[str]:
        if not isinstance(value, ast.FormattedValue):
            return [str(value.value)] if isinstance(value, ast.Constant) else ["<…>"]
        expression = value.value
        found = []
        if isinstance(expression, (ast.Name, ast.IfExp, ast.JoinedStr)):
            found = self._texts(expression, function, seen)
        if 0 < len(found) <= _MOST_ALTERNATIVES:
            return found
        if isinstance(expression, ast.Call) and ast.unparse(expression.func) in self._functions:
            return [_placeholder(expression.func)]
        return [_placeholder(expression)]

    @staticmethod
    def _joined(parts: List[List[str]]) -> List[str]:
        combined = itertools.islice(itertools.product(*parts), _MOST_ALTERNATIVES)
        return ["".join(each) for each in combined]

    def _called(self, node: ast.Call, function: Any, seen: Set[str]) -> List[str]:
        name = ast.unparse(node.func).rpartition(".")[2]
        if name not in self._functions or name in seen:
            return []
        called = self._functions[name]
        return [
            text
            for each in ast.walk(called)
            if isinstance(each, ast.Return) and each.value is not None
            for text in self._texts(each.value, called, seen | {name})
        ]

    def _named(self, name: str, function: ast.FunctionDef, seen: Set[str]) -> List[str]:
        arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
        names = [argument.arg for argument in arguments]
        if name in names:
            return self._passed(name, names, function, seen)
        return [
            text
            for node in ast.walk(function)
            if isinstance(node, (ast.Assign, ast.AugAssign))
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name) and target.id == name
            for text in self._texts(node.value, function, seen)
        ]

    def _passed(
        self, name: str, names: List[str], function: ast.FunctionDef, seen: Set[str]
    ) -> List[str]:
        position = names.index(name) - (names[0] in ("self", "cls"))
        found = []
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Call):
                continue
            if ast.unparse(node.func).rpartition(".")[2] != function.name:
                continue
            by_name = [each.value for each in node.keywords if each.arg == name]
            for value in by_name or node.args[position : position + 1]:
                found += self._texts(value, self._function(node), seen)
        return found


def _class_of(node: ast.AST) -> Optional[str]:
    """The exception's class if a node makes an exception with words."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    if isinstance(node.func, (ast.Name, ast.Attribute)):
        name = ast.unparse(node.func).rpartition(".")[2]
        if name[0].isupper() and (name.endswith("Error") or name in _REASONS):
            return name
    return None


def _placeholder(expression: ast.AST) -> str:
    if isinstance(expression, ast.Name):
        return f"<{expression.id.strip('_')}>"
    if isinstance(expression, ast.Attribute):
        return f"<{expression.attr.strip('_')}>"
    return "<…>"


def _formatted(text: str) -> str:
    return re.sub(r"%[-\d.]*[sdrg]", "<…>", text)


# Functions of C++ whose arguments are the parts of an error.
_STATUS = re.compile(
    r"\b(Aborted|Cancelled|DataLoss|DeadlineExceeded|FailedPrecondition|Internal|InvalidArgument|"
    r"NotFound|ResourceExhausted|Unavailable|Unimplemented)(?:Error)?\("
)
_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"')
_UP_TO_SEMICOLON = re.compile(r'(?:"(?:\\.|[^"\\])*"|[^;"])*')
_RULE = re.compile(r'(?:=|return|\{|,|\() *("(?:\\.|[^"\\\n])*")')


def cpp_errors(path: str, source: str) -> Iterator[Error]:
    """Yields the errors of a C++ file, in the order of the source."""
    source = _COMMENT.sub(lambda match: match.group(1) or "", source)
    covered = 0
    for match in _STATUS.finditer(source):
        text, covered = _balanced(source, match.end())
        words = _words(_split(text, ","))
        if words:
            yield Error(f"{match.group(1)}Error", words, path)
    if covered or "/core/" not in f"/{path}":
        return
    for statement in _statements(source):
        words = _words(_split(statement, "+"))
        if " must " in words:
            yield Error("", words, path)


def _balanced(source: str, start: int) -> Any:
    """(text up to the parenthesis that closes the one before start, its end)."""
    depth, position = 1, start
    while depth:
        found = re.compile(r'"(?:\\.|[^"\\])*"|[()]').search(source, position)
        assert found, "a parenthesis is not closed"
        depth += {"(": 1, ")": -1}.get(found.group(), 0)
        position = found.end()
    return source[start : position - 1], position


def _split(text: str, separator: str) -> List[str]:
    """Splits at separators outside of strings and parentheses."""
    parts, depth, last = [], 0, 0
    for match in re.finditer(r'"(?:\\.|[^"\\])*"|[()\[\]{}]|' + re.escape(separator), text):
        token = match.group()
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token, 0)
        if token == separator and not depth:
            parts.append(text[last : match.start()])
            last = match.end()
    return [*parts, text[last:]]


def _statements(source: str) -> Iterator[str]:
    """Yields what begins with a string after an assignment, a return or a bracket."""
    position = 0
    while True:
        match = _RULE.search(source, position)
        if match is None:
            return
        text = _split_at_close(_UP_TO_SEMICOLON.findall(source, match.start(1))[0])
        yield text
        position = match.start(1) + max(len(text), 1)


def _split_at_close(text: str) -> str:
    depth = 0
    for match in re.finditer(r'"(?:\\.|[^"\\])*"|[()\[\]{},]', text):
        token = match.group()
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token, 0)
        if depth < 0 or (token == "," and not depth):
            return text[: match.start()]
    return text


def _words(parts: List[str]) -> str:
    """The words of an error, of the parts of its message; "" if none is a string."""
    words = ""
    for part in parts:
        strings = _STRING.findall(part)
        rest = _STRING.sub("", part).strip()
        if strings and not rest:
            words += "".join(strings).encode().decode("unicode_escape")
        else:
            names = re.findall(r"[A-Za-z_]\w*", rest)
            is_name = len(names) == 1 and "(" not in rest
            words += f"<{names[0].strip('_')}>" if is_name else "<…>"
    return words if re.search(r"[a-z]{2}", re.sub(r"<.*?>", "", words)) else ""


def find(root: pathlib.Path) -> List[Error]:
    """All errors of a checkout, each once, by file."""
    found: Dict[Error, None] = {}
    for path in sorted(root.glob("rec_estimator/**/*.py")):
        name = path.relative_to(root).as_posix()
        found.update(dict.fromkeys(PythonModule(name, path.read_text()).errors()))
    for path in sorted([*root.glob("ops/**/*.h"), *root.glob("ops/**/*.cc")]):
        name = path.relative_to(root).as_posix()
        found.update(dict.fromkeys(cpp_errors(name, path.read_text())))
    return list(found)
