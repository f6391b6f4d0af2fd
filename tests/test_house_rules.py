# SPDX-License-Identifier: Apache-2.0
"""The rules of this repository as tests. A failure gives the reason and the remedy."""

import ast
import collections
import inspect
import json
import pathlib
import re
import subprocess
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What the root of the repository holds, and nothing else. A new name needs a reason here.
ROOT_NAMES = {
    # The layout.
    *("_build", "benchmarks", "docs", "model_zoo", "ops", "rec_estimator", "tests"),
    # Setuptools: build backend and linter settings, metadata, platform, contents of an sdist.
    *("pyproject.toml", "setup.cfg", "setup.py", "MANIFEST.in"),
    # People.
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile", "SECURITY.md"),
    *("CITATION.cff", "CODE_OF_CONDUCT.md"),
    # Tools that look for their configuration in the root.
    *(".ci", ".clang-format", ".github", ".gitignore", ".pre-commit-config.yaml"),
}

# Folders of rec_estimator without a folder in tests/, and the reason. Never add one.
TESTED_ELSEWHERE = {
    "sample_compression/analysis": "one pass, tested as a whole in tests/sample_compression/",
    "sample_compression/report": "one pass, tested as a whole in tests/sample_compression/",
    "sample_compression/rewrite": "one pass, tested as a whole in tests/sample_compression/",
    "sample_compression/rules": "one pass, tested as a whole in tests/sample_compression/",
}

# Environment variables that change what rec_estimator does: DeepRec's switch, documented in
# docs/checkpoints.md, and the variables that an MPI launcher sets. TensorFlow reads TF_CONFIG,
# GRPC_FAIL_FAST and TF_NUM_INTEROP_THREADS.
ENVIRONMENT_VARIABLES = {
    "GRPC_FAIL_FAST",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "TF_CONFIG",
    "REC_ESTIMATOR_REFRESH_FOLDER",
    "TF_EV_SAVE_FILTERED_FEATURES",
    "TF_NUM_INTEROP_THREADS",
}

# Modules that run what a file says, or make any object of it.
UNSAFE_MODULES = {"cPickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve", "yaml"}

# The module that reads YAML, with a loader that makes no objects.
READS_YAML = ROOT / "model_zoo" / "yaml_files.py"

# A file name with one of these words does not say what the file is for.
EMPTY_WORDS = {"util", "utils", "helper", "helpers", "manager", "managers", "common", "misc"}


def sources(*patterns):
    found = sorted(path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file())
    assert found, f"no file matches {patterns}: the rule below would check nothing"
    return found


