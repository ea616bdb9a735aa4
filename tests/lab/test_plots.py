"""Figures: nothing that misleads is drawn, every gap and origin shows, nothing overlaps, files are whole."""

import xml.etree.ElementTree as ElementTree
from itertools import combinations

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from gnnlab.errors import GnnlabError
from gnnlab.lab import plot_style, plots
from gnnlab.profile.roofline import Ceilings

TITLE = "mm takes a third of the forward pass of symptom_gat on digits, and the next four operators another third of it"
ALT = "Horizontal bars of the share of CPU time by operator; mm leads with 31 %."
LONG = "aten::scatter_reduce with a name that is longer than any column should be"


OPERATORS = pd.DataFrame({"operator": ["mm", LONG, "mul", "add"], "value": [31.2, 22.1, 9.0, 0.4]}).assign(
    low=lambda frame: frame.value * 0.9,
    high=lambda frame: frame.value * 1.1,
    origin=["measured", "interpolated", "extrapolated", "simulated"],
)
SIZES = pd.DataFrame({"nodes": [100.0, 1000.0, 5000.0] * 2, "model": ["gat"] * 3 + ["transformer"] * 3}).assign(
    value=lambda frame: frame.nodes**1.1 / 100,
    low=lambda frame: frame.value * 0.9,
    high=lambda frame: frame.value * 1.1,
    origin=["measured"] * 5 + ["extrapolated"],
)


def bars(frame=OPERATORS, **changes):
    return plots.bars(frame, **{"y": "operator", "label": "share", "unit": "%", "title": TITLE} | changes)


def lines(frame=SIZES, **changes):
    axes = {"x": "nodes", "y": "value", "x_label": "nodes", "y_label": "forward (ms)", "hue": "model"}
    return plots.points(frame, **axes, joined=True, title=TITLE, **changes)


def roofline(count):
    rng = np.random.default_rng(0)
    points = pd.DataFrame({"label": [f"operator {i}" for i in range(count)]})
    points = points.assign(flops_per_byte=rng.uniform(0.4, 0.6, count), gflop_s=rng.uniform(3, 5, count))
    points = points.assign(low=points.gflop_s * 0.9, high=points.gflop_s * 1.1)
    return plots.roofline(points, Ceilings([(2**20, 90.0), (2**28, 12.4)], 88.0, "float32", 1, "cpu"), title=TITLE)


@pytest.fixture(scope="module")
def figures():
    other = OPERATORS.assign(model="transformer", value=5.0, low=4, high=6)
    grouped = pd.concat([OPERATORS.assign(model="gat"), other])
    return [bars(), bars(grouped, hue="model"), lines(), lines(log=False), roofline(6)]


def boxes(figure):
    """The texts that are drawn and where they are, in pixels."""
    figure.draw_without_rendering()
    renderer, axes, unseen = figure._get_renderer(), figure.axes[0], []
    for axis in (axes.xaxis, axes.yaxis):  # ticks beyond the limits exist but are not drawn
        low, high = sorted(axis.get_view_interval())
        unseen += [t for t, at in zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True) if not low <= at <= high]
    texts = [t for t in figure.findobj(matplotlib.text.Text) if t.get_visible() and t.get_text().strip()]
    extent = matplotlib.text.Text.get_window_extent  # of the words alone, not of a line that leads to them
    return [(t.get_text(), extent(t, renderer)) for t in texts if t not in unseen]


def test_no_two_texts_overlap_and_none_leaves_the_figure(figures):
    for figure in figures:
        placed = boxes(figure)
        for (one, a), (other, b) in combinations(placed, 2):
            assert not a.padded(-1).overlaps(b.padded(-1)), f"{one!r} overlaps {other!r}"
        for text, box in placed:
            assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, f"{text!r} leaves the figure"


def test_every_figure_carries_its_finding_units_and_intervals(figures):
    for figure in figures:
        axes = figure.axes[0]
        assert " ".join(figure.get_suptitle().split()) == TITLE
        assert "(" in axes.get_xlabel() + axes.get_ylabel()
        whiskers = [c for c in axes.containers if isinstance(c, matplotlib.container.ErrorbarContainer)]
        assert whiskers and all(w.has_xerr or w.has_yerr for w in whiskers)


def test_what_was_not_measured_is_hatched_or_hollow_and_starred(figures):
    axes, curves = figures[0].axes[0], figures[2].axes[0].lines
    patches = [bar for container in axes.containers if not hasattr(container, "has_xerr") for bar in container]
    assert [bool(bar.get_hatch()) for bar in patches] == [False, True, True, True]
    assert len({bar.get_hatch() for bar in patches}) == 4
    assert [text.get_text().endswith("★") for text in axes.texts] == [False, True, True, True]
    assert sum(curve.get_marker() == "*" for curve in curves if len(curve.get_xdata())) == 1


def test_series_differ_by_more_than_colour():
    looks = list(plot_style.looks("abcdefghijkl").values())
    assert len({look[:2] for look in looks}) == 12 and len({look[1:] for look in looks[:8]}) == 8


def test_a_curve_exactly_under_another_shows():
    twice = pd.concat([SIZES[:3].assign(model=name) for name in "ab"])
    below, above = (line for line in lines(twice).axes[0].lines if line.get_ls() != "None")
    assert below.get_lw() > above.get_lw() and (below.get_ls(), above.get_ls()) == ("-", "--")


