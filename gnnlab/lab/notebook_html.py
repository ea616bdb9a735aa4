"""The cells of an executed notebook as HTML that loads nothing and runs nothing.

nbconvert walks the cells with the template `templates/cells`. Escaping is on there, so that a string is markup only
where a filter says so. Tables and Markdown arrive as HTML that may quote anything (a label from a user's graph file, an
error message): `clean` lets a short list of what our notebooks print pass, and shows the rest as text. HTML with a
`caption` in its metadata is source: folded under it, as the code of cells is.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat
from bleach.sanitizer import Cleaner
from bs4 import BeautifulSoup, Tag
from markupsafe import Markup, escape
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.ansi import ansi2html
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from traitlets.config import Config

from gnnlab.errors import GnnlabError
from gnnswap.errors import one_line

from .results import END, FigureRecord

TEMPLATES = Path(__file__).parent / "templates"
LONG_TEXT = 48  # characters of a table's cell from which on it gets the width of a sentence
_SHOWN = ["text/html", "text/markdown", "image/png", "text/plain"]
_DROPPED_TAGS = {"injected-parameters", "papermill-error-cell-tag", "remove-cell"}
_MARKDOWN = "text/markdown"
_CONCLUSION = "conclusion"  # a cell with whose first sentences the page opens
_SHOWN_ELSEWHERE = {"remove-output", "nbval-check-output"}  # environment, claims; what tests compare
_OPENING = re.compile(  # a title, a paragraph, and a table of what a run needs and writes
    r"^#[ \t]+(.+?)[ \t#]*$\n*((?:[^\n#|][^\n]*\n?)*)\n*(?:\|[^\n]*\n?)*", re.MULTILINE
)


@dataclass
class Cells:
    """The rendered cells of a notebook, the question below its title, what the cells tagged "conclusion" say first, and
    its headings of level 2 as (id, text)."""

    question: Markup
    conclusion: Markup
    html: Markup
    headings: list[tuple[str, str]]


def read(path: Path) -> nbformat.NotebookNode:
    """Read an executed notebook; `GnnlabError` says in one line what is wrong with the file."""
    try:
        notebook = nbformat.reads(Path(path).read_text(encoding="utf-8"), as_version=4)
        nbformat.validate(notebook)
    except FileNotFoundError:
        raise GnnlabError(f"no notebook {path}; run it again: gnnlab run {Path(path).name[:2]}") from None
    except Exception as error:  # nbformat raises many kinds
        raise GnnlabError(f"{path} is not a readable notebook ({one_line(error)[:100]}); run it again") from None
    return notebook


def opening(notebook: nbformat.NotebookNode) -> tuple[str | None, str]:
    """The title of a notebook, its first heading of level 1, and the paragraph below, its question."""
    heads = (_OPENING.search(cell.source) for cell in notebook.cells if cell.cell_type == "markdown")
    head = next(filter(None, heads), None)
    return (head[1], head[2].strip()) if head else (None, "")


def render(notebook: nbformat.NotebookNode, figures: Mapping[str, FigureRecord]) -> Cells:
    """The cells as HTML. `figures` are those of the result file, by name: they get links to their PNG and SVG."""
    headings: list[tuple[str, str, int]] = []

    def markdown(source: str) -> Markup:
        return clean(MarkdownWithMath(renderer=_Renderer(headings)).render(source))

    exporter = HTMLExporter(
        template_name="cells",
        extra_template_basedirs=[str(TEMPLATES)],
        filters={
            "clean": clean,
            "markdown": markdown,
            "code": lambda source: Markup(highlight(source, PythonLexer(), HtmlFormatter(nowrap=True))),
            "ansi": lambda text: Markup(ansi2html(text)),
        },
        config=Config({"NbConvertBase": {"display_data_priority": _SHOWN}}),
    )
    exporter.environment.autoescape = True
    try:
        prepared, conclusions = _prepared(notebook)
        question, conclusion = markdown(opening(notebook)[1]), markdown("\n\n".join(conclusions))
        html = exporter.from_notebook_node(prepared, resources={"figures": figures})[0]
    except Exception as error:  # whatever a filter raises where an output is not what its type says
        raise GnnlabError(f"a cell or an output of it cannot be shown: {one_line(error)}") from error
    return Cells(question, conclusion, Markup(html), [(anchor, text) for anchor, text, level in headings if level == 2])


def _prepared(notebook: nbformat.NotebookNode) -> tuple[nbformat.NotebookNode, list[str]]:
    """A copy without what is for who runs it, or shown elsewhere on the page (title, question, environment, claims,
    conclusions), and without the text above a cell of which nothing is left. Beside it the conclusions."""
    notebook = copy.deepcopy(notebook)
    notebook.metadata.pop("widgets", None)
    cells, titled, conclusions = [], False, []
    for cell in notebook.cells:
        tags, outputs = set(cell.metadata.get("tags", [])), cell.get("outputs", [])
        ends = any(output.get("metadata", {}).get(END) for output in outputs)  # what follows was not run
        if cell.cell_type == "markdown" and not titled:
            cell.source, titled = _OPENING.subn("", cell.source, count=1)
        if tags & _DROPPED_TAGS or not cell.source.strip():
            continue
        if tags & _SHOWN_ELSEWHERE:
            cell.outputs = []
        elif _CONCLUSION in tags and not ends:
            stated = [output for output in outputs if _MARKDOWN in output.get("data", {})][:1]
            conclusions += [output.data[_MARKDOWN] for output in stated]
            cell.outputs = [output for output in outputs if output not in stated]
        emptied = tags & {*_SHOWN_ELSEWHERE, _CONCLUSION} and not cell.outputs
        if emptied and cells and cells[-1].cell_type == "markdown":
            cells.pop()
            continue
        cells.append(cell)
        if ends:
            break
    notebook.cells = cells
    return notebook, conclusions


class _Renderer(IPythonRenderer):
    """Markdown with headings to link to and links to pages of the site; of a link to another file its path is shown."""

    def __init__(self, headings: list[tuple[str, str, int]]) -> None:
        super().__init__(escape=False, exclude_anchor_links=True)
        self.headings = headings

    def link(self, text: str, url: str, title: str | None = None) -> str:
        path, mark, anchor = url.partition("#")
        if re.match(r"[\w+.-]+:|[/#]", url):
            return super().link(text, url, title)
        if not re.fullmatch(r"\d\d_\w+\.ipynb", path):
            return f"{text} (<code>{escape(url.removeprefix('../'))}</code>)"
        page = path.removesuffix(".ipynb") + ".html"
        return super().link(text, f"{page}{mark}{'s-' * bool(anchor)}{anchor}", title)

    def heading(self, text: str, level: int, **attributes: Any) -> str:
        plain = Markup(text).striptags()
        anchor = "s-" + (re.sub(r"\W+", "-", plain.lower()).strip("-") or "section")
        while anchor in {known for known, _, _ in self.headings}:
            anchor += "-"
        self.headings.append((anchor, plain, level))
        return f'<h{level} id="{anchor}">{text}</h{level}>\n'


# ---- HTML from outside ----------------------------------------------------------------------------------------------

# no style, which would fight with light or dark; nothing that fetches, and nothing that leaves its place
_TAGS = """a abbr b blockquote br caption code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i kbd li mark ol p pre q
    s small span strong sub summary sup table tbody td tfoot th thead tr ul"""
_ATTRIBUTES = {"title", "colspan", "rowspan", "scope", "start", "open"}
_SCHEMES = {"", "http", "https", "mailto"}
_NUMBER = re.compile(r"[<>≈~]?\s*[-+−]?\d(?!.*[A-Za-z]{4})", re.DOTALL)  # with a unit; "3 REDUCE_SUM" is a name
_NO_NUMBER = {"", "-", "–", "inf", "failed", "unavailable", "timeout"}
_SHORT_CLASS = re.compile(r"[a-z]{1,2}[0-9]?|highlight")  # those of pygments


def _allowed(tag: str, name: str, value: str) -> bool:
    allowed = {
        "class": all(_SHORT_CLASS.fullmatch(word) for word in value.split()),
        "id": tag in {"h1", "h2", "h3", "h4"} and value.startswith("s-"),
        "href": tag == "a" and urlsplit(value.strip()).scheme in _SCHEMES,
    }
    return allowed.get(name, name in _ATTRIBUTES)


_CLEANER = Cleaner(tags=set(_TAGS.split()), attributes=_allowed, protocols=_SCHEMES - {""})


def _one_head(table: Tag) -> None:
    """Bring the name of an index, for which pandas begins a row of its own, into the row of the other names."""
    rows = [row.find_all(["th", "td"]) for row in table.select("thead tr")]
    pairs = list(zip(*rows, strict=False)) if len(rows) == 2 and not table.find(colspan=True) else []
    texts = [[cell.get_text(strip=True) for cell in pair] for pair in pairs]
    if pairs and all("" in text for text in texts):
        for (upper, _), text in zip(pairs, texts, strict=True):
            upper.string = "".join(text)
        rows[1][0].parent.decompose()


def _mark_cells(table: Tag) -> None:
    """Mark the columns of numbers, heads included, so that they stand to the right (pandas says nothing about them),
    and cells with a sentence. A head without a word is a plain cell, else it is announced as if it headed something.

    A cell may span rows only at the left, as those of an index do; so columns are counted from the right.
    """
    rows = [row.find_all(["th", "td"], recursive=False)[::-1] for row in table.find_all("tr")]
    for cells in zip(*rows, strict=False) if not table.find(colspan=True) else ():
        texts = [cell.get_text(strip=True) for cell in cells if cell.find_parent("thead") is None]
        if any(map(_NUMBER.match, texts)) and all(_NUMBER.match(text) or text in _NO_NUMBER for text in texts):
            for cell in cells:
                cell["class"] = "nu"
    for cell in table.find_all(["td", "th"]):
        length = len(cell.get_text(strip=True))
        if length > LONG_TEXT and cell.find_parent("thead") is None:
            cell["class"] = "lo"
        cell.name = cell.name if length else "td"


def clean(html: str) -> Markup:
    """Harmless markup of `html` kept, the rest shown as text; each table gets a box of its own to scroll in."""
    soup = BeautifulSoup(html, "html.parser")
    for style in soup.find_all("style"):  # the rules that pandas sends with each table: nothing to show
        style.decompose()
    for table in soup.find_all("table"):
        _one_head(table)
        _mark_cells(table)
    safe = _CLEANER.clean(str(soup))
    safe = re.sub(r"<table\b", '<div class="wide" role="group" aria-label="Table" tabindex="0"><table', safe)
    safe = re.sub(r"<pre\b", '<pre tabindex="0"', safe)
    return Markup(safe.replace("</table>", "</table></div>"))
