"""Every page in a browser: nothing is cut, axe-core finds no violation, and the keyboard reaches all."""

import pytest
import small_site
from reading import VIEWS, faults


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


def test_the_keyboard_filters_and_sorts_the_ledger(site, opened):
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
    press_until(page, 'section:has(#claims) [data-key="measured"] .sort')
    for direction, reverse in (("ascending", False), ("descending", True)):
        page.keyboard.press("Enter")
        assert page.locator('section:has(#claims) [data-key="measured"]').get_attribute("aria-sort") == direction
        keys = rows.locator("td.measured").evaluate_all("cells => cells.map(cell => cell.dataset.sort)")
        numbers = [float(text) if text else float("-inf") for text in keys]
        assert numbers == sorted(numbers, reverse=reverse) and len(set(numbers)) > 2


def test_the_keyboard_opens_the_code_and_only_what_scrolls_takes_the_focus(site, opened):
    page = opened(site / "01_profile_bottlenecks.html")
    assert page.locator("details.code[open]").count() == 0
    press_until(page, ".switch")
    page.keyboard.press("Enter")
    assert page.locator("details.code:not([open])").count() == 0 < page.locator("details.code").count()
    # the page looks at sizes once a frame
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    fits = "boxes => boxes.filter(box => box.checkVisibility() && box.scrollWidth <= box.clientWidth).length"
    assert page.locator('[tabindex="0"]').evaluate_all(fits) == 0 < page.locator('[tabindex="-1"]').evaluate_all(fits)