def tracked():
    """Paths of all files that git knows, relative to the root."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def expect_none(found, why):
    """Fails if anything was found, with the reason of the rule and each place."""
    assert not found, "\n  ".join([why, *found])


def where(path, node_or_line):
    line = getattr(node_or_line, "lineno", node_or_line)
    return f"{path.relative_to(ROOT)}:{line}"


def code_and_text():
    return sources(
        *("*.py", "*.cfg", "*.toml", "*.md", "Makefile", ".ci/*", "_build/*.py"),
        *("rec_estimator/**/*.py", "model_zoo/**/*.py", "benchmarks/**/*.py", "docs/**/*.md"),
        *("ops/**/*.cc", "ops/**/*.h", "tests/**/*.py", "tests/ops/core/**/*"),
    )


def imported_names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node, f"{node.module or ''}.{alias.name}"


def test_the_root_holds_exactly_the_names_it_should():
    found = {path.partition("/")[0] for path in tracked()}
    assert sorted(found - ROOT_NAMES) == [], "the root is the first page: put the file in a folder"
    assert sorted(ROOT_NAMES - found) == [], "take the name off ROOT_NAMES"


def test_every_source_file_names_its_license_first():
    source = re.compile(r"(\.(py|cc|h|toml|cfg|ya?ml)|(^|/)(Makefile|run))$")
    found = [
        path
        for path in tracked()
        if source.search(path)
        and (ROOT / path).is_file()
        # A script's first line names its interpreter.
        and "SPDX-License-Identifier: Apache-2.0"
        not in "\n".join((ROOT / path).read_text().splitlines()[:2])
    ]
    expect_none(found, "a copied file must say its license: begin with the SPDX line of the others")


def test_commit_hooks_run_the_commands_of_make_lint():
    hooks = re.findall(r"entry: \.venv/bin/(.*)", (ROOT / ".pre-commit-config.yaml").read_text())
    lint = re.search(r"^lint:.*?^$", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    commands = re.findall(r"\$\(BIN\)/([a-z-]+(?: (?:check|format))?(?: --[\w-]+)*)", lint.group())
    assert sorted({hook.replace(" --force-exclude", "") for hook in hooks}) == sorted({*commands})


@pytest.mark.parametrize("name", ["WITHOUT_BEHAVIOR", "NEWEST"])
def test_tests_that_the_makefile_names_exist(name):
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    paths = re.search(rf"^{name} := (.*)$", text, re.MULTILINE).group(1).split()
    missing = [path for path in paths if not (ROOT / "tests" / path).exists()]
    assert missing == [], f"a test was moved: change {name} in the Makefile"


def test_ci_jobs_run_the_targets_of_the_local_script_and_three_more():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    jobs = {target for line in re.findall(r"targets: (.*)}", workflow) for target in line.split()}
    runs = re.findall(r"^start ([a-z0-9 -]+)", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    script = " ".join(runs).split()
    assert sorted(jobs) == sorted([*script, "test-includes", "test-newest", "wheel"])
    targets = re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(jobs - set(targets)) == []


@pytest.mark.parametrize(
    ("tree", "pattern"), [("rec_estimator", "*.py"), ("ops", "*.cc")], ids=["Python", "C++"]
)
def test_tests_mirror_the_trees(tree, pattern):
    folders = {
        path.parent.relative_to(ROOT / tree).as_posix()
        for path in sources(f"{tree}/*/**/{pattern}")
        if path.name != "__init__.py"
    }
    tests = ROOT / "tests" if tree == "rec_estimator" else ROOT / "tests" / tree
    missing = [name for name in sorted(folders) if not list((tests / name).glob("test_*.*"))]
    assert missing == (sorted(TESTED_ELSEWHERE) if tree == "rec_estimator" else []), (
        f"the tests of {tree}/<folder> are in {tests.relative_to(ROOT)}/<folder>"
    )


IMPORT_EFFECTS = """
import json, sys, types
import tensorflow.compat.v1 as tf
if hasattr(tf, "estimator"):  # TensorFlow 2.15. The package has effects on Keras and on tf_export.
    from tensorflow_estimator import estimator

def attributes():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("tensorflow", "tensorflow_estimator"):
            continue
        for key, value in list(vars(module).items()):
            found[name + "." + key] = value
            if isinstance(value, type) and value.__module__ == name:
                for attribute, member in list(vars(value).items()):
                    found[name + "." + key + "." + attribute] = member
    return found

