"""Experiments are compared by combination, and two variants within one experiment."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aiperf_svc.adapters.comparison.comparing import folder_groups
from aiperf_svc.adapters.exports.result_files import read_run
from aiperf_svc.adapters.storage.experiment_artifacts import write_experiment
from aiperf_svc.adapters.storage.provenance_file import write_provenance
from aiperf_svc.cli.main import main
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.core.compare.comparison import Word
from aiperf_svc.core.compare.groups import Group, compare_groups, group_of
from aiperf_svc.core.experiments.outcomes import TrialOutcome
from aiperf_svc.core.experiments.summary import summarise
from aiperf_svc.core.experiments.trials import TRIALS, Trial, plan_trials
from aiperf_svc.core.results.provenance import Provenance
from aiperf_svc.domain.errors import Incomparable
from tests.support import fake_run
from tests.support.fake_folders import write_run
from tests.support.runs_to_compare import compare_folders, compared, inference_run, side

CONFIG = fake_run.context(fake_run.closed_loop(requests=10)).config
FAST, SLOW = [100.0, 101.0, 102.0], [120.0, 121.0, 122.0]


def experiment(folder: Path, name: str, ttft_ms: dict[tuple[str, int], float]) -> Path:
    """Write an experiment with three repetitions over models and concurrencies."""
    outcomes: list[TrialOutcome] = []
    for repetition in range(3):
        for (model, concurrency), ttft in ttft_ms.items():
            number = len(outcomes) + 1
            parameters = {"endpoint.model": model, "load.concurrency": concurrency}
            trial = Trial(number, parameters, repetition + 1)
            run = inference_run(
                folder / TRIALS / trial.folder, f"{name}-{number}", seed=number, ttft_ms=ttft
            )
            results = read_run(run / "profile_export_aiperf.json")
            outcomes.append(TrialOutcome(trial, "done", "", results))
    write_experiment(folder, CONFIG, summarise(outcomes))
    return folder


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two experiments. `new` is slower than `base` only at concurrency 8."""
    root = tmp_path_factory.mktemp("experiments")
    base = {("a", 4): 30.0, ("a", 8): 30.0, ("b", 4): 40.0, ("b", 8): 30.0}
    new = {("a", 4): 30.0, ("a", 8): 45.0, ("b", 4): 40.0, ("b", 16): 30.0}
    experiment(root / "base", "base", base)
    experiment(root / "new", "new", new)
    return root


def test_repetitions_of_a_target_have_its_name(tmp_path: Path) -> None:
    trial = Trial(1, {})
    for side_name in ("base", "new"):
        folder = tmp_path / side_name / "a"
        results = write_run(folder / TRIALS / trial.folder, side_name, 10)
        write_experiment(folder, CONFIG, summarise([TrialOutcome(trial, "done", "", results)]))
        (tmp_path / side_name / "joint.json").write_text("{}")
    (group,) = folder_groups([tmp_path / "base", tmp_path / "new"])
    assert (group.name, len(group.base), len(group.new)) == ("a", 1, 1)