def test_on_a_logarithmic_axis_ratios_grow_from_1_and_anything_else_is_points():
    frame = pd.DataFrame({"variant": ["slow", "fast"], "value": [0.5, 4.0], "low": [0.4, 3.0], "high": [0.6, 5.0]})
    ratios, times = (bars(frame, y="variant", unit=unit, log=True).axes[0] for unit in ("x", "ms"))
    assert [(bar.get_x(), bar.get_width()) for bar in ratios.patches] == [(1, -0.5), (1, 3.0)]
    assert not times.patches
    assert [list(line.get_xdata()) for line in times.lines if line.get_marker() == "o"] == [[0.5, 4.0]]


def test_sizes_over_decades_have_units_of_their_own_and_a_0_stands_at_the_edge():
    frame = pd.DataFrame({"part": ["buffers", "input", "output", "peak"], "value": [4 / 2**20, 0.0, 0.25, 214.0]})
    axes = bars(frame, y="part", label="memory", unit="MiB", log=True).axes[0]
    assert {text.get_text() for text in axes.texts} == {"4 B", "0", "256 KiB", "214 MiB"}
    assert axes.get_xlabel() == "memory" and {"1 KiB", "1 MiB"} <= {tick.get_text() for tick in axes.get_xticklabels()}


@pytest.mark.parametrize(("low", "high"), [(0.85, 2.1), (0.6, 1.8), (0.1, 160.0)])
def test_an_axis_of_ratios_has_a_tick_at_1(low, high):
    frame = pd.DataFrame({"variant": ["slow", "fast"], "value": [low, high]})
    assert 1 in bars(frame, y="variant", unit="x", log=True).axes[0].get_xticks()


def written(folder):
    record = plot_style.save(bars(), "operators", title=TITLE, alt=ALT, folder=folder)
    return [(folder / path).read_bytes() for path in (record.png, record.svg)]


def test_a_readers_matplotlibrc_changes_no_figure_and_neither_pyplot_nor_any_setting_is_touched(tmp_path):
    own = {"text.usetex": True, "savefig.bbox": "tight", "axes.grid": True, "font.size": 33, "figure.facecolor": "red"}
    usual = written(tmp_path / "usual")
    with matplotlib.rc_context(own):
        assert written(tmp_path / "own") == usual
        assert {name: matplotlib.rcParams[name] for name in own} == own
    import matplotlib.pyplot as plt

    assert plt.get_fignums() == []


def test_save_writes_both_files_at_twice_the_size_with_words_for_who_does_not_see(tmp_path):
    said = {"title": TITLE, "alt": f"{ALT} <&>", "key": True}
    record = plot_style.save(bars(), "operators", folder=tmp_path, prefix="09_", **said)
    files = {kind: f"figures/09_operators.{kind}" for kind in ("png", "svg")}
    assert record.model_dump() == {"name": "operators", **files, **said}
    with Image.open(tmp_path / record.png) as picture:
        assert picture.width == 1440
        assert picture.getpixel((2, 2))[:3] == tuple(round(255 * c) for c in to_rgb(plot_style.SURFACE))
    words = [element.text for element in ElementTree.parse(tmp_path / record.svg).iter()]
    assert TITLE in words and f"{ALT} <&>" in words


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"alt": "a bar chart"}, "alternative text"), ({"title": " "}, "a title"), ({"name": "../a"}, "file name")],
)
def test_save_refuses_what_a_reader_would_miss(tmp_path, wrong, message):
    with pytest.raises(GnnlabError, match=message):
        plot_style.save(bars(), folder=tmp_path, **{"name": "a", "title": TITLE, "alt": ALT} | wrong)
    assert not list(tmp_path.iterdir())


# ---- rows by columns

AXES = {"row": "stage", "column": "size", "panel": "unit", "label": "latency (ms)", "title": TITLE}
CELLS = [(unit, stage, size) for unit in ("a:CPU", "b:NPU") for stage in "12" for size in ("10/10", "10/20", "20/20")]
FRAME = pd.DataFrame(CELLS, columns=["unit", "stage", "size"]).assign(value=[1.0, 2.0, 3.0, 2.0, 4.0, 6.0] * 2)
FRAME = FRAME.assign(origin=["measured"] * 6 + ["simulated"] * 6)


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_fields_without_room_for_numbers_keep_their_star():
    wide = pd.concat([FRAME.assign(size=[f"{size} {i}" for size in FRAME["size"]]) for i in range(3)])
    assert [set(texts(ax)) for ax in plots.heat(wide, **AXES).axes[:2]] == [{""}, {"★"}]


def test_a_missing_value_is_an_empty_field_without_a_colour():
    for lacking in (FRAME.assign(value=FRAME["value"].where(FRAME.index != 1)), FRAME.drop(index=1)):
        fig = plots.heat(lacking, **AXES)
        assert sorted(texts(fig.axes[0])) == ["1", "2", "3", "4", "6"]
        assert fig.axes[0].collections[0].get_array().mask.sum() == 1
        assert fig.get_supxlabel() == "latency (ms); simulated ★; grey: no value"


def test_what_became_of_a_pair_stands_in_its_field_and_a_pair_without_a_row_is_empty():
    frame = pd.DataFrame({"who": [*"aabb"], "where": [*"1213"], "status": ["ok", "timeout", "failed", "ok"]})
    (ax,) = plots.marks(frame, row="who", column="where", title="a is late once").axes
    assert texts(ax) == ["✓", "time-out", "fails", "✓"]
    assert ax.collections[0].get_array().mask.tolist() == [[False, False, True], [False, True, False]]
