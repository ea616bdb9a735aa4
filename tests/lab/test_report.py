"""The site: everything is rendered, nothing is fetched, no string from a result becomes markup, damage stays local."""

import base64
import hashlib
import os
import re
from html.parser import HTMLParser

import pandas as pd
import pytest
import small_site
from bs4 import BeautifulSoup
from nbformat import v4
from small_site import ENVIRONMENT, HOSTILE, result

from gnnlab.errors import GnnlabError
from gnnlab.lab import claims, notebook_html, report, results
from gnnlab.lab.notebook_html import clean


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An output folder: 01 passed, 02 passed once and then failed, 03 damaged, 04 skipped without a notebook file."""
    folder = tmp_path_factory.mktemp("outputs") / "quick"
    small_site.write(folder)
    return folder


def read(folder, name):
    return (folder / name).read_text(encoding="utf-8")


def tags(html):
    """Every tag of a page with its attributes, as a browser would see them."""
    seen: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: seen.append((tag, dict(attributes)))
    parser.feed(html)
    return seen


PAGES = ["index.html", "01_profile_bottlenecks.html", "02_optimize_gnn.html"]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_loads_nothing_runs_its_own_script_only_and_shows_hostile_strings_as_text(finished, page):
    html = read(finished, page)
    for tag, attributes in tags(html):
        assert tag not in {"link", "iframe", "object", "embed", "base", "audio", "video"}
        source = attributes.get("src") or ""
        assert source.startswith("data:image/") if tag == "img" else not source
        assert tag in {"a", "use"} or "href" not in attributes
        assert not [name for name in attributes if name.startswith("on") or name == "srcset"]
    assert "url(" not in html.replace("url(s", "") and "@import" not in html
    assert "alert(" in html and "javascript:" not in html  # it was there to be escaped
    script = (report.TEMPLATES / "page.js").read_text(encoding="utf-8")
    assert re.findall(r"<script>(.*?)</script>", html, re.DOTALL) == [script]
    assert [tag for tag, _ in tags(html)].count("script") == html.count("</style>") == 1
    policy = next(a["content"] for t, a in tags(html) if t == "meta" and a.get("http-equiv"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert {f"script-src 'sha256-{digest}'", "default-src 'none'", "img-src data: 'self'"} <= set(policy.split("; "))


def test_a_report_begins_with_its_question_and_counts_its_claims_which_stand_at_its_end(finished):
    html = read(finished, "01_profile_bottlenecks.html")
    order = ["<h1>Where does the time go?</h1>", "One <strong>question</strong>", "</span> ran</span>"]
    order += ["<strong>0.97</strong> of it", "1 reproduced</span>", "<article>", "gat.parameters"]
    order += ["Parameters <span", "<summary>Environment"]
    places = [html.index(words) for words in order]
    assert places == sorted(places)
    assert html.count("One <strong>question</strong>") == html.count("<strong>0.97</strong> of it") == 1
    assert "minutes" not in html  # what a run needs is for who runs it
    assert html.count("Where does the time go?") == 2  # <title> and <h1>: the cell's own heading is not repeated


def test_code_is_folded_a_figure_can_be_linked_to_and_tagged_outputs_are_left_out(finished):
    html = read(finished, "01_profile_bottlenecks.html")
    of_page = tags(html)
    image = next(a for tag, a in of_page[of_page.index(("figure", {"id": "fig-operators"})) :] if tag == "img")
    assert image["alt"] == "Bars of the share of CPU time by operator: mm 31 %, scatter_add 22 %."
    assert ("a", {"href": "01_profile_bottlenecks/1/figures/operators.svg"}) in of_page
    folds = [a for tag, a in of_page if tag == "details" and a.get("class") == "code"]
    assert len(folds) == 3 and all("open" not in fold for fold in folds)
    assert "# Parameters" not in html and "CARD" not in html
    assert '<span class="ansi-red-fg">red</span>' in html


def test_the_front_page_leads_with_what_matters_and_the_notebooks_and_counts_the_verdicts(finished):
    html = read(finished, "index.html")
    order = [html.index(f'id="{part}"') for part in ("findings", "notebooks", "claims", "goals", "environment")]
    assert order == sorted(order)
    headlines = re.findall(r"<li>([\w ]+): <a href=.*?<strong>([\d.]+)×</strong>", html)
    assert headlines == [("Does not pay here", "0.972"), ("Pays here", "1.27")]  # one of a study
    assert "the claimed range of an effect is widened by 5 % on each side" in html
    assert "29.6 % less time after three changes" in html  # the documents are introduced
    assert html.count("Where a row says nothing else: CPU; one run, so without") == 2  # of claims, of goals
    chips = re.findall(r'data-verdict="([\w ]+)" aria-pressed.*?<b>(\d+)</b>', html)
    of_claims = {"reproduced": 2, "exceeded": 1, "weaker": 1, "refuted": 1, "inconclusive": 1, "untestable here": 1}
    assert {word: int(count) for word, count in chips} == {**of_claims, "met": 1, "missed": 1, "open": 1}
    rows = {id: word for word, id in re.findall(r'<tr data-verdict="([\w ]+)" id="claim-([\w.]+)">', html)}
    assert len(rows) == 10 and rows["gat.optimized"] == "refuted" and rows["goal.gat_layer"] == "missed"


def test_a_row_says_what_was_claimed_and_measured_and_what_has_no_result_comes_last(finished):
    html = read(finished, "index.html")
    row = re.search(r'id="claim-gat.optimized">.*?</tr>', html, re.DOTALL)[0]
    assert "1.41 to 1.45×" in row and "<strong>0.972×</strong>" in row and "0.958 to 0.988×" in row
    assert 'href="02_optimize_gnn.html#fig-rungs"' in row
    assert "older run" in row  # notebook 02 failed since
    fold = re.search(r'<details class="missing">.*?</details>', html, re.DOTALL)[0]
    assert f"{len(claims.catalogue()) - 10} claims and goals not yet measured here" in fold
    assert "goal.plan_gain" in fold and "goal.gat_hoisted" not in fold


def test_a_failed_run_and_a_damaged_result_cost_a_line_beside_what_is_older(finished):
    html = read(finished, "index.html")
    card = next(c for c in html.split('<li class="card">') if "02_optimize_gnn.html" in c and "failed" in c)
    assert "cell 3: &lt;script&gt;" in card and "what else is shown here is older" in card
    assert "<code>02_optimize_gnn/2/notebook.ipynb</code>" in card
    assert html.count("03_fm_amp_training/1/result.json is not a result file of this version") == 1
    assert "no notebook 04_stage_export/1/notebook.ipynb" in html and "run 03 first" in html
    assert str(finished) not in html


def test_only_a_stale_report_is_rendered_again(finished):
    page, run = finished / "01_profile_bottlenecks.html", finished / "01_profile_bottlenecks"
    rendered = page.read_text(encoding="utf-8")
    page.write_text("as it was", encoding="utf-8")
    report.build_site(finished)
    assert page.read_text(encoding="utf-8") == "as it was"
    later = page.stat().st_mtime + 5  # as when a run is put there
    os.utime(run, (later, later))
    report.build_site(finished)
    assert len(page.read_text(encoding="utf-8")) > len(rendered) / 2


def test_a_notebook_that_is_unreadable_is_one_line(tmp_path):
    run = result("01_profile_bottlenecks", tmp_path)
    (run / results.NOTEBOOK).write_bytes(b"\xff\xfe{")
    html = report.build_site(tmp_path).read_text(encoding="utf-8")
    assert html.count("01_profile_bottlenecks/1/notebook.ipynb is not a readable notebook") == 1
    assert not list(tmp_path.glob("0*.html"))


def test_an_empty_folder_says_that_nothing_was_measured_and_a_missing_one_is_an_error(tmp_path):
    html = report.build_site(tmp_path).read_text(encoding="utf-8")
    assert "Nothing has been measured in this folder yet" in html
    with pytest.raises(GnnlabError, match="gnnlab run --params nowhere"):
        report.build_site(tmp_path / "nowhere")


EVIL = {"os": HOSTILE[0], "versions": {HOSTILE[1]: "1"}, "extra": HOSTILE[2]}


@pytest.mark.parametrize("environment", [ENVIRONMENT, {}, dict.fromkeys(ENVIRONMENT), EVIL])
def test_the_environment_card_takes_whatever_is_known_and_escapes_it(environment):
    card = report.environment_card(environment)
    assert card.lstrip().startswith("<div") and not re.search("None|<style|<script|<img", card)


@pytest.mark.parametrize(
    "html",
    [
        *HOSTILE,
        '<a href="javascript:alert(1)">x</a>',
        '<a href="java\tscript:alert(1)">x</a>',
        '<a href="data:text/html,<script>">x</a>',
        '<img src="https://example.org/x.png">',
        '<img src="data:text/html;base64,AAAA">',
        '<p style="background:url(https://example.org/x)">x</p>',
        '<p style="position:fixed;width:100%">x</p>',
        '<svg onload="alert(1)"></svg>',
        '<iframe src="x"></iframe><form action="x"></form>',
        '<div class="badge good" id="ledger" onclick="x()">x</div>',
        "<style>p { color: red }</style>",
    ],
)
def test_the_sanitizer_lets_nothing_through_that_runs_fetches_or_deceives(html):
    for tag, attributes in tags(clean(html)):
        assert tag in {"a", "p", "div"}
        assert not attributes or attributes == {"class": ""}


def test_the_sanitizer_keeps_tables_and_sets_numbers_to_the_right_but_no_names_with_a_digit():
    columns = {"operator": ["mm", "add"], "ms": ["0.31 (0.30 to 0.32)", "0.22"], "stage": ["1 GATHER", "2 MESSAGE"]}
    frame = pd.DataFrame(columns | {"fast:CPU": [1, 2]}, index=pd.Index(["a", "b"], name="case"))
    safe = clean(frame.to_html())
    assert safe.startswith('<div class="wide"')
    table = BeautifulSoup(safe, "html.parser")
    assert [head.get_text() for head in table.select("th.nu")] == ["ms", "fast:CPU"]
    assert [cell.get_text() for cell in table.select("td.nu")] == ["0.31 (0.30 to 0.32)", "1", "0.22", "2"]
    assert [head.get_text() for head in table.select("thead th")] == ["case", *frame.columns]  # in one row


def test_links_lead_to_pages_of_the_site_and_of_what_it_does_not_hold_the_path_is_shown():
    links = ["../docs/measuring.md", "02_optimize_gnn.ipynb#a", "#here", "https://example.org/a"]
    cell = v4.new_markdown_cell(" ".join(f"[{link[-4:]}]({link})" for link in links))
    html = notebook_html.render(v4.new_notebook(cells=[cell]), {}).html
    targets = [attributes["href"] for tag, attributes in tags(html) if tag == "a"]
    assert targets == ["02_optimize_gnn.html#s-a", "#here", "https://example.org/a"]
    assert "g.md (<code>docs/measuring.md</code>)" in html


def test_every_relative_link_of_the_site_leads_to_a_file(finished):
    pages = list(finished.rglob("*.html"))
    for page in pages:
        for tag, attributes in tags(page.read_text(encoding="utf-8")):
            target = (attributes.get("href") or "").partition("#")[0]
            if tag == "a" and target and ":" not in target:
                assert (page.parent / target).is_file(), f"{page.name}: {target}"


def test_source_that_a_cell_displays_is_folded_under_its_caption():
    html = '<div class="highlight"><pre>import torch</pre></div>'
    cell = v4.new_code_cell("display(Code(filename=file))")
    for metadata in ({"text/html": {"caption": "examples/<a>.py"}}, {}):
        cell.outputs.append(v4.new_output("display_data", {"text/html": html}, metadata=metadata))
    shown = BeautifulSoup(notebook_html.render(v4.new_notebook(cells=[cell]), {}).html, "html.parser")
    _, folded = shown.select("details.code")
    assert (folded.summary.text, folded.pre.text) == ("examples/<a>.py", "import torch") and "open" not in folded.attrs
    assert shown.select_one(".out.html > .highlight").text == "import torch"  # without a caption it is a result


def test_a_heading_over_what_the_page_shows_elsewhere_is_left_out():
    verdicts = v4.new_code_cell("lab.verdicts()", metadata={"tags": ["remove-output"]})
    contract = v4.new_code_cell("{}", metadata={"tags": ["nbval-check-output"]})
    concluding = v4.new_code_cell("lab.say()", metadata={"tags": ["conclusion"]})
    concluding.outputs = [v4.new_output("display_data", {"text/markdown": "It pays."})]
    texts = [v4.new_markdown_cell(f"## {name}") for name in ("Claims", "Contract", "So", "Next")]
    every = [texts[0], verdicts, texts[1], contract, texts[2], concluding, texts[3]]
    cells = notebook_html.render(v4.new_notebook(cells=every), {})
    assert [text for _, text in cells.headings] == ["Next"]
    assert "It pays" in cells.conclusion and "It pays" not in cells.html
