"""Every page in a browser: nothing is cut, axe-core finds no violation, and the keyboard reaches all."""

import pytest
import small_site
from reading import NEXT_FRAME, VIEWS, faults


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "quick"
    small_site.write(folder)
    return folder


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
@pytest.mark.parametrize("name", ["index.html", "01_profile_bottlenecks.html"])
def test_nothing_is_cut_and_axe_finds_nothing(site, opened, name, width, scheme):
    assert faults(opened(site / name, width, scheme)) == []


def press_until(page, selector, most=80):
    """Move the focus by the tabulator until it is on `selector`."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"the tabulator does not lead to {selector} in {most} steps")


def test_the_keyboard_filters_the_claims_by_verdict(site, opened):
    page = opened(site / "index.html")
    press_until(page, ".skip", most=1)
    rows = page.locator("section:has(#claims) tbody tr:visible")
    total = rows.count()
    press_until(page, 'section:has(#claims) .chip[data-verdict="refuted"]')
    page.keyboard.press("Enter")
    assert 0 < rows.count() < total
    assert set(rows.evaluate_all("rows => rows.map(row => row.dataset.verdict)")) == {"refuted"}
    page.keyboard.press("Space")
    assert rows.count() == total


def test_the_keyboard_opens_the_code_and_reaches_only_boxes_that_scroll(site, opened):
    page = opened(site / "01_profile_bottlenecks.html", 390)
    assert page.locator("details.code[open]").count() == 0
    press_until(page, ".switch")
    page.keyboard.press("Enter")
    assert page.locator("details.code:not([open])").count() == 0 < page.locator("details.code").count()
    page.evaluate(NEXT_FRAME)
    fits = "boxes => boxes.filter(box => box.scrollWidth <= box.clientWidth).length"
    boxes = page.locator('[tabindex="0"]')
    assert boxes.evaluate_all(fits) == 0 < boxes.count()


def test_on_a_phone_a_figure_is_as_wide_as_the_page(site, opened):
    page = opened(site / "01_profile_bottlenecks.html", 390)
    widths = page.locator("figure img").evaluate_all("all => all.map(img => img.getBoundingClientRect().width)")
    assert widths and all(300 < width <= 390 for width in widths)
