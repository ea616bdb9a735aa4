"""HTML from outside with what is harmless kept and everything else shown as text.

Tables and Markdown of a notebook arrive as HTML that may quote anything: a label from a user's graph file, an error
message. Escaping all of it would lose the tables, and trusting it would let such a string write the page. So a short
list of what our notebooks print passes (text, tables, links, embedded images, a few styles); a `<script>` becomes text.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from bleach.css_sanitizer import CSSSanitizer
from bleach.sanitizer import Cleaner
from bs4 import BeautifulSoup, Tag
from markupsafe import Markup

_TAGS = """a abbr b blockquote br caption code col colgroup dd del details div dl dt em figcaption figure h1 h2 h3 h4 h5
    h6 hr i img ins kbd li mark ol p pre q s samp small span strong sub summary sup table tbody td tfoot th thead tr ul
    var"""
# No colour: it would fight with light or dark. Nothing that fetches, and nothing that leaves its place.
_STYLES = """border border-bottom border-collapse border-left border-radius border-right border-spacing border-top
    display flex-wrap font-family font-size font-style font-variant-numeric font-weight gap grid-template-columns
    line-height margin margin-bottom margin-left margin-right margin-top max-width min-width opacity overflow-x padding
    padding-bottom padding-left padding-right padding-top text-align text-decoration vertical-align white-space width"""
_ATTRIBUTES = {"style", "title", "alt", "colspan", "rowspan", "scope", "start", "open", "width", "height"}
_SCHEMES = {"", "http", "https", "mailto"}
_EMBEDDED = re.compile(r"data:image/(png|jpeg|gif|webp|svg\+xml);base64,[A-Za-z0-9+/=\s]+")
_NUMBER = re.compile(r"[<>≈~]?\s*[-+−]?\d")
_SHORT_CLASS = re.compile(r"[a-z]{1,2}[0-9]?|highlight|math")  # those of pygments, and our own of a formula


class _Styles(CSSSanitizer):
    """Keeps the listed properties, and nothing at all of a style that could fetch or hide."""

    def sanitize_css(self, style: str) -> str:
        return "" if re.search(r"url|[\\@<]|expression|image", style, re.IGNORECASE) else super().sanitize_css(style)


def _allowed(tag: str, name: str, value: str) -> bool:
    if name == "class":
        return all(_SHORT_CLASS.fullmatch(word) for word in value.split())
    if name == "id":
        return tag in {"h1", "h2", "h3", "h4"} and value.startswith("s-")
    if name == "href":
        return tag == "a" and urlsplit(value.strip()).scheme in _SCHEMES
    if name == "src":
        return tag == "img" and bool(_EMBEDDED.fullmatch(value))
    return name in _ATTRIBUTES


_CLEANER = Cleaner(
    tags=set(_TAGS.split()),
    attributes=_allowed,
    protocols={"http", "https", "mailto", "data"},
    css_sanitizer=_Styles(allowed_css_properties=_STYLES.split()),
)


def _align_numbers(table: Tag) -> None:
    """Mark the columns of numbers, heads included, so that they stand to the right: pandas says nothing about them."""
    rows = [row.find_all(["th", "td"], recursive=False) for row in table.find_all("tr")]
    for cells in zip(*rows, strict=False) if len({len(cells) for cells in rows}) == 1 else ():
        texts = [cell.get_text(strip=True) for cell in cells if cell.find_parent("thead") is None]
        if any(texts) and all(_NUMBER.match(text) or text in {"", "NaN", "None", "-", "–"} for text in texts):
            for cell in cells:
                cell["class"] = "nu"


def clean(html: str) -> Markup:
    """Harmless markup of `html` kept, the rest shown as text; each table gets a box of its own to scroll in."""
    soup = BeautifulSoup(html, "html.parser")
    for style in soup.find_all("style"):  # the rules that pandas sends with each table: nothing to show
        style.decompose()
    for image in soup.find_all("img"):
        if not _EMBEDDED.fullmatch(image.get("src") or ""):
            image.replace_with(str(image))
    for table in soup.find_all("table"):
        _align_numbers(table)
    safe = _CLEANER.clean(str(soup))
    safe = re.sub(r"<table\b", '<div class="wide" tabindex="0"><table', safe)
    return Markup(safe.replace("</table>", "</table></div>"))
