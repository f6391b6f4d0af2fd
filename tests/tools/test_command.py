# SPDX-License-Identifier: Apache-2.0
"""rec-estimator: its sub-commands and their exit codes."""

import configparser
import importlib
import pathlib
import runpy
import sys

import pytest

import rec_estimator
from rec_estimator import tools
from rec_estimator.tools import command

TOOLS = {
    "export": "export_rows",
    "import": "import_rows",
    "inspect": "inspect_checkpoint",
    "memory-share": "memory_share",
    "shrink": "shrink_ckpt_with_filtered_features",
    "tune": "tune_filter",
}


def test_it_is_the_only_command_that_an_installation_adds():
    parser = configparser.ConfigParser()
    parser.read(pathlib.Path(__file__).parents[2] / "setup.cfg")
    (line,) = parser["options.entry_points"]["console_scripts"].strip().splitlines()
    name, target = line.split(" = ")
    module, function = target.split(":")
    assert name == "rec-estimator"
    assert getattr(importlib.import_module(module), function) is command.main


def test_help_and_the_package_name_every_tool(capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: rec-estimator ")
    for name in TOOLS:
        assert f"\n{name} " in shown
        assert f"    rec-estimator {name} " in tools.__doc__


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_shows_its_own_arguments(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main([name, "--help"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: rec-estimator {name} [-h] ")


@pytest.mark.parametrize(("name", "module"), TOOLS.items(), ids=TOOLS)
def test_a_tool_gets_all_that_follows_its_name(name, module, monkeypatch):
    calls = []
    monkeypatch.setattr(
        importlib.import_module(f"rec_estimator.tools.{module}"),
        "main",
        lambda arguments: calls.append(arguments) or 2,
    )
    assert command.main([name, "model/", "--table", "user"]) == 2
    assert calls == [["model/", "--table", "user"]]


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"rec-estimator {rec_estimator.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["no-such-tool"]])
def test_a_missing_or_unknown_tool_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    assert "rec-estimator: error: " in capsys.readouterr().err


def test_module_runs_as_a_program(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rec-estimator", "shrink", "--help"])
    monkeypatch.delitem(sys.modules, "rec_estimator.tools.command")
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("rec_estimator.tools.command", run_name="__main__")
    assert stopped.value.code == 0
    assert "--output_checkpoint" in capsys.readouterr().out
