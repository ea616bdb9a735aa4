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


def test_the_keyboard_reaches_the_content_and_opens_the_code(site, opened):
    page = opened(site / "01_profile_bottlenecks.html", 390)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.matches('.skip')")
    assert page.locator("details.code").count() > 0 == page.locator("details.code[open]").count()
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('details.code > summary')"):
            break
    page.keyboard.press("Enter")
    assert page.locator("details.code[open]").count() == 1


def test_on_a_phone_a_figure_is_as_wide_as_the_page(site, opened):
    page = opened(site / "01_profile_bottlenecks.html", 390)
    widths = page.locator("figure img").evaluate_all("all => all.map(img => img.getBoundingClientRect().width)")
    assert widths and all(300 < width <= 390 for width in widths)