def test_experiments_are_compared_at_equal_parameters(
    experiments: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = experiments / "base", experiments / "new"
    code, out, _ = compare_folders(capsys, *folders, "--json")
    found = json.loads(out)
    assert code == 0
    names = [each["name"] for each in found["groups"]]
    assert names == [
        "endpoint.model=a, load.concurrency=4",
        "endpoint.model=a, load.concurrency=8",
        "endpoint.model=b, load.concurrency=4",
    ]
    words = [
        {row["word"] for row in each["rows"] if row["key"]["tag"] == "time_to_first_token"}
        for each in found["groups"]
    ]
    assert words[1] == {"worse"}
    assert "worse" not in words[0] | words[2]
    assert found["skipped"] == [
        {"name": "endpoint.model=b, load.concurrency=8", "reason": "only base has it"},
        {"name": "endpoint.model=b, load.concurrency=16", "reason": "only new has it"},
    ]


def test_failed_trials_are_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = experiment(tmp_path / "both", "both", {("a", 4): 30.0, ("b", 4): 30.0})
    content = json.loads((folder / "experiment.json").read_text())
    trials = content["trials"]
    for model, number, concurrency in (("a", 7, 4), ("b", 8, 4), ("a", 9, 8)):
        trials.append(
            trials[0]
            | {"parameters": {"endpoint.model": model, "load.concurrency": concurrency}}
            | {"number": number, "folder": f"000{number}"}
            | {"state": "failed", "reason": "a worker was lost"}
        )
    (folder / "experiment.json").write_text(json.dumps(content))
    code, out, _ = compare_folders(capsys, folder, "--by", "endpoint.model", "--json")
    found = json.loads(out)
    (group,) = found["groups"]
    left_out = [each for name in ("base", "new") for each in group[name]["left_out"]]
    assert [each["verdict"] for each in left_out] == ["failed: a worker was lost"] * 2
    assert [Path(each["folder"]).name for each in left_out] == ["0007", "0008"]
    assert found["skipped"] == [{"name": "load.concurrency=8", "reason": "only base has it"}]
    assert {row["word"] for row in group["rows"]} == {"?"}
    code, out, _ = compare_folders(capsys, folder, "--by", "endpoint.model")
    assert (code, out.count("failed:")) == (0, 2)
    gate = "--by", "endpoint.model", "--fail-on", "worse"
    assert compare_folders(capsys, folder, *gate)[0] == 8


def test_history_names_failed_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = experiment(tmp_path / "nightly", "nightly", {("a", 4): 30.0})
    content = json.loads((folder / "experiment.json").read_text())
    failed = {"number": 7, "folder": "0007", "state": "failed", "reason": "no server"}
    content["trials"].append(content["trials"][0] | failed)
    (folder / "experiment.json").write_text(json.dumps(content))
    assert main(["history", str(folder)]) == 0
    message = "".join(capsys.readouterr().out.split())
    assert f"leftout:{folder}/trials/0007:failed:noserver" in message


def test_attempt_that_was_run_again_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = experiment(tmp_path / "both", "both", {("a", 4): 30.0, ("b", 4): 30.0})
    content = json.loads((folder / "experiment.json").read_text())
    content["trials"][0] |= {"replaced": ["failed: no server"], "folder": "again"}
    again = folder / TRIALS / "again"
    (folder / TRIALS / Trial(1, content["trials"][0]["parameters"]).folder).rename(again)
    (folder / "experiment.json").write_text(json.dumps(content))
    by = "--by", "endpoint.model", "--json", "--fail-on", "worse"
    code, out, _ = compare_folders(capsys, folder, *by)
    (group,) = json.loads(out)["groups"]
    (attempt,) = group["base"]["left_out"]
    assert (code, attempt["verdict"]) == (0, "failed: no server; run again")
    assert not group["new"]["left_out"]


def test_variants_are_compared_at_each_other_parameter(
    experiments: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = compare_folders(capsys, experiments / "base", "--by", "endpoint.model", "--json")
    found = json.loads(out)
    assert code == 0
    assert [each["name"] for each in found["groups"]] == [
        "load.concurrency=4",
        "load.concurrency=8",
    ]
    first = found["groups"][0]
    assert [len(first[name]["runs"]) for name in ("base", "new")] == [3, 3]
    words = {row["key"]["tag"]: row["word"] for row in first["rows"]}
    assert words["time_to_first_token"] == "worse"


def test_first_of_two_chosen_values_is_the_base(
    experiments: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--by", "endpoint.model=b,a", "--metric", "time_to_first_token:p50"
    _, out, _ = compare_folders(capsys, experiments / "base", *words, "--fail-on", "worse")
    assert "1 better" in out
    assert "all 2 combinations" in out


def test_variants_with_equal_prefixes_are_distinguished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = "registry.example.com/team/inference-server:1.0."
    ttft_ms = {(f"{image}{patch}", 4): ms for patch, ms in ((1, 30.0), (2, 45.0), (3, 30.0))}
    folder = experiment(tmp_path / "both", "both", ttft_ms)
    by = f"endpoint.model={image}1,{image}2"
    code, out, _ = compare_folders(capsys, folder, "--by", by, "--json")
    (group,) = json.loads(out)["groups"]
    assert (code, [len(group[name]["runs"]) for name in ("base", "new")]) == (0, [3, 3])
    words = {row["key"]["tag"]: row["word"] for row in group["rows"]}
    assert words["time_to_first_token"] == "worse"


def test_groups_of_one_name_keep_their_runs() -> None:
    groups = [Group("cut […]", side(f"a{n}", FAST), side(f"b{n}", FAST)) for n in range(2)]
    found = compare_groups(groups).groups
    assert all(group_of(each, groups) is group for each, group in zip(found, groups, strict=True))


def test_worse_in_one_combination_fails_the_gate(
    experiments: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    folders = experiments / "base", experiments / "new"
    code, out, _ = compare_folders(
        capsys, *folders, "--fail-on", "worse", "--markdown", "--html", page
    )
    assert code == 7
    assert out.count("### ") == 3
    assert page.read_text().count("<h2>endpoint.model=") == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "choose two variants with --by KEY"),
        (["--by", "load.rate"], "--by load.rate: no parameter of"),
        (["--by", "load.concurrency=4,5"], "no trial has load.concurrency=5; it has 4, 8"),
        (["--by", "load.concurrency=4,4"], "two values are compared"),
        (["--by", "load.concurrency=4"], "two values are compared"),
    ],
)
def test_unclear_variants_are_one_line(
    experiments: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, _, err = compare_folders(capsys, experiments / "base", *words)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_experiment_of_several_combinations_cannot_be_a_side(
    experiments: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = next((experiments / "new" / TRIALS).iterdir())
    code, _, err = compare_folders(capsys, experiments / "base", run)
    assert code == 2
    assert "an experiment with 4 combinations of parameters" in err
    code, _, err = compare_folders(capsys, experiments / "base", experiments)
    assert code == 2
    assert f"error: {experiments}: no run; expected" in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "broken"),
        ('{"schema_version": "experiment/9"}', "expected 'experiment/1'"),
        ('{"schema_version": "experiment/1"}', "missing required field `trials`"),
        ('{"schema_version": "experiment/1", "trials": []}', "no trial of this experiment has"),
        (
            '{"schema_version": "experiment/1", "trials": [{"number": 1, "parameters": {}, '
            '"repetition": 1, "state": "done", "reason": "", "folder": "etc"}]}',
            "trial 1 has no folder etc in trials",
        ),
    ],
)
def test_a_broken_experiment_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    (tmp_path / "experiment.json").write_text(content)
    code, _, err = compare_folders(capsys, tmp_path, tmp_path)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_correction_is_over_the_rows_of_all_groups() -> None:
    alone = compared(side("a", FAST), side("b", SLOW)).rows[0]
    groups = [Group(f"g{n}", side(f"a{n}-", FAST), side(f"b{n}-", SLOW)) for n in range(20)]
    found = compare_groups(groups)
    assert len(found.rows) == 20
    assert found.rows[0].p == alone.p
    assert found.rows[0].adjusted_p == pytest.approx(20 * (alone.p or 0))


