"""What there is to run, in which order, and with which parameters."""

import pytest
import small_notebooks
from refusals import refusal as refused

from gnnlab.lab import discovery

CELL = "width: int = 8  # channels; 1..64\noutput_dir: str = 'outputs/quick'  # where results go"


@pytest.fixture
def repository(tmp_path):
    for folder in ("notebooks", "params/quick", "params/full"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def notebook(repository, name, source=CELL, **about):
    return small_notebooks.write(repository / "notebooks" / f"{name}.ipynb", source, **about)


# ---- notebooks


def test_the_repository_is_found_from_a_folder_in_it(repository, monkeypatch):
    monkeypatch.chdir(repository / "params/quick")
    assert discovery.root() == repository


def test_notebooks_have_numbers_needs_and_a_time_limit(repository):
    notebook(repository, "01_first")
    notebook(repository, "02_second", needs=["01"], timeout_minutes=10)
    notebook(repository, "scratch")
    found = discovery.notebooks(repository)
    assert list(found) == ["01", "02"]
    assert (found["02"].name, found["02"].needs, found["02"].timeout_minutes) == ("02_second", ("01",), 10.0)
    assert (found["01"].needs, found["01"].timeout_minutes) == ((), discovery.TIMEOUT_MINUTES)


def test_notebooks_are_chosen_by_number_name_or_path_and_keep_their_order(repository):
    for name in ("01_a", "02_b", "03_c"):
        notebook(repository, name)
    found = discovery.notebooks(repository)
    for word in ("01", "1", "01_a", "notebooks/01_a.ipynb"):
        assert [chosen.number for chosen in discovery.select(found, ["3", word, "01"])] == ["01", "03"]
    assert len(discovery.select(found, [])) == 3
    assert "there is no notebook '4'; there are: 01_a, 02_b, 03_c" in refused(discovery.select, found, ["4"])
    assert "no notebooks" in refused(discovery.select, {}, [])


@pytest.mark.parametrize(
    ("name", "needs", "part"),
    [
        ("01_a", ["07"], "01_a needs 07, and there is no such notebook before it"),
        ("01_a", ["02"], "01_a needs 02, and there"),
        ("02_z", [], "02_z.ipynb and 02_b.ipynb have the same number"),
    ],
)
def test_needs_that_cannot_be_met_and_a_number_twice_are_refused(repository, name, needs, part):
    notebook(repository, "02_b")
    notebook(repository, name, needs=needs)
    assert part in refused(discovery.notebooks, repository)


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"metadata": {"gnnlab": {"needs": 4}}}',
        '{"metadata": {"gnnlab": {"timeout_minutes": "long"}}}',
        '{"metadata": {"gnnlab": {"timeout_minutes": NaN}}}',
    ],
)
def test_a_damaged_notebook_is_named(repository, content):
    (repository / "notebooks/01_first.ipynb").write_text(content)
    assert "01_first.ipynb" in refused(discovery.notebooks, repository)


# ---- parameter sets


def test_a_parameter_set_is_a_name_or_a_folder(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mine")
    assert "holds no parameter file" in refused(discovery.parameter_set, str(folder), repository)
    (folder / "01_first.yaml").write_text("width: 8")
    assert discovery.parameter_set("full", repository) == repository / "params/full"
    assert discovery.parameter_set(str(folder), repository) == folder
    for name in ("ful", ""):
        message = refused(discovery.parameter_set, name, repository)
        assert message == f"there is no parameter set or folder {name!r}; sets are full, quick"


@pytest.fixture
def every(repository):
    notebook(repository, "01_first")
    notebook(repository, "02_second", CELL + "\nrate: float = 0.1  # learning rate")
    return discovery.notebooks(repository)


@pytest.fixture
def quick(repository):
    for name in ("01_first", "02_second"):
        (repository / f"params/quick/{name}.yaml").write_text("width: '9'")
    return discovery.parameter_set("quick", repository)


def read(every, folder, overrides=(), numbers=()):
    return discovery.read_parameters(every, discovery.select(every, numbers), folder, overrides)


def test_given_parameters_are_understood_an_override_first_and_defaults_are_left_to_the_notebook(every, quick):
    assert read(every, quick, [("rate", "1e-3")]) == {
        "01_first": {"width": 9},
        "02_second": {"width": 9, "rate": 0.001},
    }
    assert read(every, quick, [("width", "10")], ["01"]) == {"01_first": {"width": 10}}  # goes before the file
    every["01"].parameters_in(quick).unlink()
    assert read(every, quick)["01_first"] is None


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        ([("widht", "1")], "-p widht: unknown parameter 'widht' (did you mean width?)"),
        ([("width", "1"), ("width", "2")], "-p width is given twice"),
        ([("width", "99")], "width: got 99; allowed is a whole number from 1 to 64"),
        ([("rate", "fast")], "rate: got 'fast'"),
    ],
)
def test_a_wrong_override_is_refused(every, quick, overrides, part):
    assert part in refused(read, every, quick, overrides)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("01_frist.yaml", "did you mean 01_first.yaml?"), ("02_second.yml", "02_second.yaml"), ("x.yaml", "")],
)
def test_a_file_that_is_wrong_or_belongs_to_no_notebook_is_refused(every, quick, name, hint):
    every["02"].parameters_in(quick).write_text("widht: 5")
    message = refused(read, every, quick)
    assert "02_second.yaml: unknown parameter 'widht' (did you mean width?)" in message
    (quick / name).write_text("")
    message = refused(read, every, quick)
    assert f"{name} belongs to no notebook" in message and hint in message


# ---- where results go


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ([{"width": 1}], "outputs/quick"),
        ([{"output_dir": "x/y"}] * 2, "x/y"),
        ([{"output_dir": "/elsewhere"}], "/elsewhere"),
    ],
)
def test_results_go_to_the_folder_of_the_set_or_where_parameters_say(repository, quick, given, folder):
    assert discovery.output_folder(quick, given, repository) == repository / folder


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ([{"output_dir": "a"}, {"output_dir": "b"}], "different output_dir"),
        ([{"output_dir": "a"}, {}], "different output_dir"),
        ([{"output_dir": ""}], "holds the repository"),
        ([{"output_dir": "params/quick/01_first.yaml"}], "is a file"),
    ],
)
def test_a_folder_that_results_cannot_go_to_is_refused(repository, quick, given, part):
    assert part in refused(discovery.output_folder, quick, given, repository)
