"""The architecture holds (docs/architecture.md): who imports whom, what is declared, what notebooks may hold."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGE, SWAP = ROOT / "gnnlab", ROOT / "gnnswap"
SWAP_NEEDS = ("torch", "torch-geometric", "numpy", "scipy", "numba")
SHARED = {"workloads", "measure", "profile"}
ALLOWED = {
    "workloads": {"workloads"},
    "measure": {"measure"},
    "profile": {"profile", "measure"},
    "training": {"training", *SHARED},
    "stages": {"stages", *SHARED},
    "bandwidth": {"bandwidth", "stages", *SHARED},
    "plans": {"plans", "bandwidth", "stages", *SHARED},
    "inference": {"inference", *SHARED},
    "serving": {"serving", "inference", *SHARED},
    "optimize": {"optimize", *SHARED},
    "lab": {"lab", "measure", "profile"},
}
TOP = {
    "__version__",
    "child",
    "errors",
    "files",
    "openvino_core",
    "machine",
    "user_code",
}  # which everyone may import
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))


def imports(path):
    """Absolute names of the modules that a file imports, relative ones resolved."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join(base + ([node.module] if node.module else []))
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_the_architecture_allows(package):
    for path in (PACKAGE / package).rglob("*.py"):
        for name in imports(path):
            if name.startswith("gnnlab."):
                assert name.split(".")[1] in ALLOWED[package] | TOP, f"{path.relative_to(ROOT)} imports {name}"


def test_gnnswap_imports_what_a_stranger_has_and_nothing_of_gnnlab():
    allowed = {"gnnswap", "__future__", *(name.replace("-", "_") for name in SWAP_NEEDS)} | sys.stdlib_module_names
    gpu = {"triton_kernels.py": "triton", "triton_passes.py": "triton"}  # which are loaded on a CUDA device alone
    found = {(path.name, name) for path in SWAP.rglob("*.py") for name in imports(path)}
    found = {(file, name) for file, name in found if gpu.get(file) != name.split(".")[0]}
    assert not [pair for pair in found if pair[1].split(".")[0] not in allowed]


SWAPS = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # importing one of these raises
import torch
from torch_geometric.nn import GCNConv
from gnnswap import swap
x, edge_index = torch.eye(4), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
model = GCNConv(4, 2)
report = swap(model, (x, edge_index), measure=False)
assert report.replaced, report
torch.testing.assert_close(report.model(x, edge_index), model(x, edge_index))
"""


def test_gnnswap_runs_where_only_its_own_requirements_are_installed():
    there = with_requirements(SWAP_NEEDS)
    missing = [name for name, owners in packages_distributions().items() if not {*map(normal, owners)} & there]
    missing = [name for name in missing if not name.startswith("_") and name not in ("gnnswap", "google")]
    assert {"pydantic", "pandas", "sklearn", "yaml", "rich", "openvino"} <= {*missing}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SWAPS, "gnnlab", *missing], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def with_requirements(names):
    """These distributions and all that they ask for, extras apart."""
    found, todo = set(), list(names)
    while todo:
        name = normal(todo.pop())
        try:
            asked = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        if name not in found:
            found.add(name)
            wanted = map(Requirement, asked)
            todo += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def requirements(*without):
    """Every requirement of the project, those of its extras too, but for the extras `without`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [each for name, each in project["optional-dependencies"].items() if name not in without]
    return [text for each in (project["dependencies"], *extras) for text in each if not text.startswith("gnnlab[")]


def test_every_imported_package_is_declared():
    declared = {normal(Requirement(text).name) for text in requirements("test")}
    owners = packages_distributions()
    ours = {"gnnlab", "gnnswap", "__future__"} | sys.stdlib_module_names
    for path in (*PACKAGE.rglob("*.py"), *SWAP.rglob("*.py")):
        for name in {n.split(".")[0] for n in imports(path)} - ours:
            assert {*map(normal, owners.get(name, [name]))} & declared, (
                f"{path.relative_to(ROOT)} imports {name}, which pyproject.toml lacks"
            )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_holds_what_is_compared_and_no_machinery(path):
    cells = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
    assert len(cells) <= 14
    for source in ("".join(cell["source"]) for cell in cells if "parameters" not in cell["metadata"].get("tags", [])):
        assert len([line for line in source.splitlines() if line.strip()]) <= 20, source
        for node in ast.walk(ast.parse(source)):
            assert not isinstance(node, (ast.ClassDef, ast.While)), ast.unparse(node)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_parameter_set_of_a_notebook_passes_its_own_check(path):
    from gnnlab.lab import discovery

    declared = discovery.declared(path)
    sets = list(ROOT.glob(f"params/*/{path.stem}.yaml"))
    assert ROOT / "params" / "quick" / f"{path.stem}.yaml" in sets
    for file in sets:
        values = discovery.read_parameters(file, declared)
        assert values["output_dir"] == f"outputs/{file.parent.name}", file
    assert declared["output_dir"].default == discovery.LAB


def test_conda_and_pip_install_the_same():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    pip = next(d["pip"] for d in conda if isinstance(d, dict))
    assert "--constraint constraints.txt" in pip and "--editable .[test]" in pip
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"python{project['requires-python']}" in conda


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned():
    """Version by name, of the lines of constraints.txt that are for this Python and this system, or for another one."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pins.sort(key=lambda pin: pin.marker is None or pin.marker.evaluate())  # what is meant for here comes last
    return {normal(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


def test_every_installed_package_has_the_version_that_constraints_pin():
    """Follows the requirements of gnnlab[test] as installed here; a package missing from constraints.txt fails too."""
    pins, seen, todo = pinned(), set(), [("gnnlab", "test")]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        installed = distribution(name)
        if (key := normal(name)) not in ("gnnlab", "pip"):  # an environment has its own pip, which pip-audit asks for
            assert installed.version.split("+")[0] == pins.get(key), (
                f"{name} {installed.version}, pinned {pins.get(key)}"
            )
        for text in installed.requires or []:
            requirement = Requirement(text)
            if name == "torch" and "platform_system" in str(requirement.marker):
                continue  # its build for CUDA names the libraries that it was made with
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                todo += [(requirement.name, ""), *((requirement.name, e) for e in requirement.extras)]
    for requirement in map(Requirement, requirements()):
        assert requirement.specifier.contains(pins[normal(requirement.name)]), f"{requirement}: pinned out of its range"


def test_no_pickle_is_ever_loaded_and_only_one_place_makes_an_openvino_core():
    cores = []
    for path in (*PACKAGE.rglob("*.py"), *SWAP.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"pickle\.loads?\(|allow_pickle=True|weights_only=False", text), path
        cores += [path.name] * bool(re.search(r"\bCore\(\)", text))
    assert cores == ["openvino_core.py"]


def test_test_files_have_names_of_their_own():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)  # pytest imports them by name
