"""Every notebook, run with small parameters, as a report in a browser. Minutes: part of `make slow`."""

import subprocess
import sys

import pytest
import yaml
from reading import VIEWS, faults
from test_notebooks import NOTEBOOKS, ROOT, SMALL

from gnnlab.lab import discovery

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site of a run of all notebooks."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "small").mkdir()
    for notebook in NOTEBOOKS:
        values = discovery.read_parameters(ROOT / f"params/quick/{notebook.stem}.yaml", discovery.declared(notebook))
        values |= SMALL.get(notebook.stem[:2], {}) | {"output_dir": str(folder / "out")}
        (folder / "small" / f"{notebook.stem}.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    command = [sys.executable, "-m", "gnnlab", "run", "--params", str(folder / "small")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder / "out"


@pytest.mark.parametrize("name", ["index", *(path.stem for path in NOTEBOOKS)])
def test_nothing_of_a_report_is_cut_empty_or_raw_and_axe_finds_nothing(site, opened, name):
    faulty = {view: lines for view in VIEWS if (lines := faults(opened(site / f"{name}.html", *view)))}
    assert faulty == {}
    page = opened(site / f"{name}.html")
    empty = page.locator("article h2").evaluate_all(
        """heads => heads.filter((head) => {
             const [text, next] = [head.closest(".cell"), head.closest(".cell").nextElementSibling];
             return text.innerText.trim() === head.innerText.trim() && (!next || next.querySelector("h2"));
           }).map((head) => head.textContent)"""
    )
    cells = page.locator("article .output_html td").all_text_contents()
    assert empty == [] and not {"NaN", "nan", "None"} & {text.strip() for text in cells}
    assert (
        page.locator("article .output_stderr").count() == 0 and sys.prefix not in page.locator("article").inner_text()
    )
