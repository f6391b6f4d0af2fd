# SPDX-License-Identifier: Apache-2.0
"""Comparisons: which runs are made, what they leave, and the table."""

import json

import pytest
import tensorflow.compat.v1 as tf

from model_zoo import __main__ as command
from model_zoo import data
from model_zoo.runner import commands, compare, comparison_table, config, stop_signals

DATA = data.generate_clicks(rows=3000, users=60, items=40, seed=3)
CONFIG = config.from_dict(
    {
        "params": {"dim": 4, "hidden_units": [8]},
        "data": {"name": "generated"},
        "train": {"batch_size": 128, "epochs": 1},
        "hooks": {"progress": False},
    }
)


@pytest.fixture
def runs(monkeypatch):
    """The configurations that were trained; nothing is, and the results follow from them."""
    found = []

    def train(run_config, data_set, say):
        found.append(run_config)
        is_plain = not run_config.tables
        auc = 0.7 + 0.01 * run_config.train.seed - (0 if is_plain else 0.005)
        return {
            "test": {"like/auc": auc, "like/log_loss": 0.5},
            "rows": {"user": 60 if is_plain else 30, "item": 40},
            "steps": 16,
            "best_epoch": 5,
            "samples_per_second": 1000.0,
        }

    monkeypatch.setattr(commands, "train", train)
    return found


def compared(output=None, **arguments):
    """Compares two models; returns what compare returns, and the lines."""
    lines = []
    settings = {"models": ["wide_and_deep", "deepfm"], "seeds": [1, 2]}
    settings.update(arguments)
    run_config = settings.pop("config", CONFIG)
    found = compare.compare(run_config, output=output, data=DATA, say=lines.append, **settings)
    return found, lines


def test_each_model_is_trained_with_each_variant_and_seed(runs):
    found, lines = compared()
    made = [(run.model, sorted(run.tables), run.train.seed) for run in runs]
    assert len(made) == len({str(each) for each in runs}) == len(found["runs"]) == 12
    # All models come first, then further seeds, then further variants.
    assert made[:3] == [("wide_and_deep", [], 1), ("deepfm", [], 1), ("wide_and_deep", [], 2)]
    assert runs[4].tables["default"].filter == {"name": "counter", "filter_freq": 3}
    # Half an epoch.
    steps = {"name": "global_step", "steps_to_live": DATA.rows("train") // 128 // 2}
    assert runs[8].tables["default"].eviction == steps
    assert "[5/12] wide_and_deep, counter, seed 1" in lines


def test_a_refit_takes_the_number_of_epochs_that_a_run_with_validation_chose(runs, tmp_path):
    output = str(tmp_path / "comparison.json")
    settings = {"models": ["deepfm"], "variants": ["plain"], "refit": True}
    compared(output, seeds=[1], **settings)
    found, _ = compared(output, seeds=[1, 2], **settings)
    made = [(run.train.seed, run.train.epochs, run.train.with_validation) for run in runs]
    assert made == [(1, 1, False), (1, 5, True), (2, 5, True)]
    assert found["epochs"] == {"deepfm": 5} and len(found["runs"]) == 2
    with pytest.raises(ValueError, match="whose runs have another train.with_validation"):
        compared(output, models=["deepfm"])


def test_what_a_variant_loses_is_compared_with_runs_of_the_same_seeds(runs, tmp_path):
    output = str(tmp_path / "comparison.json")
    compared(output, models=["deepfm"], variants=["plain"])
    found, _ = compared(output, models=["deepfm"], variants=["counter"], seeds=[2])
    assert comparison_table.table(found).splitlines()[-1].split("|")[-2].strip() == "+0.0050"


def test_runs_that_the_output_has_are_not_made_again(runs, tmp_path):
    output = str(tmp_path / "comparison.json")
    first, _ = compared(output, seeds=[1], variants=["plain"])
    assert json.loads((tmp_path / "comparison.json").read_text()) == first
    second, lines = compared(output, seeds=[1, 2], variants=["plain"])
    assert [run.train.seed for run in runs] == [1, 1, 2, 2]
    assert "[1/4] wide_and_deep, plain, seed 1: done before" in lines
    assert len(second["runs"]) == 4


def test_a_run_that_a_signal_ends_leaves_the_finished_ones(runs, tmp_path, monkeypatch):
    output = tmp_path / "comparison.json"
    train = commands.train

    def interrupted(run_config, *arguments):
        if run_config.model == "deepfm":
            raise stop_signals.Interrupted(2)
        return train(run_config, *arguments)

    monkeypatch.setattr(commands, "train", interrupted)
    with pytest.raises(stop_signals.Interrupted):
        compared(str(output), seeds=[1], variants=["plain"])
    assert [run["model"] for run in json.loads(output.read_text())["runs"]] == ["wide_and_deep"]


def test_an_output_of_another_configuration_is_refused(runs, tmp_path):
    output = str(tmp_path / "comparison.json")
    compared(output, seeds=[1], variants=["plain"])
    with pytest.raises(ValueError, match=r"whose runs have another train.batch_size; choose"):
        compared(output, config=CONFIG.replace(train__batch_size=64))


def test_a_param_that_no_model_has_is_refused(runs):
    with pytest.raises(ValueError, match="params must be among .* did you mean 'dropout'"):
        compared(config=CONFIG.replace(params__dropuot=0.1))


def test_a_model_takes_the_params_that_it_has_and_one_that_does_not_fit_is_left_out(runs):
    columns = tuple(column for column in DATA.columns if column.role != "history")
    parts = {part: DATA.in_memory(part) for part in data.PARTS}
    lines = []
    compare.compare(
        CONFIG.replace(params__cross_layers=3),
        seeds=[1],
        variants=["plain"],
        data=data.MemoryDataSet("clicks", columns, parts),
        say=lines.append,
    )
    made = {run.model: run.params for run in runs}
    assert made["dcn"]["cross_layers"] == 3 and "cross_layers" not in made["deepfm"]
    assert "din" not in made
    assert any(line.startswith("din is left out: din must have a history") for line in lines)


def test_the_table_has_means_deviations_rows_saved_and_auc_lost(runs):
    table = comparison_table.table(compared(models=["deepfm"])[0]).splitlines()
    assert len(table) == 5 and len({len(line) for line in table}) == 1
    heads, _, plain, counter, eviction = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in table
    )
    row = dict(zip(heads, counter))
    assert row["AUC"] == "0.7100 ± 0.0071" and row["log loss"] == "0.5000 ± 0.0000"
    assert row["rows"] == "70" and row["rows saved"] == "30%"
    assert row["AUC lost"] == "+0.0050 ± 0.0000"
    assert row["samples/s"] == "1,000" and "grouped AUC" not in heads
    assert dict(zip(heads, plain))["rows saved"] == "" and eviction[1] == "eviction"


