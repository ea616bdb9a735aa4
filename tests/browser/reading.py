"""What a reader of a page would stumble over, by the browser itself."""

from axe_playwright_python.sync_playwright import Axe

VIEWS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]  # width of the window, colours
_OVERFLOW = """() => document.documentElement.scrollWidth - document.documentElement.clientWidth"""
_CUT = """() => {
  // what is wider than its box, where no box around it scrolls and takes the focus
  const reachable = (node) => {
    for (let box = node; box && box !== document.body; box = box.parentElement) {
      if (/auto|scroll/.test(getComputedStyle(box).overflowX)) return box.tabIndex === 0;
    }
    return false;
  };
  return [...document.querySelectorAll("table, pre, img, svg, .wide")]
    .filter((node) => node.checkVisibility() && node.getBoundingClientRect().width > 0)
    .filter((node) => {
      const clips = /auto|scroll|hidden/.test(getComputedStyle(node).overflowX);
      const scrolls = clips && node.scrollWidth > node.clientWidth + 1;
      const parent = node.parentElement;
      const leaves = node.getBoundingClientRect().right > parent.getBoundingClientRect().right + 1;
      return (scrolls || leaves) && !reachable(node);
    })
    .map((node) => `${node.tagName.toLowerCase()}: ${node.textContent.trim().slice(0, 60) || node.alt}`);
}"""


def faults(page):
    """A line for each: overflow of the page, something cut, axe's, what it asked for."""
    lines = list(page.heard)
    if (over := page.evaluate(_OVERFLOW)) > 0:
        lines.append(f"the page is {over} pixels wider than the window")
    lines += [f"cut, with no way to the rest: {what}" for what in page.evaluate(_CUT)]
    for violation in Axe().run(page).response["violations"]:
        places = [node["html"][:120] for node in violation["nodes"]]
        lines.append(f"axe {violation['id']} ({violation['impact']}), {len(places)} times: {places[0]}")
    return lines
