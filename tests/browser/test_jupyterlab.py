"""JupyterLab in a browser, on a copy of notebook 01, edited and run as a user does. Minutes: part of `make slow`."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest
from playwright.sync_api import expect
from test_notebooks import ROOT, SMALL

from gnnlab.lab import discovery, results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
LONG_MS = 900_000  # until the cells of 01 have run; how busy the machine is decides nothing
expect.set_options(timeout=LONG_MS)
FIRST = "01_profile_bottlenecks"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Notebooks and parameter sets apart from the repository's, 01 with small parameters in its own cell."""
    folder = tmp_path_factory.mktemp("repository")
    for name in ("notebooks", "params"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(".*"))
    path = folder / "notebooks" / f"{FIRST}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    values = discovery.read_parameters(ROOT / f"params/quick/{FIRST}.yaml", discovery.declared(path)) | SMALL["01"]
    del values["output_dir"]  # the notebook's own default
    cell = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    for name, value in values.items():
        cell.source = re.sub(rf"^({name}: [^=]+) = .+?(  #|$)", rf"\1 = {value!r}\2", cell.source, flags=re.MULTILINE)
    nbformat.write(notebook, path)
    return folder


@pytest.fixture(scope="module")
def address(folder):
    """JupyterLab on a free port of this host, without a token and without a user's settings."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {f"JUPYTER_{name}_DIR": str(folder / ".jupyter") for name in ("CONFIG", "DATA", "RUNTIME")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.port={port}"]
    command += ["--IdentityProvider.token=", f"--ServerApp.root_dir={folder}", "--ServerApp.ip=127.0.0.1"]
    command += ["--LabApp.news_url=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    environment = os.environ | own | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (folder / ".log").open("w") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    url, until = f"http://127.0.0.1:{port}/", time.monotonic() + 300
    try:
        while server.poll() is None and time.monotonic() < until:
            try:
                urllib.request.urlopen(f"{url}api", timeout=30).close()
                break
            except OSError:
                time.sleep(0.5)
        else:
            raise AssertionError(f"JupyterLab did not start: {(folder / '.log').read_text()[-2000:]}")
        yield url
    finally:
        server.terminate()
        server.wait(60)


@pytest.fixture
def page(browser, address):
    """Notebook 01 in a page of its own, its kernel ready."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(300_000)
    page.goto(f"{address}lab/workspaces/{time.monotonic_ns()}/tree/notebooks/{FIRST}.ipynb")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    idle(page)
    yield page
    page.context.close()


def idle(page):
    """Wait until the status bar says that the kernel is there and has nothing to do."""
    page.get_by_role("button", name=re.compile(r"Python 3.*\| Idle$")).first.wait_for(timeout=LONG_MS)


def menu(page, *names):
    """Choose from the menu bar as a user does, and agree where it asks."""
    page.get_by_role("menuitem", name=names[0], exact=True).first.click()
    for name in names[1:]:
        page.locator(".lm-Menu-item", has=page.locator(".lm-Menu-itemLabel", has_text=name)).first.click()
    if "Restart" in names[-1]:
        page.locator(".jp-Dialog .jp-mod-accept").click()


def test_a_bad_parameter_stops_the_first_cell_and_with_a_good_one_01_runs_to_its_end(page, folder):
    for value in (0, 8):
        cell = page.locator(".jp-Notebook .jp-CodeCell").first.locator(".cm-content")
        text = re.sub(r"(?m)^hidden_dim: int = \d+", f"hidden_dim: int = {value}", cell.inner_text())
        cell.click()
        page.keyboard.press("Control+a")
        page.keyboard.insert_text(text)
        menu(page, "Kernel", "Restart Kernel and Run All Cells")
        if value == 0:
            error = page.locator(".jp-OutputArea-output", has_text="GnnlabError").first
            expect(error).to_contain_text("hidden_dim")
            idle(page)
    until = time.monotonic() + LONG_MS / 1000
    while not results.paths(folder / discovery.LAB) and time.monotonic() < until:
        time.sleep(1)
    (path,) = results.paths(folder / discovery.LAB)
    result = results.read(path)
    assert results.paths(folder / discovery.QUICK) == []  # a parameter set's results are left alone
    assert result.status == "passed" and result.rows and result.parameters["hidden_dim"] == 8
    idle(page)
    assert page.locator(".jp-OutputArea-output", has_text="Traceback").count() == 0


def test_a_restart_in_the_middle_keeps_the_earlier_result(page, folder):
    earlier = results.paths(folder / discovery.LAB)
    menu(page, "Run", "Run All Cells")
    page.locator(".jp-Notebook img").first.wait_for(timeout=LONG_MS)  # the first figure: some cells have run
    menu(page, "Kernel", "Restart Kernel…")
    idle(page)
    assert results.paths(folder / discovery.LAB) == earlier != []