def test_incomparable_groups_are_named() -> None:
    good = Group("good", side("a", FAST), side("b", FAST))
    found = compare_groups([good, Group("half", side("c", FAST), [])])
    assert [each.name for each in found.skipped] == ["half"]
    assert not found.is_judged
    assert found.groups[0].rows[0].word in (Word.SAME, Word.UNSURE)
    with pytest.raises(Incomparable, match="half: only base has it"):
        compare_groups([Group("half", side("c", FAST), [])])


def test_page_of_experiments_has_their_curves(
    experiments: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    folders = experiments / "base", experiments / "new"
    code, _, _ = compare_folders(capsys, *folders, "--html", str(page))
    assert code == 0
    text = page.read_text()
    assert "Pareto front of all" in text
    assert f"</svg>{experiments / 'base'}: endpoint.model=a</span>" in text


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write three blocks of two versions. b is slower, and both slow down over the trials."""
    folder = tmp_path_factory.mktemp("blocks")
    experiment = Experiment.model_validate(
        {
            "product": {"endpoint.model": ["a", "b"]},
            "blocks": {"over": "endpoint.model", "count": 3},
        }
    )
    outcomes = []
    for trial in plan_trials(experiment, 4):
        ttft_ms = (30.0 + trial.number) * (1.5 if trial.parameters["endpoint.model"] == "b" else 1)
        place = folder / TRIALS / trial.folder
        run = inference_run(place, f"run-{trial.number}", seed=trial.number, ttft_ms=ttft_ms)
        results = read_run(run / "profile_export_aiperf.json")
        outcomes.append(TrialOutcome(trial, "done", "", results))
    config = CONFIG.model_copy(update={"experiment": experiment})
    write_experiment(folder, config, summarise(outcomes))
    return folder


def test_paired_comparison_counts_blocks(blocks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--by", "endpoint.model", "--paired", "--json", "--metric", "time_to_first_token:p50"
    code, out, _ = compare_folders(capsys, blocks, *words)
    (row,) = json.loads(out)["rows"]
    assert (code, row["base"]["n"], row["new"]["n"], row["word"]) == (0, 3, 3, "worse")
    assert row["base"]["mean"] < row["new"]["mean"], "the base is the first value of the config"


def test_comparison_states_uptimes_of_targets(
    blocks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (blocks / TRIALS).iterdir():
        summary = folder / "profile_export_aiperf.json"
        begin_s = read_run(summary).start_wall_ns / 1e9
        uptime_s = 40 if "model=a" in folder.name else 45
        started = datetime.fromtimestamp(begin_s - uptime_s, UTC).isoformat()
        write_provenance(folder, Provenance(client={}, target={"started": started}))
    _, out, _ = compare_folders(capsys, blocks, "--by", "endpoint.model", "--paired")
    assert "uptime of the target when the load began: base 40 to 40 s, new 45 to 45 s" in out


def test_paired_comparison_without_blocks_is_refused(
    experiments: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--by", "endpoint.model", "--paired"
    code, _, err = compare_folders(capsys, experiments / "base", *words)
    assert (code, "--paired: needs an experiment that ran in blocks" in err) == (2, True)
