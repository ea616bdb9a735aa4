"""The site: everything is rendered, nothing is fetched, no string from a result becomes markup, damage stays local."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbformat import v4

from gnnlab.errors import GnnlabError
from gnnlab.lab import claims, ledger_view, plot_style, plots, report, results
from gnnlab.lab.claims import Verdict
from gnnlab.lab.ledger import Judged, Ledger
from gnnlab.lab.notebook_html import clean
from gnnlab.lab.results import FigureRecord, ResultFile

HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "</style><script>alert(3)</script>"]
ENVIRONMENT = {
    "commit": "abc1234567",
    "dirty": True,
    "host": "bench",
    "os": "Linux-6.1",
    "python": "3.11.7",
    "cpu": {"model": "AMD EPYC 9R14", "cores": 2, "logical": 4, "flags": ["avx2", "fma"], "l3_cache_bytes": 33554432},
    "memory_gb": 24.0,
    "devices": [{"name": "AMD EPYC 9R14", "kind": "CPU", "driver": None}],
    "versions": {"torch": "2.13.0", "openvino": None},
    "threads": 2,
    "load": [0.1, 0.2, 0.3],
    "steal_percent": 0.1,
    "clock_mhz": 2250.0,
}
PARAMETERS_CELL = 'output_dir: str = "outputs/quick"  # where results go\nruns: int = 5  # timed runs; 1..100'


def judged(id: str, value: float | None, interval: tuple[float, float] | None, n: int, why: str) -> Judged:
    """A row of the ledger, its verdict by the interval."""
    claim = claims.catalogue()[id]
    named = {name: getattr(claim, name) for name in ("id", "source", "notebook", "statement", "metric", "unit")}
    low, high = interval or (None, None)
    if value is None:
        said = Verdict.UNTESTABLE
    elif claim.of.equals:
        said = Verdict.REPRODUCED
    else:
        said = claims.verdict(claim, interval)
    numbers = {"value": value, "low": low, "high": high, "n": n, "runs": min(n, 1)}
    study = "operators" if claim.notebook == "01" else "rungs"
    return Judged(**named, **numbers, claimed=claim.bounds, verdict=said, study=study, conditions="CPU", why=why)


def records() -> list[Judged]:
    """A row for each verdict, open and missing ranges among them."""
    why = "Interleaved pairs on equal weights; the interval says it."
    return [
        judged("gat.parameters", 169856, (169856, 169856), 1, f"Counted. {HOSTILE[1]}"),
        judged("gat.optimized", 0.972, (0.958, 0.988), 240, why),
        judged("gat.compile", 1.27, (1.25, 1.30), 120, why),
        judged("gat.expand", 1.04, (0.97, 1.12), 40, "Too noisy here."),
        judged("gat.throughput", 1.2, (1.17, 1.23), 90, why),
        judged("gat.compile_cuda", None, None, 0, "Needs a CUDA device; none is usable here."),
        judged("gat.cached_ids", 1.031, (1.02, 1.04), 120, why),
        judged("goal.gat_hoisted", 214.0, (205.0, 222.0), 60, why),
        judged("goal.gat_layer", 4.0, (3.9, 4.2), 60, why),
        judged("goal.gat_computed", 4.9, (4.0, 5.2), 60, why),
    ]


def figure(folder: Path, name: str, *, key: bool = True) -> tuple[FigureRecord, str]:
    """A small real figure in `folder`, and its PNG in base64 as a notebook stores it."""
    frame = pd.DataFrame({"operator": ["mm", "scatter_add"], "value": [31.2, 22.1], "low": [29, 20], "high": [33, 24]})
    finding = "mm and scatter_add take half of the forward pass"
    drawn = plots.bars(frame, y="operator", label="share", unit="%", title=finding)
    alt = "Bars of the share of CPU time by operator: mm 31 %, scatter_add 22 %."
    record = plot_style.save(drawn, name, title=finding, alt=alt, folder=folder, key=key)
    return record, base64.b64encode((folder / record.png).read_bytes()).decode()


def executed(picture: str, name: str, alt: str) -> nbformat.NotebookNode:
    """An executed notebook with a figure, a table, stderr, an error, formulas and hostile strings in each of them."""
    table = pd.DataFrame({"operator": ["mm", HOSTILE[0]], "ms": [0.31, 0.22]})
    parameters = v4.new_code_cell(PARAMETERS_CELL, metadata={"tags": ["parameters"]})
    injected = v4.new_code_cell("# Parameters\nruns = 7\n", metadata={"tags": ["injected-parameters"]})
    card = v4.new_code_cell("session", metadata={"tags": ["remove-output"]})
    card.outputs = [v4.new_output("stream", text="CARD")]
    drawing = v4.new_code_cell("figure", execution_count=3)
    drawing.outputs = [
        v4.new_output("display_data", {"image/png": picture}, metadata={"image/png": {"alt": alt, "name": name}}),
        v4.new_output(
            "execute_result", {"text/html": table.to_html(escape=False), "text/plain": "table"}, execution_count=3
        ),
        v4.new_output("display_data", {"text/markdown": f"**0.97** of it {HOSTILE[1]}"}),
        v4.new_output("display_data", {"text/plain": HOSTILE[0]}, metadata={}),
        v4.new_output(
            "display_data", {"image/png": picture}, metadata={"image/png": {"alt": HOSTILE[1], "name": HOSTILE[1]}}
        ),
        v4.new_output("stream", name="stderr", text=f"warning: {HOSTILE[2]} \x1b[31mred\x1b[0m"),
        v4.new_output(
            "error", ename="ValueError", evalue=HOSTILE[0], traceback=[f"\x1b[31mError\x1b[0m: {HOSTILE[0]}"]
        ),
    ]
    texts = [
        "# Where does the time go?\n\nOne **question**.\n\n| needs | minutes |\n|---|---|\n| nothing | 1 |",
        f"## Operators\n\nFormula $2 N^2 h$ and a [link](https://example.org/paper). {HOSTILE[1]}",
        "## What to read next\n\n- ![far](https://example.org/pixel.png) and [bad](javascript:alert(4))",
    ]
    raw = v4.new_raw_cell(HOSTILE[2])
    first, second, last = (v4.new_markdown_cell(text) for text in texts)
    return v4.new_notebook(cells=[first, parameters, injected, card, second, drawing, last, raw])


def result(number_name: str, folder: Path, **changes: object) -> ResultFile:
    content = {
        "run": "0" * 32,
        "notebook": number_name,
        "params_set": "quick",
        "status": "passed",
        "parameters": {"output_dir": "outputs/quick", "runs": 7, "graph": HOSTILE[0]},
        "environment": ENVIRONMENT,
        "started": "2026-11-20T16:40:00+00:00",
        "seconds": 41.2,
    }
    written = ResultFile.model_validate(content | changes)
    suffix = ".failed" if written.status in ("failed", "timeout") else ""
    results.write(folder / f"{number_name}{suffix}.json", written)
    return written


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder: 01 passed, 02 passed once and then failed, 03 damaged, 04 skipped without a notebook file."""
    folder = tmp_path_factory.mktemp("outputs") / "quick"
    record, picture = figure(folder, "operators")
    rungs, picture_2 = figure(folder, "rungs", key=False)
    nbformat.write(executed(picture, "operators", record.alt), folder / "01_profile_bottlenecks.ipynb")
    nbformat.write(executed(picture_2, "rungs", rungs.alt), folder / "02_optimize_gnn.ipynb")
    nbformat.write(executed(picture_2, "rungs", rungs.alt), folder / "02_optimize_gnn.failed.ipynb")
    result("01_profile_bottlenecks", folder, figures=[record])
    result("02_optimize_gnn", folder, figures=[rungs])
    result("02_optimize_gnn", folder, status="failed", reason=f"cell 3: {HOSTILE[0]}", seconds=3)
    (folder / "03_fm_amp_training.json").write_text("{not json")
    result("04_stage_export", folder, status="skipped", reason="run 03 first: gnnlab run 03 --params quick", seconds=1)
    known = {row.id for row in records()}
    missing = [claim for id, claim in claims.catalogue().items() if id not in known]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report.ledger, "judge", lambda _: Ledger(records(), missing))
        report.build_site(folder)
    return folder