before, modules = attributes(), set(sys.modules)
import rec_estimator
after = attributes()
known = {name for name in before}
owners = {name.rpartition(".")[0] for name in before}
# Python itself adds submodules to their parents and fills caches of types.
hidden = ("__warningregistry__", "_abc_impl", "__abstractmethods__")
print(json.dumps({
    "patched": sorted(
        name for name, value in after.items()
        if name.rpartition(".")[0] in owners
        and not isinstance(value, types.ModuleType)
        and not name.endswith(hidden)
        and before.get(name, owners) is not value
    ),
    "stand_ins": sorted(
        name for name, module in sys.modules.items()
        if name not in modules
        and name.partition(".")[0] in ("tensorflow", "tensorflow_estimator")
        and getattr(module, "__spec__", None) is None
    ),
    "keras": sorted(name for name in set(sys.modules) - modules if "keras" in name.lower()),
}))
"""


@pytest.fixture(scope="module")
def import_effects():
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_EFFECTS], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_rec_estimator_changes_nothing_in_tensorflow(import_effects):
    expect_none(
        import_effects["patched"],
        "importing rec_estimator must not change TensorFlow, because it would affect other code in "
        "the process; subclass or wrap instead of assigning to TensorFlow's attributes",
    )


def test_no_stand_in_is_left_in_sys_modules(import_effects):
    expect_none(
        import_effects["stand_ins"],
        "modules that rec_estimator made must be in sys.modules only during an import: other code "
        "would take them for TensorFlow's",
    )


def test_importing_rec_estimator_loads_no_keras_of_its_own(import_effects):
    # TensorFlow 2.15 and tensorflow_estimator load Keras modules themselves; later ones do not.
    expect_none(
        import_effects["keras"],
        "rec_estimator must work with Keras 2, with Keras 3 and without Keras: use "
        "tf.get_variable and tf.nn",
    )


def test_private_tensorflow_is_imported_in_one_package_only():
    found = [
        where(path, node)
        for path in sources(
            "rec_estimator/**/*.py", "model_zoo/**/*.py", "benchmarks/**/*.py", "tests/**/*.py"
        )
        if path.parent.name != "_tensorflow"
        for node, name in imported_names(ast.parse(path.read_text()))
        if re.match(r"(tensorflow|tensorflow_estimator)\.python\b", name)
    ]
    expect_none(
        found,
        "tensorflow.python may change in any release: add the name, with the reason, to "
        "a module of rec_estimator/_tensorflow and import it from there",
    )


def test_the_estimator_package_is_imported_in_one_module_only():
    found = [
        where(path, node)
        for path in sources("rec_estimator/**/*.py", "model_zoo/**/*.py", "benchmarks/**/*.py")
        if path != ROOT / "rec_estimator" / "_tensorflow" / "estimator.py"
        for node, name in imported_names(ast.parse(path.read_text()))
        if name.partition(".")[0] == "tensorflow_estimator"
    ]
    expect_none(
        found,
        "newer TensorFlow releases need a workaround to import tensorflow_estimator: import its "
        "names from rec_estimator/_tensorflow/estimator.py",
    )


def test_no_keras_is_used():
    found = []
    for path in sources("rec_estimator/**/*.py", "model_zoo/**/*.py"):
        if path == ROOT / "rec_estimator" / "_tensorflow" / "canned.py":
            continue  # Asks which Keras there is when a canned estimator of Keras 2 is made.
        tree = ast.parse(path.read_text())
        names = list(imported_names(tree)) + [
            (node, getattr(node, "attr", None) or getattr(node, "id", None) or "")
            for node in ast.walk(tree)
        ]
        found += [
            where(path, node)
            for node, name in names
            # Our check that an argument does not come from Keras.
            if "keras" in name.lower() and name.rpartition(".")[2] != "refuse_keras"
        ]
    expect_none(
        found, "TensorFlow 2.16 and later have another Keras: use tf.get_variable and tf.nn"
    )


def test_core_includes_neither_tensorflow_nor_abseil():
    pattern = re.compile(r'#\s*include\s*[<"](tensorflow|tsl|xla|absl|Eigen|unsupported|google)/')
    found = [
        where(path, number)
        for path in sources("ops/core/**/*.h", "ops/core/**/*.cc")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    expect_none(
        found,
        "ops/core is built without TensorFlow, also under sanitizers: pass such objects as "
        "arguments, like ParallelFor in parallel.h for threads",
    )


def test_lines_are_prefetched_by_the_functions_of_cpu_memory_alone():
    found = [
        where(path, number)
        for path in sources("ops/**/*.h", "ops/**/*.cc")
        if path.name != "cpu_memory.h"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "__builtin_prefetch" in line
    ]
    expect_none(
        found, "GCC drops calls of a function that does nothing but this: call PrefetchLine"
    )


def registered_ops():
    """(file, name, text) of every REGISTER_OP statement."""
    for path in sources("ops/*/*_ops.cc"):
        for statement in re.split(r"^(?=REGISTER_OP\()", path.read_text(), flags=re.MULTILINE)[1:]:
            # The statement ends at the last semicolon that closes a line and a parenthesis.
            yield path, re.match(r'REGISTER_OP\("([^"]+)"\)', statement).group(1), statement


def test_ops_are_named_after_this_package():
    found = [name for _, name, _ in registered_ops() if not name.startswith("RecEstimator>")]
    expect_none(found, "the name of an op is global in a process: register it as RecEstimator>Name")


def test_every_op_has_documentation_and_a_shape_function():
    found = []
    for _, name, text in registered_ops():
        doc = "".join(re.findall(r'\.Doc\(R"doc\((.*?)\)doc"\)', text, re.DOTALL))
        tensors = re.findall(r'\.(?:Input|Output)\(\s*"(\w+):', text)
        found += [f"{name}: no .Doc"] if not doc.strip() else []
        found += [f"{name}: no shape function"] if ".SetShapeFn(" not in text else []
        found += [
            f"{name}: {tensor} is not in .Doc"
            for tensor in tensors
            if not re.search(rf"^{tensor}: ", doc, re.MULTILINE)
        ]
    expect_none(found, "the documentation of an op has one line for each tensor, with its shape")


def test_every_registered_op_is_in_the_library_with_its_documentation():
    from rec_estimator import _ops

    functions = {
        name: function
        for name, function in vars(_ops.gen).items()
        if name.startswith("rec_estimator_") and isinstance(function, types.FunctionType)
    }
    expected = {
        "rec_estimator_" + re.sub(r"(?<!^)(?=[A-Z])", "_", name.partition(">")[2]).lower()
        for _, name, _ in registered_ops()
    }
    public = {name for name in functions if not name.endswith("_eager_fallback")}
    assert expected <= public, "build the library again: make library"
    undocumented = "TO" + "DO: add doc"
    assert [name for name in sorted(expected) if undocumented in functions[name].__doc__] == []


def public_objects():
    """(name, object) of everything in rec_estimator.__all__ that this package defines."""
    import rec_estimator

    def walk(prefix, module):
        names = getattr(module, "__all__", None)
        if names is None:
            names = [
                name
                for name, value in vars(module).items()
                if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
            ]
        for name in names:
            value = getattr(module, name)
            if isinstance(value, types.ModuleType):
                yield f"{prefix}.{name}", value
                yield from walk(f"{prefix}.{name}", value)
            elif getattr(value, "__module__", "").startswith("rec_estimator"):
                yield f"{prefix}.{name}", value
                if isinstance(value, type):
                    for attribute, member in vars(value).items():
                        if not attribute.startswith("_") and _is_own(member):
                            yield f"{prefix}.{name}.{attribute}", member

    return dict(walk("rec_estimator", rec_estimator))


def _is_own(member):
    member = getattr(member, "fget", getattr(member, "__func__", member))
    return inspect.isfunction(member) and member.__module__.startswith("rec_estimator")


def test_every_public_name_has_a_docstring():
    found = [name for name, value in public_objects().items() if not inspect.getdoc(value)]
    expect_none(found, "help(rec_estimator) is the API reference: write a Google-style docstring")


def test_every_public_signature_is_annotated():
    found = []
    for name, value in public_objects().items():
        function = getattr(value, "fget", getattr(value, "__func__", value))
        if isinstance(function, type):
            function = vars(function).get("__init__")
        if not inspect.isfunction(function):
            continue
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())
        if parameters and parameters[0].name in ("self", "cls"):
            parameters = parameters[1:]
        found += [
            f"{name}({parameter.name})"
            for parameter in parameters
            if parameter.annotation is parameter.empty
        ]
        if signature.return_annotation is signature.empty and function.__name__ != "__init__":
            found.append(f"{name} -> ?")
    expect_none(found, "annotate every argument and the result of a public function")


def sizes_read_from(node):
    """The uses of ``.shape`` in a node that give ints, or Dimensions after disable_v2_behavior."""

    def is_shape(node):
        return isinstance(node, ast.Attribute) and node.attr == "shape"

    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "dimension_value":
        return []
    own = []
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
        own = [node.value]
    elif isinstance(node, (ast.For, ast.comprehension)):
        own = [node.iter]
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("int", "list", "tuple"):
        own = node.args
    children = [use for child in ast.iter_child_nodes(node) for use in sizes_read_from(child)]
    return [use for use in own if is_shape(use)] + children


def test_sizes_of_static_shapes_are_read_by_dimension_value():
    found = [
        where(path, node)
        for path in sources("rec_estimator/**/*.py", "model_zoo/**/*.py", "benchmarks/**/*.py")
        # Its shapes are those of stored tensors, which are tuples.
        if (ROOT / "rec_estimator" / "checkpoint") not in path.parents
        for node in sizes_read_from(ast.parse(path.read_text()))
    ]
    expect_none(
        found,
        "a size is a Dimension after tf.disable_v2_behavior(), and Dimension(None) is not None: "
        "use tf.dimension_value(x.shape[i]) or x.shape.as_list()",
    )


def test_file_names_say_what_is_in_them():
    found = [
        str(path.relative_to(ROOT))
        for path in code_and_text()
        if EMPTY_WORDS & set(re.split(r"[_.]", path.name.lower()))
    ]
    expect_none(found, f"name a file after its content; the words {sorted(EMPTY_WORDS)} are empty")


def test_behavior_comes_from_arguments_not_from_the_environment():
    found = []
    for path in sources("rec_estimator/**/*.py"):
        tree = ast.parse(path.read_text())
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(tree):
            if getattr(node, "attr", getattr(node, "id", "")) not in ("environ", "getenv"):
                continue
            # os.environ["X"], os.environ.get("X"), os.getenv("X"): the name is in the statement.
            expression = node
            while isinstance(parents.get(expression), (ast.Attribute, ast.Call, ast.Subscript)):
                expression = parents[expression]
            names = {
                constant.value
                for constant in ast.walk(expression)
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
            }
            if not names & ENVIRONMENT_VARIABLES:
                found.append(where(path, node))
    found += [
        where(path, number)
        for path in sources("ops/**/*.cc", "ops/**/*.h")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\b(secure_)?getenv\b", line)
        and not any(f'"{name}"' in line for name in ENVIRONMENT_VARIABLES)
    ]
    expect_none(
        found,
        "a program must show what it does: use an argument or an op attribute; "
        f"the documented exceptions are {sorted(ENVIRONMENT_VARIABLES)}",
    )


def runs_text_or_objects(node):
    """Whether a node of a syntax tree could run what is in a file or a string."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
        return any(name.partition(".")[0] in UNSAFE_MODULES for name in names)
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    # ast.literal_eval and session.run are other names.
    if called in ("eval", "exec", "compile", "os.system", "os.popen"):
        return True
    return any(
        keyword.arg in ("shell", "allow_pickle")
        and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
        for keyword in node.keywords
    )


