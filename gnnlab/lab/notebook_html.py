"""The cells of an executed notebook as HTML that loads nothing and runs nothing, by nbconvert.

Tables and Markdown may quote anything (a label from a user's graph file, an error message): nbconvert's sanitizer lets
the tags that they need pass and shows the rest as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from traitlets.config import Config

from gnnlab.errors import GnnlabError
from gnnswap.errors import one_line

from .results import END, FigureRecord

if TYPE_CHECKING:
    from nbconvert.exporters import HTMLExporter  # heavy

TEMPLATES = Path(__file__).parent / "templates"
DROPPED = {"injected-parameters", "papermill-error-cell-tag", "remove-cell"}  # tags of cells that are not shown
SHOWN_ELSEWHERE = {"remove-output", "nbval-check-output"}  # environment, claims; what tests compare
CONCLUSION = "conclusion"  # tag of a cell with whose sentences the page opens
TAGS = re.findall(
    r"\w+",
    """a abbr b blockquote br caption code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i kbd li mark ol p pre q s
    small span strong sub summary sup table tbody td tfoot th thead tr ul""",
)
ATTRIBUTES = {"href", "title", "colspan", "rowspan", "scope", "start", "open"}  # no style, which could cover the page


@dataclass
class Cells:
    """What a page shows of an executed notebook: its title, the question below that, and as HTML what the notebook
    concludes, all other cells (`article`), and their headings of level 2 with their ids."""

    title: str = ""
    question: str = ""
    conclusion: str = ""
    article: str = ""
    headings: list[tuple[str, str]] = field(default_factory=list)


def read(path: Path, figures: Iterable[FigureRecord], key: str = "", whole: bool = True) -> Cells:
    """The executed notebook at `path`, of a run that left `figures`; the one named `key` stands at the top of the page.
    Only title, question and conclusion unless it is wanted `whole`. Empty where there is no notebook, as after a run in
    JupyterLab or by papermill alone.

    Raises `GnnlabError` with a line that says what is wrong: the file, an output, or nbconvert's own templates.
    """
    place, cells = f"{path.parts[-3]}/{path.parts[-2]}", Cells()  # of the run, from the page
    try:
        notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
        nbformat.validate(notebook)
    except FileNotFoundError:
        return cells
    except Exception as error:  # nbformat raises many kinds
        raise GnnlabError(f"{path} is not a readable notebook ({one_line(error)[:100]}); run it again") from None
    head = next((cell for cell in notebook.cells if cell.cell_type == "markdown"), None)
    if head and (match := re.match(r"# +(.+)\n*((?:[^\n#|].*\n?)*)(?:\s*\|.*\n?)*", head.source)):
        cells.title, cells.question = match[1], match[2].replace("*", "").strip()
        head.source = head.source[match.end() :]
    shown = {figure.name: (figure.title, f"{place}/{figure.svg}", f"{place}/{figure.png}") for figure in figures}
    try:
        cells.conclusion = _clean(exporter().markdown2html({}, "\n\n".join(_keep_what_is_shown(notebook))))
        if not whole:
            return cells
        cells.article = exporter().from_notebook_node(notebook, resources={"figures": shown, "key": key})[0]
    except Exception as error:  # a filter raises on an output that is not what its type says, jinja without templates
        raise GnnlabError(f"{path} cannot be shown: {one_line(error)}; its numbers are in result.json") from error
    headings = re.findall(r'<h2 id="([^"]+)">(.*?)</h2>', cells.article)
    cells.headings = [(anchor, re.sub(r"<a class.*|<[^>]*>", "", text)) for anchor, text in headings]
    return cells


def _keep_what_is_shown(notebook: nbformat.NotebookNode) -> list[str]:
    """Leave out what is for who runs the notebook or stands elsewhere on the page, with the text above it; returns what
    the cells tagged "conclusion" say."""
    kept, conclusions = [], []
    for cell in notebook.cells:
        tags, outputs = set(cell.metadata.get("tags", [])), cell.get("outputs", [])
        if tags & DROPPED or not cell.source.strip():
            continue
        if tags & SHOWN_ELSEWHERE:
            cell.outputs = []
        if CONCLUSION in tags:
            said = [output for output in outputs if "text/markdown" in output.get("data", {})][:1]
            conclusions += [output.data["text/markdown"] for output in said]
            cell.outputs = [output for output in outputs if output not in said]
        if tags & {CONCLUSION, *SHOWN_ELSEWHERE} and not cell.outputs and kept and kept[-1].cell_type == "markdown":
            kept.pop()
            continue
        if cell.cell_type == "markdown":  # pages link to pages; what the site does not hold is named
            cell.source = re.sub(r"\]\((\d\d_\w+)\.ipynb", r"](\1.html", cell.source)
            cell.source = re.sub(r"\[([^]]+)\]\((?:\.\./)+\1\)", r"`\1`", cell.source)
            cell.source = re.sub(r"\[([^]]+)\]\((?:\.\./)+([^)]+)\)", r"\1 (`\2`)", cell.source)
        kept.append(cell)
        if any(output.get("metadata", {}).get(END) for output in outputs):  # what follows was not run
            break
    notebook.cells = kept
    return conclusions


# ---- nbconvert ------------------------------------------------------------------------------------------------------


@cache
def exporter() -> HTMLExporter:
    from nbconvert.exporters import HTMLExporter

    shown = ["text/html", "text/markdown", "image/png", "text/plain"]
    options = {"sanitize_html": True, "exclude_output_prompt": True, "exclude_input_prompt": True}
    return HTMLExporter(
        template_name="cells",
        extra_template_basedirs=[str(TEMPLATES)],
        filters={"clean_html": _clean},
        config=Config({"NbConvertBase": {"display_data_priority": shown}, "HTMLExporter": options}),
    )


def _allowed(tag: str, name: str, value: str) -> bool:
    """Ids of headings, classes of highlighted code and of anchors: no other looks, which could imitate the page's."""
    if name == "class":
        return all(len(word) < 3 or word in {"highlight", "anchor-link"} for word in value.split())
    return name in ATTRIBUTES or (name == "id" and tag in {"h1", "h2", "h3", "h4"})


def _clean(html: str) -> str:
    """Harmless markup of `html` kept, the rest as text; without pandas' style sheets and its empty table headers."""
    from nbconvert.preprocessors.sanitize import SanitizeHTML

    sanitizer = SanitizeHTML(tags=TAGS, attributes=_allowed)
    html = sanitizer.sanitize_html_tags(re.sub(r"(?s)<style.*?</style>", "", str(html)))
    return html.replace("<th></th>", "<td></td>")