def test_a_variant_of_two_towers_loses_hit_rate(runs, monkeypatch):
    aucs = commands.train

    def train(run_config, data_set, say):
        found = aucs(run_config, data_set, say)
        if run_config.model == "dssm":
            found["test"] = {"hit_rate_at_10": 0.25 if run_config.tables else 0.5}
        return found

    monkeypatch.setattr(commands, "train", train)
    found, _ = compared(models=["deepfm", "dssm"], variants=["plain", "counter"])
    cells = [
        [cell.strip() for cell in line.split("|")]
        for line in comparison_table.table(found).split("\n")
    ]
    lost = {row[1]: row[-2] for row in cells if row[2] == "counter"}
    assert cells[0][-2] == "AUC lost"
    assert lost == {
        "deepfm": "+0.0050 ± 0.0000",
        "dssm": "+0.2500 ± 0.0000 of hit rate at 10",
    }


def test_rows_of_two_towers_live_for_half_of_their_epoch(runs):
    compared(models=["dssm"], variants=["eviction"], seeds=[1])
    clicks = compare.view_of(runs[0], DATA).count_training_rows()
    assert 0 < clicks < DATA.rows("train")
    assert runs[0].tables["default"].eviction["steps_to_live"] == clicks // 128 // 2


def test_a_repeated_seed_or_variant_is_one_run(runs):
    found, _ = compared(models=["deepfm"], variants=["plain", "plain"], seeds=[1, 1])
    assert len(runs) == len(found["runs"]) == 1


def test_an_output_of_other_rows_is_refused(runs, tmp_path):
    output = str(tmp_path / "comparison.json")
    compared(output, models=["deepfm"])
    with pytest.raises(ValueError, match="whose runs have another data.rows.train; choose another"):
        other = data.generate_clicks(rows=2000, users=60, items=40, seed=3)
        compare.compare(CONFIG, ["deepfm"], [1], output=output, data=other, say=str)


def test_an_output_of_other_columns_is_refused(runs, tmp_path):
    output = str(tmp_path / "comparison.json")
    compared(output, models=["deepfm"])
    parts = {part: DATA.in_memory(part) for part in data.PARTS}
    other = data.MemoryDataSet(DATA.name, DATA.columns[:-1], parts)
    with pytest.raises(ValueError, match="another data.columns"):
        compare.compare(CONFIG, ["deepfm"], [1], output=output, data=other, say=str)


def test_runs_of_chosen_and_of_given_epochs_do_not_mix(runs, tmp_path):
    output = str(tmp_path / "comparison.json")
    compared(output, models=["deepfm"], refit=True)
    with_validation = CONFIG.replace(train__with_validation=True)
    with pytest.raises(ValueError, match="another refit"):
        compared(output, models=["deepfm"], config=with_validation)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "must be JSON, got: Expecting value"),
        ("[1]", "must be a new file or a comparison"),
        ('{"x": 1}', "must be a new file or a comparison"),
    ],
)
def test_an_output_that_is_no_comparison_is_refused(runs, tmp_path, text, message):
    output = tmp_path / "comparison.json"
    output.write_text(text)
    with pytest.raises(ValueError, match=f"{message}.*choose another file"):
        compared(str(output))
    assert not runs and output.read_text() == text


