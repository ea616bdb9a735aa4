"""JupyterLab in a browser, on a copy of the notebooks: each opens, 01 runs to its end. Minutes: part of `make slow`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, Page, expect
from test_notebooks import NOTEBOOKS, ROOT, SMALL

from gnnlab.lab import discovery, parameters, results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
LONG_MS = 900_000  # until the cells of 01 have run
expect.set_options(timeout=300_000)  # how busy the machine is decides nothing
FIRST = "01_profile_bottlenecks"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Notebooks and parameter sets apart from the repository's, 01 with small parameters in its own cell."""
    folder = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".*"))
    shutil.copytree(ROOT / "params", folder / "params")
    path = folder / "notebooks" / f"{FIRST}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    values = parameters.load_yaml(ROOT / "params" / "quick" / f"{FIRST}.yaml") | SMALL["01"]
    del values["output_dir"]  # the notebook's own default
    cell = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    for name, value in values.items():
        cell.source = re.sub(rf"^({name}: [^=]+) = .+?(  #|$)", rf"\1 = {value!r}\2", cell.source, flags=re.MULTILINE)
    nbformat.write(notebook, path)
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """JupyterLab on a free port of this host, without a token and without its settings of a user."""
    own = folder / ".jupyter"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JUPYTER_CONFIG_DIR": str(own), "JUPYTER_DATA_DIR": str(own)}
    environment |= {"JUPYTERLAB_SETTINGS_DIR": str(own), "JUPYTERLAB_WORKSPACES_DIR": str(own), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.port=0"]
    command += ["--IdentityProvider.token=", f"--ServerApp.root_dir={folder}", "--ServerApp.ip=127.0.0.1"]
    command += ["--LabApp.news_url=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    runtime = folder / ".runtime"
    environment["JUPYTER_RUNTIME_DIR"] = str(runtime)
    with (folder / ".log").open("w") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield _started(server, runtime, folder / ".log")
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:  # a kernel that is still starting; it ends with its parent
            server.kill()


def _started(server: subprocess.Popen, runtime: Path, log: Path) -> str:
    """The address that the server wrote down, once it answers there."""
    until = time.monotonic() + 300
    while time.monotonic() < until and server.poll() is None:
        for file in runtime.glob("jpserver-*.json"):
            try:
                url = json.loads(file.read_text(encoding="utf-8"))["url"]
                urllib.request.urlopen(f"{url}api", timeout=30).close()
            except (OSError, ValueError):
                continue
            return url
        time.sleep(0.5)
    raise AssertionError(f"JupyterLab did not start: {log.read_text()[-2000:]}")


def open_notebook(browser: Browser, address: str, name: str) -> Page:
    """The notebook in a page of its own, its kernel ready."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(300_000)
    page.goto(f"{address}lab/workspaces/{name}-{time.monotonic_ns()}/tree/notebooks/{name}.ipynb")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    idle(page)
    return page


def idle(page: Page) -> None:
    """Wait until the status bar says that the kernel is there and has nothing to do."""
    page.get_by_role("button", name=re.compile(r"Python 3.*\| Idle$")).first.wait_for(timeout=LONG_MS)


def menu(page: Page, *names: str) -> None:
    """Choose from the menu bar as a user does."""
    page.get_by_role("menuitem", name=names[0], exact=True).first.click()
    for name in names[1:]:
        page.locator(".lm-Menu-item", has=page.locator(".lm-Menu-itemLabel", has_text=name)).first.click()


def run_all(page: Page) -> None:
    menu(page, "Run", "Run All Cells")


def written(folder: Path, after: float) -> results.ResultFile:
    """The result that cells run by hand leave, once it is newer than `after` (seconds since the epoch)."""
    until = time.monotonic() + LONG_MS / 1000
    while time.monotonic() < until:
        path = results.newest(folder / discovery.LAB, FIRST)[0]
        if path and path.stat().st_mtime > after:
            return results.read(path)
        time.sleep(1)
    raise AssertionError(f"no new run of {FIRST}")


@pytest.mark.parametrize("name", [path.stem for path in NOTEBOOKS])
def test_each_notebook_opens_with_its_title_and_its_parameters(browser: Browser, address: str, name: str) -> None:
    page = open_notebook(browser, address, name)
    expect(page.locator(".jp-Notebook h1").first).to_contain_text(name[:2])
    expect(page.locator(".jp-Notebook .jp-CodeCell").first).to_contain_text("output_dir")
    page.context.close()


def test_01_runs_to_its_end_and_leaves_the_results_of_runs_alone(browser: Browser, address: str, folder: Path) -> None:
    page, before = open_notebook(browser, address, FIRST), time.time()
    run_all(page)
    result = written(folder, before)
    idle(page)
    assert result.status == "passed" and result.rows and result.parameters["graphs"] == SMALL["01"]["graphs"]
    assert page.locator(".jp-OutputArea-output", has_text="Traceback").count() == 0
    assert results.paths(folder / "outputs" / "quick") == []
    page.context.close()


def test_a_changed_parameter_is_used_and_a_bad_one_stops_the_first_cell(
    browser: Browser, address: str, folder: Path
) -> None:
    page = open_notebook(browser, address, FIRST)
    for value, message in (("batch_size: int = 0", "batch_size"), ("batch_size: int = 8", "")):
        cell = page.locator(".jp-Notebook .jp-CodeCell").first.locator(".cm-content")
        text = cell.inner_text()
        line = next(line for line in text.splitlines() if line.startswith("batch_size"))
        cell.click()
        page.keyboard.press("Control+a")
        page.keyboard.insert_text(text.replace(line, f"{value}  # rows asked of a model that has a batch; 1..65536"))
        before = time.time()
        menu(page, "Kernel", "Restart Kernel and Run All Cells")
        page.locator(".jp-Dialog .jp-mod-accept").click()
        if message:
            error = page.locator(".jp-OutputArea-output", has_text="GnnlabError").first
            expect(error).to_contain_text(message, timeout=LONG_MS)
            idle(page)
        else:
            assert written(folder, before).parameters["batch_size"] == 8
    page.context.close()


def test_a_restart_in_the_middle_keeps_the_earlier_result_and_the_next_run_ends(
    browser: Browser, address: str, folder: Path
) -> None:
    earlier = results.paths(folder / discovery.LAB)
    page = open_notebook(browser, address, FIRST)
    run_all(page)
    page.locator(".jp-Notebook img").first.wait_for(timeout=LONG_MS)  # the first figure: some cells have run
    menu(page, "Kernel", "Restart Kernel…")
    page.locator(".jp-Dialog .jp-mod-accept").click()
    idle(page)
    assert results.paths(folder / discovery.LAB) == earlier
    before = time.time()
    run_all(page)
    assert written(folder, before).status == "passed"
    idle(page)
    page.context.close()