def test_nothing_runs_what_is_in_a_file_or_a_string():
    found = [
        where(path, node)
        for path in sources(
            *("rec_estimator/**/*.py", "model_zoo/**/*.py", "benchmarks/**/*.py", "_build/*.py"),
            "setup.py",
        )
        if path != READS_YAML
        for node in ast.walk(ast.parse(path.read_text()))
        if runs_text_or_objects(node)
    ]
    expect_none(
        found,
        "data must never be run as a program, see SECURITY.md: pass lists to subprocess, and read "
        "arrays, JSON or messages",
    )


def test_yaml_is_read_by_a_loader_that_makes_no_objects():
    text = READS_YAML.read_text()
    assert "class Loader(yaml.SafeLoader)" in text and "Loader=loader" in text
    assert text.count("yaml.load(") == 1


@pytest.mark.parametrize(
    "text",
    [
        *("import pickle", "from yaml import load", "import joblib.pool", "eval(text)"),
        *(
            "os.system(text)",
            "subprocess.run(text, shell=True)",
            "np.load(path, allow_pickle=True)",
        ),
    ],
)
def test_the_rule_above_finds_what_runs_files_and_strings(text):
    assert any(map(runs_text_or_objects, ast.walk(ast.parse(text))))


def test_nothing_is_left_for_later():
    pattern = re.compile(r"\b(" + "TO" + "DO|FIX" + "ME|XX" + "X|HA" + r"CK)\b")
    found = [
        where(path, number)
        for path in code_and_text()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    expect_none(found, "do it now or open an issue")


def test_no_test_is_switched_off():
    off = {"skip", "skipif", "xfail", "importorskip", "skipTest", "skipIf", "skipUnless"}
    found = [
        where(path, node)
        for path in sources("tests/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in off
        and ast.unparse(node).partition(".")[0] in ("pytest", "unittest", "self")
    ]
    expect_none(found, "a test that does not run proves nothing: fix it or delete it")


def test_test_names_are_unique_in_their_file():
    found = []
    for path in sources("tests/**/test_*.py"):
        for scope in ast.walk(ast.parse(path.read_text())):
            if isinstance(scope, (ast.Module, ast.ClassDef)):
                names = [node.name for node in scope.body if isinstance(node, ast.FunctionDef)]
                repeated = [name for name, n in collections.Counter(names).items() if n > 1]
                found += [f"{path.relative_to(ROOT)}: {name}" for name in repeated]
    expect_none(found, "Python keeps the last of two functions with one name; the first never runs")