def test_the_folder_of_the_output_is_made(runs, tmp_path):
    output = tmp_path / "new" / "folder" / "comparison.json"
    compared(str(output), models=["deepfm"])
    assert len(json.loads(output.read_text())["runs"]) == 6


def test_a_chosen_number_of_epochs_is_kept_when_the_next_run_is_stopped(
    runs, tmp_path, monkeypatch
):
    output = tmp_path / "comparison.json"
    train = commands.train

    def interrupted(run_config, *arguments):
        if run_config.train.with_validation:
            raise stop_signals.Interrupted(2)
        return train(run_config, *arguments)

    monkeypatch.setattr(commands, "train", interrupted)
    with pytest.raises(stop_signals.Interrupted):
        compared(str(output), models=["deepfm"], refit=True)
    assert json.loads(output.read_text())["epochs"] == {"deepfm": 5}


@pytest.mark.parametrize("part, refit", [("test", False), ("validation", True)])
def test_data_without_the_rows_of_a_comparison_are_refused_before_any_run(runs, part, refit):
    parts = {each: DATA.in_memory(each) for each in data.PARTS if each != part}
    lacking = data.MemoryDataSet("clicks", DATA.columns, parts)
    with pytest.raises(ValueError, match=f"clicks must have {part} rows.*larger {part} split"):
        compare.compare(CONFIG, ["deepfm"], refit=refit, data=lacking, say=str)
    assert not runs


def test_a_model_that_fails_is_left_out_and_the_others_are_compared(runs, tmp_path, monkeypatch):
    output = tmp_path / "comparison.json"
    train = commands.train

    def failing(run_config, *arguments):
        if run_config.model == "wide_and_deep":
            raise tf.train.NanLossDuringTrainingError
        return train(run_config, *arguments)

    monkeypatch.setattr(commands, "train", failing)
    said = "wide_and_deep, plain, seed 1: losses must be finite"
    with pytest.raises(compare.ComparisonError, match=f"leave out the model: {said}") as raised:
        compared(str(output), variants=["plain"])
    assert [run["model"] for run in raised.value.found["runs"]] == ["deepfm", "deepfm"]
    assert "| deepfm |" in comparison_table.table(raised.value.found)
    monkeypatch.setattr(commands, "train", train)
    found, _ = compared(str(output), variants=["plain"])
    assert len(found["runs"]) == 4


def test_the_command_prints_the_table_of_what_was_compared_and_then_the_error(
    runs, monkeypatch, capsys, tmp_path
):
    train = commands.train

    def failing(run_config, *arguments):
        if run_config.model == "deepfm":
            raise ValueError("dim must be less")
        return train(run_config, *arguments)

    monkeypatch.setattr(commands, "train", failing)
    arguments = [
        "compare",
        "--data",
        "generated",
        "--seeds",
        "1",
        "--variants",
        "plain",
        "--models",
    ]
    one, two = (["--output", str(tmp_path / name)] for name in ("one.json", "two.json"))
    assert command.main([*arguments, "wide_and_deep", "deepfm", *one]) == 1
    out, err = capsys.readouterr()
    assert "| wide_and_deep | plain" in out and "| deepfm" not in out
    assert "model_zoo compare: all runs must end well" in err and "dim must be less" in err
    assert command.main([*arguments, "deepfm", *two]) == 1
    assert "| model" not in capsys.readouterr().out


def test_a_mistake_of_the_program_ends_a_comparison(runs, monkeypatch):
    monkeypatch.setattr(commands, "train", lambda *arguments: {})
    with pytest.raises(KeyError):
        compared()


def test_a_setting_that_no_model_takes_is_an_error(runs):
    wrong = CONFIG.replace(tables={"usr": {"dim": 4}})
    with pytest.raises(ValueError, match="names in tables must be among .* got 'usr'"):
        compared(config=wrong, models=None)
    assert not runs


@pytest.mark.long
def test_the_built_in_configurations_fit_two_towers():
    run_config = config.load("generated", ["train.steps=4", "hooks.progress=false"])
    (run,) = compare.compare(run_config, ["dssm"], [1], ["plain"], data=DATA, say=str)["runs"]
    assert "hit_rate_at_10" in run["metrics"]


@pytest.mark.long
def test_a_comparison_trains_models_of_one_and_of_several_labels(tmp_path):
    tf.logging.set_verbosity(tf.logging.ERROR)
    models = ["deepfm", "mmoe", "dssm"]
    found, _ = compared(str(tmp_path / "c.json"), models=models, seeds=[1], variants=["counter"])
    table = comparison_table.table(found)
    assert "hit rate at 10" in table
    metrics = {run["model"]: run["metrics"] for run in found["runs"]}
    assert "auc" in metrics["deepfm"] and "like/auc" in metrics["mmoe"]
    assert all(run["rows"] > 0 and run["samples_per_second"] > 0 for run in found["runs"])
