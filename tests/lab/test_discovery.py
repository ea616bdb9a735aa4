"""What there is to run, in which order, with which parameters, and where results go."""

import pytest
import small_notebooks
from refusals import refusal as refused

from gnnlab.lab import discovery

FIRST, SECOND = "01_profile_bottlenecks", "02_optimize_gnn"
CELL = "width: int = 8  # channels; 1..64\noutput_dir: str = 'outputs/lab'  # where results go"


def notebook(repository, name, source=CELL, **about):
    return small_notebooks.write(repository / "notebooks" / f"{name}.ipynb", source, **about)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Two notebooks, and a parameter set with a file for each."""
    notebook(tmp_path, FIRST)
    notebook(tmp_path, SECOND, CELL + "\nrate: float = 0.1  # learning rate", needs=["01"], timeout_minutes=10)
    for own in ("scratch", "02_draft", f"{SECOND}.nbconvert", f"{FIRST}-Copy1", "11_mine"):
        notebook(tmp_path, own, "this is nobody's business")
    for name in (FIRST, SECOND):
        (tmp_path / "params/quick").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"params/quick/{name}.yaml").write_text("width: '9'")
    (tmp_path / "params/full").mkdir()
    monkeypatch.chdir(tmp_path / "params/quick")
    return tmp_path


def given(*overrides, numbers=(), params="quick"):
    return discovery.request(numbers, params, overrides).given


def test_the_repository_is_seen_from_a_folder_in_it_with_needs_and_time_limits(repository):
    assert discovery.root() == repository
    first, second = discovery.notebooks(repository).values()
    assert (second.number, second.name, second.needs, second.timeout_minutes) == ("02", SECOND, ("01",), 10)
    assert (first.needs, first.timeout_minutes) == ((), discovery.TIMEOUT_MINUTES)


def test_from_elsewhere_it_is_the_one_that_the_package_lies_in(repository, monkeypatch):
    monkeypatch.setattr(discovery, "__file__", str(repository / "gnnlab/lab/discovery.py"))
    monkeypatch.chdir("/")
    assert discovery.root() == repository


def test_a_users_own_project_is_not_taken_for_the_repository(repository, tmp_path, monkeypatch):
    mine = tmp_path / "project"
    for name in (f"notebooks/{FIRST}-Copy1.ipynb", "params/quick/a.yaml"):
        (mine / name).parent.mkdir(parents=True)
        (mine / name).touch()
    monkeypatch.chdir(mine)
    assert discovery.root() == repository
    monkeypatch.setattr(discovery, "__file__", str(mine / "discovery.py"))
    (repository / f"notebooks/{FIRST}.ipynb").unlink()
    assert f"holds notebooks/{FIRST}.ipynb and params/quick; change to" in refused(discovery.root)


def test_notebooks_are_chosen_by_number_name_or_path_and_stay_in_order(repository):
    every = discovery.notebooks(repository)
    for word in ("01", "1", FIRST, f"notebooks/{FIRST}.ipynb"):
        assert [chosen.number for chosen in discovery.select(every, ["2", word, "02"])] == ["01", "02"]
        assert [chosen.number for chosen in discovery.select(every, [word])] == ["01"]
    assert len(discovery.select(every, [])) == 2
    assert f"there is no notebook '4'; there are: {FIRST}, {SECOND}" in refused(discovery.select, every, ["1", "4"])


def test_a_damaged_notebook_is_named(repository):
    (repository / f"notebooks/{FIRST}.ipynb").write_text("")
    assert f"{FIRST}.ipynb is not a notebook" in refused(discovery.notebooks, repository)


def test_a_parameter_set_is_a_name_or_a_folder_with_files(repository, tmp_path_factory):
    mine = tmp_path_factory.mktemp("mine")
    for name in ("ful", "", "full", str(mine)):
        message = refused(discovery.parameter_set, name, repository)
        assert message == f"there is no parameter set {name!r}, nor a folder with *.yaml; sets are full, quick"
    (mine / f"{FIRST}.yaml").write_text("width: 8")
    assert discovery.parameter_set("quick", repository) == repository / "params/quick"
    assert discovery.parameter_set(str(mine), repository) == mine


def test_given_parameters_are_understood_an_override_first_and_defaults_are_left_to_the_notebook(repository):
    assert given(("rate", "1e-3")) == {
        FIRST: {"width": 9},
        SECOND: {"width": 9, "rate": 0.001},
    }
    assert given(("width", "10"), numbers=["01"]) == {FIRST: {"width": 10}}  # goes before the file
    (repository / f"params/quick/{FIRST}.yaml").unlink()
    assert given()[FIRST] is None


@pytest.mark.parametrize(
    ("override", "part"),
    [
        (("widht", "1"), "-p widht: unknown parameter 'widht' (did you mean width?)"),
        (("width", "99"), "width: got '99'; allowed is a whole number, 1..64"),
        (("rate", "fast"), "rate: got 'fast'"),
    ],
)
def test_a_wrong_override_is_refused(repository, override, part):
    assert part in refused(given, override)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("01_profile_botlenecks.yaml", f"did you mean {FIRST}.yaml?"),
        (f"{SECOND}.yml", f"{SECOND}.yaml"),
        ("x.yaml", ""),
    ],
)
def test_a_file_that_is_wrong_or_belongs_to_no_notebook_is_refused(repository, name, hint):
    (repository / f"params/quick/{SECOND}.yaml").write_text("widht: 5")
    assert f"{SECOND}.yaml: unknown parameter 'widht' (did you mean width?)" in refused(given)
    (repository / "params/quick" / name).write_text("")
    message = refused(given)
    assert f"{name} belongs to no notebook" in message and hint in message


def test_results_go_to_the_folder_of_the_set_or_where_parameters_say(repository, monkeypatch):
    assert discovery.request((), "quick").folder == repository / "outputs/quick"
    for named, folder in (("x/y", repository / "x/y"), ("/elsewhere", discovery.Path("/elsewhere"))):
        request = discovery.request((), "quick", [("output_dir", named)])
        assert request.folder == folder.resolve()
        assert request.values(request.chosen[0]) == {"width": 9, "output_dir": named}
    monkeypatch.setenv("HOME", "/home/me")
    assert discovery.request((), "quick", [("output_dir", "~/x")]).folder == discovery.Path("/home/me/x")
    assert "run gnnlab run --params quick first" in refused(discovery.results_of, "quick")
    (repository / f"params/quick/{FIRST}.yaml").write_text("output_dir: x/y")
    assert "different output_dir; one run has one folder" in refused(discovery.request, (), "quick")
