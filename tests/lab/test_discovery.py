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
    notebook(tmp_path, SECOND, CELL + "\nrate: float = 0.1  # learning rate\nat: list[int] = [1]  # where")
    for own in ("scratch", "02_draft", f"{SECOND}.nbconvert", f"{FIRST}-Copy1", "11_mine"):
        notebook(tmp_path, own, "this is nobody's business")
    for name in (FIRST, SECOND):
        (tmp_path / "params/quick").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"params/quick/{name}.yaml").write_text("width: '9'")
    (tmp_path / "params/full").mkdir()
    monkeypatch.chdir(tmp_path / "params/quick")
    return tmp_path


def values(*overrides, numbers=(), params="quick"):
    return discovery.request(numbers, params, overrides).values


def test_the_repository_is_the_one_around_the_current_folder_or_the_package_and_no_project_of_a_user(
    repository, tmp_path, monkeypatch
):
    assert discovery.root() == repository
    monkeypatch.setattr(discovery, "__file__", str(repository / "gnnlab/lab/discovery.py"))
    monkeypatch.chdir("/")
    assert discovery.root() == repository
    mine = tmp_path / "project"
    for name in (f"notebooks/{FIRST}-Copy1.ipynb", "params/quick/a.yaml"):
        (mine / name).parent.mkdir(parents=True)
        (mine / name).touch()
    monkeypatch.chdir(mine)
    assert discovery.root() == repository
    (repository / f"notebooks/{FIRST}.ipynb").unlink()
    assert f"holds notebooks/{FIRST}.ipynb and params/quick; change to" in refused(discovery.root)


def test_notebooks_are_chosen_by_number_name_or_path_and_stay_in_order(repository):
    def chosen(*wanted):
        return [path.stem[:2] for path in discovery.notebooks(repository, wanted)]

    for word in ("01", "1", FIRST, f"notebooks/{FIRST}.ipynb"):
        assert chosen("2", word, "02") == chosen() == ["01", "02"] and chosen(word) == ["01"]
    assert f"there is no notebook '4'; there are: {FIRST}, {SECOND}" in refused(chosen, "1", "4")


def test_a_parameter_set_is_a_name_or_a_folder_with_files(repository, tmp_path_factory):
    mine = tmp_path_factory.mktemp("mine")
    for name in ("ful", "", "full", str(mine)):
        message = refused(values, params=name)
        assert message == f"there is no parameter set {name!r}, nor a folder with *.yaml; sets are full, quick"
    (mine / f"{FIRST}.yaml").write_text("width: 7")
    assert values(params=str(mine))[FIRST]["width"] == 7


def test_an_override_goes_before_a_file_and_a_file_before_the_default(repository):
    there = {"output_dir": "outputs/quick"}
    assert values(("rate", "1e-3"), ("at", "[2, 3]")) == {
        FIRST: {"width": 9, **there},
        SECOND: {"width": 9, "rate": 0.001, "at": [2, 3], **there},
    }
    assert values(("width", "10"), numbers=["01"]) == {FIRST: {"width": 10, **there}}
    (repository / f"params/quick/{FIRST}.yaml").unlink()
    assert values()[FIRST]["width"] == 8


@pytest.mark.parametrize(
    ("override", "part"),
    [
        (("widht", "1"), "-p widht: unknown parameter 'widht' (did you mean width?)"),
        (("width", "99"), "width: got '99'; allowed is a whole number, 1..64"),
        (("at", "[1,"), "at: got '[1,'; allowed is a list"),
    ],
)
def test_a_wrong_override_is_refused(repository, override, part):
    assert part in refused(values, override)


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
    assert f"{SECOND}.yaml: unknown parameter 'widht' (did you mean width?)" in refused(values)
    (repository / "params/quick" / name).write_text("")
    message = refused(values)
    assert f"{name} belongs to no notebook" in message and hint in message


def test_results_go_to_the_folder_of_the_set_or_where_parameters_say(repository, monkeypatch):
    def folder(*overrides):
        return discovery.request((), "quick", overrides).folder

    assert folder() == repository / "outputs/quick"
    monkeypatch.setenv("HOME", "/home/me")
    for named, where in (("x/y", repository / "x/y"), ("/elsewhere", "/elsewhere"), ("~/x", "/home/me/x")):
        assert folder(("output_dir", named)) == discovery.Path(where).resolve()
    assert "run gnnlab run --params quick first" in refused(discovery.results_of, "quick")
    (repository / f"params/quick/{FIRST}.yaml").write_text("output_dir: x/y")
    assert "different output_dir; one run has one folder" in refused(folder)