def read(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Every tag of a page with its attributes, as a browser would see them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


PAGES = ["index.html", "01_profile_bottlenecks.html", "02_optimize_gnn.html", "02_optimize_gnn.failed.html"]


@pytest.mark.parametrize("page", PAGES)
def test_no_page_loads_anything_from_anywhere(finished: Path, page: str) -> None:
    for tag, attributes in Tags(read(finished, page)).found:
        assert tag not in {"link", "iframe", "object", "embed", "base", "audio", "video"}
        source = attributes.get("src") or ""
        assert source.startswith("data:image/") if tag == "img" else not source
        assert tag in {"a", "use"} or "href" not in attributes
        assert "url(" not in (attributes.get("style") or "")
        assert not [name for name in attributes if name.startswith("on") or name == "srcset"]
    assert "url(" not in read(finished, page).replace("url(s", "") and "@import" not in read(finished, page)


@pytest.mark.parametrize("page", PAGES)
def test_only_the_script_of_the_page_may_run_and_hostile_strings_show_as_text(finished: Path, page: str) -> None:
    html = read(finished, page)
    assert "alert(" in html and "javascript:" not in html  # it was there to be escaped
    assert [tag for tag, _ in Tags(html).found].count("script") == html.count("</style>") == 1
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert len(scripts) == 1 and scripts[0] == (report.TEMPLATES / "page.js").read_text(encoding="utf-8")
    policy = next(a["content"] for t, a in Tags(html).found if t == "meta" and a.get("http-equiv"))
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy and "img-src data: 'self'" in policy


def test_a_report_begins_with_title_status_parameters_environment_and_claims(finished: Path) -> None:
    html = read(finished, "01_profile_bottlenecks.html")
    order = ["<h1>Where does the time go?</h1>", "passed", "timed runs", "Environment", "gat.parameters", "<article>"]
    places = [html.index(words) for words in order]
    assert places == sorted(places)
    assert html.count("Where does the time go?") == 2  # <title> and <h1>: the cell's own heading is not repeated


def test_a_figure_keeps_its_alternative_text_and_can_be_linked_to(finished: Path) -> None:
    html = read(finished, "01_profile_bottlenecks.html")
    found = Tags(html).found
    place = found.index(("figure", {"id": "fig-operators"}))
    image = next(attributes for tag, attributes in found[place:] if tag == "img")
    assert image["alt"] == "Bars of the share of CPU time by operator: mm 31 %, scatter_add 22 %."
    assert image["src"].startswith("data:image/png;base64,iVBOR")
    assert ("a", {"href": "figures/operators.svg"}) in found


def test_code_is_folded_and_injected_parameters_and_tagged_outputs_are_left_out(finished: Path) -> None:
    html = read(finished, "01_profile_bottlenecks.html")
    folds = [a for tag, a in Tags(html).found if tag == "details" and a.get("class") == "code"]
    assert len(folds) == 3 and all("open" not in fold for fold in folds)
    assert "# Parameters" not in html
    assert "CARD" not in html
    assert '<code class="math">2 N^2 h</code>' in html
    assert '<span class="ansi-red-fg">red</span>' in html


def test_the_front_page_leads_with_what_pays_and_the_notebooks_and_counts_the_verdicts(finished: Path) -> None:
    html = read(finished, "index.html")
    order = [html.index(f'id="{part}"') for part in ("pays", "notebooks", "claims", "goals", "environment")]
    assert order == sorted(order)
    paying = re.findall(r"<li><strong>([\d.]+)×</strong>", html)
    assert paying == ["214"]  # the largest gain of each study
    chips = re.findall(r'data-verdict="([\w ]+)" aria-pressed.*?<b>(\d+)</b>', html)
    of_claims = {"reproduced": 2, "exceeded": 1, "weaker": 1, "refuted": 1, "inconclusive": 1, "untestable here": 1}
    assert {word: int(count) for word, count in chips} == {**of_claims, "met": 1, "missed": 1, "open": 1}
    rows = {id: word for word, id in re.findall(r'<tr data-verdict="([\w ]+)" id="claim-([\w.]+)">', html)}
    assert len(rows) == 10 and rows["gat.optimized"] == "refuted" and rows["goal.gat_layer"] == "missed"


def test_a_row_says_what_was_claimed_and_measured_and_leads_to_its_figure(finished: Path) -> None:
    row = re.search(r'id="claim-gat.optimized">.*?</tr>', read(finished, "index.html"), re.DOTALL)[0]
    assert "1.41 to 1.45×" in row and "<strong>0.972×</strong>" in row and "0.958 to 0.988×" in row
    assert 'href="02_optimize_gnn.html#fig-rungs"' in row
    assert 'aria-label="measured 0.972×, 95 % interval 0.958 to 0.988×, claimed 1.41 to 1.45×"' in row
    assert "older run" in row  # notebook 02 failed since


def test_claims_without_a_result_come_last_and_folded(finished: Path) -> None:
    html = read(finished, "index.html")
    fold = re.search(r'<details class="missing">.*?</details>', html, re.DOTALL)[0]
    assert f"{len(claims.catalogue()) - 10} claims not yet measured here" in fold
    assert "goal.plan_gain" in fold and "goal.gat_hoisted" not in fold


def test_a_failed_run_is_told_with_its_reason_beside_the_older_result(finished: Path) -> None:
    html = read(finished, "index.html")
    card = next(c for c in html.split('<li class="card">') if "02_optimize_gnn.html" in c and "failed" in c)
    assert "cell 3: &lt;script&gt;" in card and "what else is shown here is older" in card
    assert 'href="02_optimize_gnn.failed.html#error"' in card
    assert 'id="error"' in read(finished, "02_optimize_gnn.failed.html")


def test_a_damaged_result_costs_one_line_and_nothing_else(finished: Path) -> None:
    html = read(finished, "index.html")
    assert html.count("03_fm_amp_training.json is not a result file of this version") == 1
    assert "no notebook 04_stage_export.ipynb" in html and "run 03 first" in html
    assert str(finished) not in html


def test_the_ledger_is_also_written_as_data(finished: Path) -> None:
    data = json.loads(read(finished, "claims.json"))
    assert {row["id"] for row in data["claims"]} >= {"gat.optimized", "gat.parameters"}


def test_only_stale_reports_are_rendered_again(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = []
    real = report.render_notebook
    monkeypatch.setattr(report, "render_notebook", lambda n, r, *j: rendered.append(n.name) or real(n, r, *j))
    report.build_site(finished)
    assert rendered == []
    touched = finished / "01_profile_bottlenecks.json"
    later = (finished / "01_profile_bottlenecks.html").stat().st_mtime + 5
    os.utime(touched, (later, later))
    report.build_site(finished)
    assert rendered == ["01_profile_bottlenecks.ipynb"]


def test_an_unreadable_notebook_is_one_line(tmp_path: Path) -> None:
    result("01_profile_bottlenecks", tmp_path)
    (tmp_path / "01_profile_bottlenecks.ipynb").write_bytes(b"\xff\xfe{")
    html = report.build_site(tmp_path).read_text(encoding="utf-8")
    assert html.count("01_profile_bottlenecks.ipynb is not a readable notebook") == 1
    with pytest.raises(GnnlabError, match="not a readable notebook"):
        report.render_notebook(tmp_path / "01_profile_bottlenecks.ipynb", tmp_path / "01_profile_bottlenecks.json")


def test_a_picture_outside_the_folder_is_not_shown(tmp_path: Path) -> None:
    outside = tmp_path / "secret.png"
    outside.write_bytes(b"secret")
    record = FigureRecord(name="x", title="t", alt="a", png="../secret.png", svg="x.svg", key=True)
    folder = tmp_path / "quick"
    folder.mkdir()
    result("01_profile_bottlenecks", folder, figures=[record])
    report.build_site(folder)
    assert base64.b64encode(b"secret").decode() not in read(folder, "index.html")


def test_an_empty_folder_says_that_nothing_was_measured_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    html = report.build_site(tmp_path).read_text(encoding="utf-8")
    assert "Nothing has been measured in this folder yet" in html
    with pytest.raises(GnnlabError, match="gnnlab run --params nowhere"):
        report.build_site(tmp_path / "nowhere")


def test_a_full_disk_leaves_the_old_report(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    html = finished / "01_profile_bottlenecks.html"
    before = html.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(GnnlabError, match="No space left on device"):
        report.render_notebook(html.with_suffix(".ipynb"), html.with_suffix(".json"))
    assert html.read_bytes() == before and not list(finished.glob(".*.tmp"))


ODD = {"cpu": "odd", "devices": 3, "load": None, "memory_gb": "much", "versions": [], "finished": 1}
EVIL = {"host": HOSTILE[0], "versions": {HOSTILE[1]: "1"}, "extra": HOSTILE[2]}


@pytest.mark.parametrize("environment", [ENVIRONMENT, {}, dict.fromkeys(ENVIRONMENT), ODD, EVIL])
def test_the_environment_card_takes_whatever_is_known_and_escapes_it(environment: dict[str, object]) -> None:
    card = report.environment_card(environment)
    assert card.lstrip().startswith("<div") and not re.search("None|<style|<script|<img", card)
    assert clean(card).count("<div") == card.count("<div")  # it passes our own sanitizer, styles and all
    assert "opacity" in clean(card)


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
def test_the_sanitizer_lets_nothing_through_that_runs_fetches_or_deceives(html: str) -> None:
    for tag, attributes in Tags(clean(html)).found:
        assert tag in {"a", "p", "div"}
        assert set(attributes) <= {"style"} or attributes == {"class": ""}
        assert not re.search(r"url|position", attributes.get("style") or "")


def test_the_sanitizer_keeps_tables_and_sets_numbers_to_the_right() -> None:
    table = pd.DataFrame({"operator": ["mm", "add"], "ms": ["0.31 (0.30 to 0.32)", "0.22"]}, index=["a", "b"]).to_html()
    safe = clean(table)
    assert safe.count("<td") == 5 and safe.count("<th>") == 3 and '<td class="nu">0.31' in safe and "<td>mm" in safe
    assert safe.startswith('<div class="wide"')


def test_the_drawn_interval_lies_as_the_numbers_do() -> None:
    bar = ledger_view.interval_bar((1.41, 1.45), 0.97, (0.95, 0.99), neutral=1.0)
    assert bar.interval[0] < bar.value < bar.interval[1] < bar.neutral < bar.band[0]
    open_above = ledger_view.interval_bar((5.0, None), 6.0, (5.5, 6.5), neutral=1.0)
    assert sum(open_above.band) == ledger_view.BAR_WIDTH
    open_below = ledger_view.interval_bar((None, 1.5), 0.8, (0.5, 1.1))
    assert open_below.band[0] == 0
    exact = ledger_view.interval_bar((7.0, 7.0), 7.0, None)
    assert exact.interval is None and exact.value == ledger_view.BAR_WIDTH / 2 == exact.band[0] + exact.band[1] / 2
    assert ledger_view.interval_bar(None, None, None) is None


def test_every_verdict_and_status_has_a_word_and_a_symbol_of_its_own() -> None:
    assert set(ledger_view.VERDICTS) == set(Verdict) and set(report.STATUSES) == set(results.Status)
    words = [badge.word for badge in ledger_view.VERDICTS.values()]
    assert len(set(words)) == len(words)


def test_links_lead_where_they_did_from_the_notebooks_folder(tmp_path: Path) -> None:
    folder = tmp_path / "outputs" / "quick"
    for name in ("notebooks", "params", "outputs/quick"):
        (tmp_path / name).mkdir(parents=True)
    links = ["../docs/measuring.md", "02_optimize_gnn.ipynb", "#here", "https://example.org/a", "mailto:a@example.org"]
    cell = v4.new_markdown_cell(" ".join(f"[x]({link})" for link in links))
    nbformat.write(v4.new_notebook(cells=[cell]), folder / "01_profile_bottlenecks.ipynb")
    result("01_profile_bottlenecks", folder)
    page = report.render_notebook(folder / "01_profile_bottlenecks.ipynb", folder / "01_profile_bottlenecks.json")
    article = page.read_text(encoding="utf-8").split("<article>")[1].split("</article>")[0]
    found = [attributes["href"] for tag, attributes in Tags(article).found if tag == "a"]
    assert found == ["../../docs/measuring.md", "02_optimize_gnn.html", *links[2:]]
