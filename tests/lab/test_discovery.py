"""What there is to run, in which order, with which parameters, and where results go."""

import pytest
import small_notebooks
from refusals import refusal as refused

from gnnlab.lab import discovery

CELL = "width: int = 8  # channels; 1..64\noutput_dir: str = 'outputs/lab'  # where results go"


def notebook(repository, name, source=CELL, **about):
    return small_notebooks.write(repository / "notebooks" / f"{name}.ipynb", source, **about)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Two notebooks, and a parameter set with a file for each."""
    notebook(tmp_path, "01_first")
    notebook(tmp_path, "02_second", CELL + "\nrate: float = 0.1  # learning rate", needs=["01"], timeout_minutes=10)
    notebook(tmp_path, "scratch")
    for name in ("01_first", "02_second"):
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
    assert (second.number, second.name, second.needs, second.timeout_minutes) == ("02", "02_second", ("01",), 10)
    assert (first.needs, first.timeout_minutes) == ((), discovery.TIMEOUT_MINUTES)


def test_notebooks_are_chosen_by_number_name_or_path_and_stay_in_order(repository):
    every = discovery.notebooks(repository)
    for word in ("01", "1", "01_first", "notebooks/01_first.ipynb"):
        assert [chosen.number for chosen in discovery.select(every, ["2", word, "02"])] == ["01", "02"]
        assert [chosen.number for chosen in discovery.select(every, [word])] == ["01"]
    assert len(discovery.select(every, [])) == 2
    assert "there is no notebook '4'; there are: 01_first, 02_second" in refused(discovery.select, every, ["1", "4"])


def test_a_damaged_notebook_is_named(repository):
    (repository / "notebooks/01_first.ipynb").write_text("")
    assert "01_first.ipynb is not a notebook" in refused(discovery.notebooks, repository)


def test_a_parameter_set_is_a_name_or_a_folder_with_files(repository, tmp_path_factory):
    mine = tmp_path_factory.mktemp("mine")
    for name in ("ful", "", "full", str(mine)):
        message = refused(discovery.parameter_set, name, repository)
        assert message == f"there is no parameter set {name!r}, nor a folder with *.yaml; sets are full, quick"
    (mine / "01_first.yaml").write_text("width: 8")
    assert discovery.parameter_set("quick", repository) == repository / "params/quick"
    assert discovery.parameter_set(str(mine), repository) == mine


def test_given_parameters_are_understood_an_override_first_and_defaults_are_left_to_the_notebook(repository):
    assert given(("rate", "1e-3")) == {"01_first": {"width": 9}, "02_second": {"width": 9, "rate": 0.001}}
    assert given(("width", "10"), numbers=["01"]) == {"01_first": {"width": 10}}  # goes before the file
    (repository / "params/quick/01_first.yaml").unlink()
    assert given()["01_first"] is None


@pytest.mark.parametrize(
    ("override", "part"),
    [
        (("widht", "1"), "-p widht: unknown parameter 'widht' (did you mean width?)"),
        (("width", "99"), "width: got 99; input should be less than or equal to 64"),
        (("rate", "fast"), "rate: got 'fast'"),
    ],
)
def test_a_wrong_override_is_refused(repository, override, part):
    assert part in refused(given, override)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("01_frist.yaml", "did you mean 01_first.yaml?"), ("02_second.yml", "02_second.yaml"), ("x.yaml", "")],
)
def test_a_file_that_is_wrong_or_belongs_to_no_notebook_is_refused(repository, name, hint):
    (repository / "params/quick/02_second.yaml").write_text("widht: 5")
    assert "02_second.yaml: unknown parameter 'widht' (did you mean width?)" in refused(given)
    (repository / "params/quick" / name).write_text("")
    message = refused(given)
    assert f"{name} belongs to no notebook" in message and hint in message


def test_results_go_to_the_folder_of_the_set_or_where_parameters_say(repository):
    assert discovery.request((), "quick").folder == repository / "outputs/quick"
    for named, folder in (("x/y", repository / "x/y"), ("/elsewhere", discovery.Path("/elsewhere"))):
        request = discovery.request((), "quick", [("output_dir", named)])
        assert request.folder == folder.resolve()
        assert request.values(request.chosen[0]) == {"width": 9, "output_dir": named}
    assert "run gnnlab run --params quick first" in refused(discovery.results_of, "quick")
    (repository / "params/quick/01_first.yaml").write_text("output_dir: x/y")
    assert "different output_dir; one run has one folder" in refused(discovery.request, (), "quick")
