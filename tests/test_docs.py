"""What the pages name is there: files, anchors, modules and their names, commands and options."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import torch
from torch_geometric.nn import MessagePassing

from gnnlab import cli
from gnnlab.lab import discovery
from gnnswap import swap

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/decisions/*.md")])
PAGES.append(ROOT / "docs" / "reference-runs" / "README.md")
OF_READERS = {"my_models.py", "params/quick/NN_name.yaml"}
FENCED = re.compile(r"```.*?```", re.S)


def anchors(text):
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def defined(path):
    """Functions, classes, methods and constants of a module."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)]+)\)", FENCED.sub("", page.read_text("utf-8"))):
        if not link.startswith("http"):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target.read_text("utf-8")), link


def test_modules_and_names_of_the_pages_are_there():
    for page in PAGES:
        found = re.findall(r"`((?:\w+/)*\w+\.(?:py|yaml))(?:: (\w+))?`", page.read_text("utf-8"))
        for name, symbol in found:
            paths = [
                *ROOT.glob(name),
                *ROOT.glob(f"gnn*/**/{name}"),
                *ROOT.glob(f"examples/{name}"),
                *ROOT.glob(f"tests/**/{name}"),
            ]
            assert paths or name in OF_READERS, f"{page.name}: {name}"
            assert not symbol or symbol in {*defined(paths[0])}, f"{page.name}: {name}: {symbol}"


def test_the_tree_of_the_architecture_has_every_package_and_module_of_gnnswap():
    tree = (ROOT / "docs" / "architecture.md").read_text("utf-8").split("```")[1]
    there = {path.name for path in (ROOT / "gnnlab").iterdir() if path.is_dir() and not path.name.startswith("_")}
    there |= {path.stem for path in (ROOT / "gnnswap").glob("*.py") if not path.name.startswith("_")}
    assert not there - set(re.findall(r"\w+", tree))
    modules = re.findall(r"^  (\w+(?:  ?\w+)*?)   ", tree.split("gnnswap/")[1].split("gnnlab/")[0], re.M)
    assert {name for line in modules for name in line.split()} <= there


def test_command_lines_of_the_pages_are_understood(monkeypatch):
    monkeypatch.chdir(ROOT)
    lines = [
        line.split("  #")[0].strip()
        for page in PAGES
        for block in FENCED.findall(page.read_text("utf-8"))
        for line in block.splitlines()
        if line.startswith("gnnlab ")
    ]
    assert len(lines) > 20
    for line in lines:
        line = line.replace(" my_claim.py", " examples/claims/expand.py")  # a file that is there
        given = cli._parser().parse_args(shlex.split(re.split(r" [<>] ", line)[0])[1:])
        if overrides := getattr(given, "overrides", None):
            known = {name for path in discovery.notebooks(ROOT, given.notebooks) for name in discovery.declared(path)}
            assert {name for name, _ in overrides} <= known, line


@pytest.mark.parametrize("page", PAGES[:-1], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_is_longer_than_140_lines(page):
    assert len(page.read_text("utf-8").splitlines()) <= 140


class Layer(MessagePassing):
    """The sum of x_j over neighbours."""

    def __init__(self, **options):
        super().__init__(aggr="add", node_dim=0, **options)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)


class Relu(Layer):
    def message(self, x_j):
        return x_j.relu()


class ReluBefore(Layer):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x.relu())


class Heads(Layer):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x.view(-1, 2, 3), a=x.view(-1, 2, 3).sum(-1)).flatten(1)

    def message(self, x_j, a_i, a_j):
        return torch.einsum("eh,ehc->ehc", (a_i + a_j).tanh(), x_j)


class HeadsByProduct(Heads):
    def message(self, x_j, a_i, a_j):
        return (a_i + a_j).tanh().unsqueeze(-1) * x_j


class Backwards(Layer):
    def __init__(self):
        super().__init__(flow="target_to_source")


class Flipped(Layer):
    def forward(self, x, edge_index):
        return self.propagate(edge_index.flip(0), x=x)


@pytest.mark.parametrize(("kept", "instead"), [(Relu, ReluBefore), (Heads, HeadsByProduct), (Backwards, Flipped)])
def test_what_the_page_says_to_write_instead_computes_the_same_and_is_replaced(kept, instead):
    torch.manual_seed(0)
    x, edge_index = torch.randn(20, 6), torch.randint(20, (2, 60))
    before, after = kept().eval(), instead().eval()
    torch.testing.assert_close(after(x, edge_index), before(x, edge_index))
    assert not swap(before, (x, edge_index), measure=False).replaced
    assert swap(after, (x, edge_index), measure=False).replaced
