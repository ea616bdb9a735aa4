"""The site: everything is rendered, nothing is fetched, no string from a result becomes markup, damage stays local."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import small_site
from nbformat import v4, write
from small_site import ENVIRONMENT, HOSTILE, judged, result
from table_rows import TORCH

from gnnlab.errors import GnnlabError
from gnnlab.lab import claims, discovery, notebook_html, report, results
from gnnlab.lab import table as tables
from gnnlab.measure.estimates import CONTROL

ROOT = Path(__file__).parents[2]


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


def shown(tmp_path, *cells):
    """What a page has of a notebook of these cells."""
    write(v4.new_notebook(cells=list(cells)), tmp_path / "notebook.ipynb")
    return notebook_html.read(tmp_path / "notebook.ipynb", [])


def raced(study, variant, ratio, *, half=0.1, unit="ms", baseline="PyG", size="a", **fields):
    """A row of a race, `ratio` times as fast as its baseline."""
    compared = {"ratio": ratio, "ratio_low": ratio - half, "ratio_high": ratio + half, "baseline": baseline}
    measured = {"value": 1.0, "low": 0.9, "high": 1.1, "n": 9, "interval": "95 % confidence", "origin": "measured"}
    of = {
        "study": study,
        "variant": variant,
        "keys": {"size": size},
        "unit": unit,
        "better": "lower",
        "statistic": "median",
    }
    return tables.row(**of, **measured, **compared, **TORCH, **fields)


PAGES = ["index.html", "01_profile_bottlenecks.html", "02_optimize_gnn.html"]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_loads_and_runs_nothing_and_shows_hostile_strings_as_text(finished, page):
    html = read(finished, page)
    for tag, attributes in tags(html):
        assert tag not in {"script", "link", "iframe", "object", "embed", "base", "audio", "video"}
        source = attributes.get("src") or ""
        assert source.startswith("data:image/") if tag == "img" else not source
        assert tag in {"a", "use"} or "href" not in attributes
        assert not [name for name in attributes if name.startswith("on") or name == "srcset"]
        assert not (attributes.get("href") or "").startswith("javascript")
    assert "url(" not in html.replace("url(s", "") and "@import" not in html
    assert "alert(" in html and html.count("</style>") == 1  # it was there to be escaped
    policy = next(a["content"] for t, a in tags(html) if t == "meta" and a.get("http-equiv"))
    assert {"default-src 'none'", "img-src data: 'self'"} <= set(policy.split("; ")) and "script-src" not in policy


def test_a_report_asks_answers_and_shows_its_key_figure_first_and_its_claims_last(finished):
    html = read(finished, "01_profile_bottlenecks.html")
    order = ["<h1>One question.</h1>", "<strong>0.97</strong> of it", "</span> ran</span>", "1 reproduced</span>"]
    order += ['<figure id="fig-operators">', "<article>", '<a href="#fig-operators">Its figure</a>', "gat.parameters"]
    order += ["Parameters <span", "<summary>Environment"]
    places = [html.index(words) for words in order]
    assert places == sorted(places)
    assert html.count("One question") == html.count("<strong>0.97</strong> of it") == 1
    assert "minutes" not in html  # what a run needs is for who runs it


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


def test_the_front_page_says_what_matters_then_lists_notebooks_claims_and_what_has_no_result(finished):
    html = read(finished, "index.html")
    order = [html.index(f'id="{part}"') for part in ("advice", "notebooks", "claims", "goals", "environment")]
    assert order == sorted(order)
    headlines = re.findall(r"<li>([\w ]+): <a href=.*?<strong>([\d.]+)×</strong>", html)
    assert headlines == [("Does not pay here", "0.972"), ("Pays here", "1.27")]  # one of a study
    assert "the claimed range of an effect is widened by 5 % on each side" in html
    assert "29.6 % less time after three changes" in html  # the documents are introduced
    counts = re.findall(r">(\d) ([\w ]+)</span>", html.partition('id="claims"')[2].partition("</p>")[0])
    of_claims = {"reproduced": 2, "exceeded": 1, "weaker": 1, "refuted": 1, "inconclusive": 1, "untestable here": 1}
    assert {word: int(count) for count, word in counts} == of_claims
    assert len(re.findall('id="claim-', html)) == 10
    row = re.search(r'id="claim-gat.optimized">.*?</tr>', html, re.DOTALL)[0]
    assert "refuted" in row and "1.41 to 1.45×" in row and "<strong>0.972×</strong>" in row
    assert "0.958 to 0.988×" in row and "CPU; samples: 240; runs: 1" in row and "02_optimize_gnn.html#fig-rungs" in row
    before, _, fold = html.partition(" claims and goals not yet measured here")
    assert before.endswith(f">{len(claims.catalogue()) - 10}") and "goal.plan_gain" in fold
    assert "goal.gat_constant_output" not in fold


def test_a_failed_run_and_a_damaged_result_cost_a_line_beside_what_is_older(finished):
    html = read(finished, "index.html")
    row = next(c for c in html.split("<tr>") if "02_optimize_gnn.html" in c and "failed" in c)
    assert "cell 3: &lt;script&gt;" in row and "All else here is of an older run" in row
    assert "<code>02_optimize_gnn/2/notebook.ipynb</code>" in row
    assert html.count("03_fm_amp_training/1/result.json is not a result file of this version") == 1
    assert "run 03 first" in html and str(finished) not in html


def test_a_run_without_an_executed_notebook_has_a_page_of_its_figures_and_numbers(tmp_path):
    run = tmp_path / "01_profile_bottlenecks/1"
    record, _ = small_site.figure(run, "operators")
    rows = [raced("gat_layer", "gnnlab", 2.0)]
    result(run.parent.name, tmp_path, figures=[record], rows=[row.model_dump() for row in rows])
    index = report.build_site(tmp_path).read_text(encoding="utf-8")
    html = read(tmp_path, "01_profile_bottlenecks.html")
    assert 0 < index.index('id="gains"') < index.index('id="notebooks"')
    assert "run it again" not in index + html and "This run left no executed notebook" in html
    assert "Gat layer: gnnlab is 2.00× (1.90 to 2.10×) as fast as PyG" in html and 'id="fig-operators"' in html


def test_what_cannot_be_shown_is_one_line_and_the_results_stay(tmp_path, monkeypatch):
    runs = [result(name, tmp_path) for name in ("01_profile_bottlenecks", "02_optimize_gnn")]
    (runs[0] / results.NOTEBOOK).write_bytes(b"\xff\xfe{")
    write(v4.new_notebook(cells=[v4.new_code_cell("1")]), runs[1] / results.NOTEBOOK)
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setattr("nbconvert.exporters.templateexporter.jupyter_path", lambda *_: [])
    notebook_html.exporter.cache_clear()
    html = report.build_site(tmp_path).read_text(encoding="utf-8")
    notebook_html.exporter.cache_clear()
    assert html.count("01_profile_bottlenecks/1/notebook.ipynb is not a readable notebook") == 1
    assert html.count("02_optimize_gnn/1/notebook.ipynb cannot be shown") == 1
    assert not list(tmp_path.glob("0*.html")) and all((run / results.RESULT).exists() for run in runs)


def test_an_empty_folder_says_that_nothing_was_measured_and_a_missing_one_is_an_error(tmp_path):
    assert "Nothing has been measured in this folder yet" in report.build_site(tmp_path).read_text(encoding="utf-8")
    with pytest.raises(GnnlabError, match="gnnlab run --params nowhere"):
        report.build_site(tmp_path / "nowhere")


EVIL = {"os": HOSTILE[0], "versions": {HOSTILE[1]: "1"}, "extra": HOSTILE[2]}


@pytest.mark.parametrize("environment", [ENVIRONMENT, {}, dict.fromkeys(ENVIRONMENT), EVIL])
def test_the_environment_card_takes_whatever_is_known_and_escapes_it(environment):
    card = report.environment_card(environment)
    assert card.lstrip().startswith("<div") and not re.search("None|<style|<script|<img", card)


ODD = [
    {"cpu": "AMD", "devices": "GPU"},
    {"cpu": {"model": 5, "usable": "2", "quota": "1", "l2_cache_bytes": "a"}, "devices": [1, {"kind": "CUDA"}]},
    {"versions": [1], "others_percent": "much"},
    {"finished": "x", "versions": {"torch": 2}, "devices": 5},
    {"finished": {"steal_percent": "x", "others_percent": []}},
]


@pytest.mark.parametrize("odd", ODD)
def test_what_of_an_environment_is_of_another_kind_counts_as_not_known(tmp_path, odd):
    small_site.write(tmp_path)
    result("05_npu_measure", tmp_path, environment=ENVIRONMENT)
    file = result("01_profile_bottlenecks", tmp_path) / results.RESULT  # beside its executed notebook
    changed = {"environment": ENVIRONMENT | odd, "parameters": {"models": [1], "graphs": {"a": None}}}
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    assert "01_profile_bottlenecks.html" in report.build_site(tmp_path).read_text(encoding="utf-8")


def test_a_page_stays_where_the_results_that_it_shows_cannot_be_read_and_goes_where_there_are_none(tmp_path):
    run = result("01_profile_bottlenecks", tmp_path)
    report.build_site(tmp_path)
    (run / results.RESULT).write_text((run / results.RESULT).read_text().replace("params_set", "set"))
    assert "not a result file of this version" in report.build_site(tmp_path).read_text(encoding="utf-8")
    assert (tmp_path / "01_profile_bottlenecks.html").exists()
    (run / results.RESULT).unlink()
    result("01_profile_bottlenecks", tmp_path, status="failed", reason="late")
    report.build_site(tmp_path)
    assert not (tmp_path / "01_profile_bottlenecks.html").exists()


def test_every_relative_link_of_the_site_leads_to_a_file(finished):
    for page in finished.rglob("*.html"):
        for tag, attributes in tags(page.read_text(encoding="utf-8")):
            target = (attributes.get("href") or "").partition("#")[0]
            if tag == "a" and target and ":" not in target:
                assert (page.parent / target).is_file(), f"{page.name}: {target}"


# ---- cells


@pytest.mark.parametrize("mime", ["text/html", "text/markdown"])
@pytest.mark.parametrize(
    "html",
    [
        *HOSTILE,
        '<a href="javascript:alert(1)">x</a>',
        '<a href="java\tscript:alert(1)">x</a>',
        '<a href="data:text/html,<script>">x</a>',
        '<img src="https://example.org/x.png">',
        '<p style="background:url(https://example.org/x)">x</p>',
        '<svg onload="alert(1)"></svg>',
        '<iframe src="x"></iframe><form action="x"></form>',
        '<div class="badge good" id="ledger" onclick="x()">x</div>',
        "<style>p { color: red }</style>",
    ],
)
def test_nothing_that_an_output_holds_runs_fetches_or_deceives(tmp_path, html, mime):
    cell = v4.new_code_cell("1", outputs=[v4.new_output("display_data", {mime: html})])
    article = shown(tmp_path, cell).article.partition("</details>")[2]
    for tag, attributes in tags(article):
        assert tag in {"a", "p", "div"} and "badge" not in attributes.get("class", "")
        assert not {"href", "src", "style", "id", "onclick"} & {*attributes}


def test_tables_stay_and_math_code_and_quotes_of_markdown_too(tmp_path):
    frame = pd.DataFrame({"operator": ["a<b", "add"], "ms": ["0.31 (0.30 to 0.32)", "0.22"]})
    data = {"text/html": frame.to_html(), "text/plain": "table"}
    cell = v4.new_code_cell("frame", outputs=[v4.new_output("execute_result", data, execution_count=1)])
    html = shown(tmp_path, v4.new_markdown_cell("# T\n\n> `a < b` & c"), cell).article
    assert "<td>a&lt;b</td>" in html and "<th>ms</th>" in html and "<td></td>" in html  # a head without a word
    assert "table" not in re.sub("<.*?>", "", html)


def test_links_lead_to_pages_of_the_site_and_of_what_it_does_not_hold_the_path_is_shown(tmp_path):
    links = ["../docs/measuring.md", "02_optimize_gnn.ipynb#a", "#here", "https://example.org/a"]
    words = [f"[{link[-4:]}]({link})" for link in links]
    cell = v4.new_markdown_cell(" ".join([*words, "[docs/own.md](../docs/own.md)"]))
    html = shown(tmp_path, v4.new_markdown_cell("# Title"), cell).article
    targets = [attributes["href"] for tag, attributes in tags(html) if tag == "a"]
    assert targets == ["02_optimize_gnn.html#a", "#here", "https://example.org/a"]
    assert "g.md (<code>docs/measuring.md</code>)" in html and html.count("docs/own.md") == 1


def test_a_heading_over_what_the_page_shows_elsewhere_is_left_out(tmp_path):
    verdicts = v4.new_code_cell("lab.verdicts()", metadata={"tags": ["remove-output"]})
    contract = v4.new_code_cell("{}", metadata={"tags": ["nbval-check-output"]})
    concluding = v4.new_code_cell("lab.say()", metadata={"tags": ["conclusion"]})
    concluding.outputs = [v4.new_output("display_data", {"text/markdown": "It pays."})]
    title, *texts = [v4.new_markdown_cell(f"## {name}") for name in ("Title", "Claims", "Contract", "So", "Next")]
    cells = shown(tmp_path, title, texts[0], verdicts, texts[1], contract, texts[2], concluding, texts[3])
    assert [text for _, text in cells.headings] == ["Title", "Next"]
    assert "It pays" in cells.conclusion and "It pays" not in cells.article


# ---- what is said first


def test_a_report_has_a_line_for_each_race_and_the_front_page_those_that_a_model_gains_by(tmp_path):
    rows = [
        raced("symptom_encoder", "constant output", 200.0),  # no gain of a reader's model
        raced("gat_layer", "gnnlab", 4.0),
        raced("sage_layer", "gnnlab", 1.05),
        raced("whole_models", "gnnlab", 2.0),
        raced("whole_models", CONTROL, 9.0),
        raced("your_model", "gnnlab", 3.0),
    ]
    entry = report.NotebookEntry("09_your_model", page="09.html")
    entry.findings = report._findings(
        results.read(result("09_your_model", tmp_path, rows=[r.model_dump() for r in rows]) / "result.json")
    )
    assert [one.study for one in entry.findings if not one.pays] == ["sage_layer"] == [entry.findings[-1].study]
    assert [one.study for _, one in report._gains([entry])] == ["whole_models", "gat_layer"]
    entry.own = True
    assert [one.study for _, one in report._gains([entry])] == ["your_model", "whole_models", "gat_layer"]


def test_a_run_on_a_busy_machine_says_so_on_its_page_and_on_the_front_page(result_file, tmp_path):
    rows = [raced("layer", CONTROL, ratio, half=0.5, size=str(ratio)) for ratio in (0.9, 1.1, 1.2)]
    quiet = {"others_percent": 2.0, "steal_percent": 0.0}
    assert report.noise(result_file(environment=quiet | {"finished": quiet})) is None
    busy = result_file(environment=quiet | {"finished": {"others_percent": 42.0}}, rows=rows)
    assert "at its end, 42 % of its CPU time goes to other programs" in report.noise(busy)
    assert "(A/A) differs by 10 % in the median" in report.noise(busy)
    result("01_profile_bottlenecks", tmp_path, environment=ENVIRONMENT | quiet)
    assert "a busy machine" not in read(tmp_path, report.build_site(tmp_path).name)
    result("02_optimize_gnn", tmp_path, environment=ENVIRONMENT | {"others_percent": 42.0})
    notice = read(tmp_path, report.build_site(tmp_path).name).partition("Measured on a busy machine")[2][:200]
    assert "02_optimize_gnn.html" in notice and "01_profile" not in notice


def test_claims_are_in_the_order_of_their_distance_and_wrong_advice_comes_before_gains():
    rows = [
        judged("gat.compile", 1.14, (1.12, 1.15), 9, ""),
        judged("gat.compile_cuda", None, None, 0, ""),
        judged("gat.optimized", 0.9, (0.88, 0.92), 9, ""),
        judged("gat.throughput", 1.2, (1.19, 1.21), 9, ""),
        judged("goal.gat_constant_output", 300.0, (290.0, 310.0), 9, ""),
    ]
    (*_, of_documents), (*_, goals) = report.parts(rows)
    assert [r.id for r in of_documents] == ["gat.optimized", "gat.throughput", "gat.compile", "gat.compile_cuda"]
    assert [r.id for r in goals] == ["goal.gat_constant_output"]
    rows = [r.model_copy(update={"study": r.id}) for r in rows]
    assert [(kind, r.id) for kind, r in report.headlines(rows)] == [
        (report.FALSE, "gat.optimized"),
        (report.LESS, "gat.throughput"),
        (report.PAYS, "gat.compile"),
    ]
    wide = judged("gat.optimized", 1.05, (0.95, 1.15), 9, "")  # a headline is true of the whole interval
    assert [kind for kind, _ in report.headlines([wide])] == [report.UNSURE]


def test_what_the_reader_named_is_told_from_the_defaults_and_from_a_part_of_them():
    defaults = {"models": ["a:a", "a:b"], "graphs": ["g"]}
    declared = {name: SimpleNamespace(default=value) for name, value in defaults.items()}
    assert report.own({"models": ["a:b"], "graphs": ["random:nodes=9"], "size": 3}, declared) == []
    assert report.own({"models": ["a:b", "my:own"], "graphs": ["mine.npz"]}, declared) == ["models", "graphs"]


def test_after_a_run_only_its_own_page_is_written_again(tmp_path):
    names = ["01_profile_bottlenecks", "02_optimize_gnn"]
    for name in names:
        result(name, tmp_path)
    report.build_site(tmp_path)
    for name in names:
        (tmp_path / f"{name}.html").write_text("older")
    report.build_site(tmp_path, names[0])
    assert not read(tmp_path, "01_profile_bottlenecks.html").endswith("older")
    assert read(tmp_path, "02_optimize_gnn.html").endswith("older")
    assert "02_optimize_gnn.html" in read(tmp_path, "index.html")


def test_the_quick_set_names_nothing_of_a_readers_own():
    paths = sorted(ROOT.glob("params/quick/*.yaml"))
    declared = [discovery.declared(ROOT / "notebooks" / f"{path.stem}.ipynb") for path in paths]
    named = [report.own(discovery.read_parameters(path, of), of) for path, of in zip(paths, declared, strict=True)]
    assert len(named) == 10 and not any(named)
