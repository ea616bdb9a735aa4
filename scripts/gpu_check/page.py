"""The Markdown page of a run, from gpu_check.json alone. Every number and every sentence comes from a row."""

from __future__ import annotations

from pathlib import Path

from .rows import (
    ATTENTION,
    BASELINES,
    DIFFERENCE,
    LARGE,
    LAYERS,
    MODES,
    PARTS,
    Size,
    bytes_moved,
    gain,
    geometric_mean,
    load,
)

NOT = "not measured"
ITEMSIZE = {"float32": 4, "bfloat16": 2}
READING = """Times are medians of rounds in which every variant is called in turn, with the 95 % interval of the median
in brackets. CSR is PyG with a sparse adjacency of torch, which it multiplies by cuSPARSE on a GPU. "over best" takes
the fastest of PyG, EdgeIndex, CSR and torch.compile anew in every round, which favours them. Training is a forward pass
with the gradients of x and of all parameters. Peak memory is what torch's allocator gave above what was there."""
BYTES = """The floor is the bytes that a layer has to move, over the rate of the copy above: features and edges read
once, outputs written once, and what an edge gathers read once for each edge. Matrix products and parameters count
nothing. A time below the floor means that gathered rows came from a cache."""


LABELS = {
    "tf32": "TF32 in float32 products",
    "memory_gib": "memory, GiB",
    "l2_mib": "L2 cache, MiB",
    "copy_mib": "copied at once, MiB",
    "copy_tb_s": "copy, bytes read and written, TB/s",
    "product_side": "side of the matrices",
}


def write_page(folder: Path) -> str:
    """Write index.md beside gpu_check.json; what it says."""
    text = page(load(folder))
    (folder / "index.md").write_text(text, encoding="utf-8")
    return text


def page(results: dict) -> str:
    facts = results["facts"]
    title = f"# {facts.get('device', 'device not known')}, torch {facts.get('torch', 'not known')}"
    sections = [
        title,
        origin(results),
        "## Summary",
        summary(results),
        "## Machine",
        machine(facts),
        "## Tests that need a GPU",
        tests_line(results["tests"]),
        "## Are the results right?",
        correctness(results),
        "## How fast?",
        READING,
        *times(results),
        "## What swap chose",
        chosen(results),
        "## How far from the rate of a copy?",
        BYTES,
        *floors(results),
        "## CUDA graphs",
        captures(results),
        "## Notebooks",
        notebooks(results),
        "## What was not measured",
        missed(results),
    ]
    return "\n\n".join(sections) + "\n"


# ---- numbers and tables ----------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Three digits; whole numbers from a thousand on."""
    if value is None:
        return NOT
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def with_interval(found: dict | None, unit: str = "") -> str:
    if not found or found.get("median") is None:
        return NOT
    spread = "" if found["low"] is None else f" [{number(found['low'])}, {number(found['high'])}]"
    return f"{number(found['median'])}{unit}{spread}"


def table(header: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return f"{NOT.capitalize()}."
    cell = lambda text: str(text).replace("|", "\\|").replace("\n", " ")  # noqa: E731
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def cells(results: dict) -> dict[tuple[str, str, str, str], dict[str, dict]]:
    """Rows of times by (dtype, size, layer, mode) and variant: those with torch.compile in the same rounds, if any."""
    found: dict = {}
    for part in ("kernels", "compiled", "large"):
        these: dict = {}
        for row in (row for row in results["times"] if row["part"] == part):
            key = row["dtype"], row["size"], row["layer"], row["mode"]
            these.setdefault(key, {})[row["variant"]] = row
        for key, variants in these.items():
            if key not in found or "median" in variants.get("swap", {}):
                found[key] = variants
    return found


def counts(row: dict) -> bool:
    """Was it timed, and does it compute what PyG as called computes (where that ran)? In bfloat16 PyG is no measure of
    that: its sums at hubs, and the degrees that it counts, are off by more than anything that could go wrong."""
    difference = row.get("difference", 0.0)
    if row["dtype"] != "float32":
        return "median" in row and difference is not None
    return "median" in row and difference is not None and difference <= DIFFERENCE


def over_pyg(variants: dict[str, dict]) -> dict | None:
    rows = [row for name, row in variants.items() if name == "PyG" and counts(row)]
    return gain(variants.get("swap", {}), rows)


def over_best(variants: dict[str, dict]) -> dict | None:
    return gain(variants.get("swap", {}), baselines(variants))


def baselines(variants: dict[str, dict]) -> list[dict]:
    return [row for name, row in variants.items() if name in BASELINES and counts(row)]


def best_name(variants: dict[str, dict]) -> str:
    rows = baselines(variants)
    return min(rows, key=lambda row: row["median"])["variant"] if rows else NOT


def mean_of(ratios: list[dict | None]) -> str:
    """Geometric mean, and of how many."""
    medians = [one["median"] for one in ratios if one]
    return f"{geometric_mean(medians):.2f}x ({len(medians)} cells)" if medians else NOT


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def wrong(results: dict) -> list[str]:
    """A line for everything that is wrong: results beyond their tolerance, failed tests, parts that broke."""
    lines = []
    for row in results["checks"]:
        if row.get("wrong"):
            off = "is not finite or has no counterpart" if row["error"] is None else f"is off by {row['error']:.1e}"
            allowed = "" if row["allowed"] is None else f", allowed is {row['allowed']:.1e}"
            lines.append(f"{row['layer']} in {row['dtype']} at {row['size']}: {row['of']} {off}{allowed}")
    for row in results["times"]:
        if row["variant"] == "swap" and row.get("why", "out of memory") != "out of memory":
            lines.append(f"{row['layer']} in {row['dtype']} at {row['size']}, {row['mode']}: {row['why']}")
        elif row["variant"] == "swap" and "median" in row and not counts(row):
            lines.append(f"{row['layer']} in {row['dtype']} at {row['size']}: the output differs from PyG's as called")
    for row in results["captured"]:
        if row["variant"] == "swap" and row.get("wrong"):
            lines.append(f"{row['layer']} at {row['size']}, {row['mode']}, captured: {row['of']} is off")
    failures = results["tests"].get("failures", [])
    lines += [f"test failed: {one}" for one in failures]
    if results["tests"].get("status") not in (None, 0, 5) and not failures:
        lines.append(f"the tests ended with status {results['tests']['status']}: {last_line(results['tests'])}")
    lines += [
        f"notebook {row['notebook']}: status {row['status']}: {row['said']}"
        for row in results["notebooks"]
        if row["status"]
    ]
    return lines + [f"{row['what']}: {row['why']}" for row in results["problems"]]


# ---- sections --------------------------------------------------------------------------------------------------------


def origin(results: dict) -> str:
    settings, facts = results["settings"], results["facts"]
    text = f"Measured by `python scripts/gpu_check.py` on {settings['date']}, {facts.get('code', 'code not known')}. "
    parts = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in results["seconds"].items())
    text += f"Budget {settings['budget_s']:.0f} s; spent: {parts or 'nothing yet'}. "
    if settings["tiny"]:
        text += "**A tiny run on a CPU, which tries the script out: its times say nothing about a GPU.** "
    if not results["finished"]:
        text += "**This run did not finish**; what follows is what it had measured. "
    sizes = {name: Size(*shape) for name, shape in settings["sizes"].items()}
    named = "; ".join(f"{name} {s.nodes:,} / {s.edges:,}, {s.inputs} -> {s.outputs}" for name, s in sizes.items())
    text += f"Graphs are drawn (no edge twice, in-degrees fall as a power), nodes / edges, features: {named}. "
    return text + "They have the sizes of known data sets, and are not those."


def summary(results: dict) -> str:
    found, bad = cells(results), wrong(results)
    compared = [row for row in results["checks"] if "wrong" in row]
    right = sum(not row["wrong"] for row in compared)
    same = sum(row["bit_equal"] for row in compared)
    lines = ["- Nothing that was measured is wrong." if not bad else f"- **{len(bad)} wrong:** " + "; ".join(bad) + "."]
    lines.append(
        f"- {right} of {len(compared)} layers on graphs agree with PyG in float64, outputs and all gradients; "
        f"{same} are equal bit by bit in two runs."
        if compared
        else f"- Agreement with PyG in float64: {NOT}."
    )
    large = [size for size in LARGE if any(key[1] == size for key in found)] or LARGE
    groups = {
        f"float32, {' and '.join(large)}": lambda key: key[0] == "float32" and key[1] in LARGE,
        "float32, all sizes": lambda key: key[0] == "float32",
        "bfloat16": lambda key: key[0] == "bfloat16",
    }
    rows = []
    for name, belongs in groups.items():
        for mode in MODES:
            these = [variants for key, variants in found.items() if belongs(key) and key[3] == mode]
            means = [mean_of([ratio(one) for one in these]) for ratio in (over_pyg, over_best)]
            rows.append([name, mode, *means, memory_ratio(these)])
    ratios = {key: one for key, variants in found.items() if (one := over_best(variants))}
    if ratios:
        key = min(ratios, key=lambda one: ratios[one]["median"])
        dtype, size, layer, mode = key
        least = with_interval(ratios[key], "x")
        lines.append(
            f"- Smallest ratio over the best: {least}, {layer} at {size}, {mode}, {dtype}, {best_name(found[key])}."
        )
    alone = [key for key, variants in found.items() if "median" in variants.get("swap", {}) and not over_pyg(variants)]
    if alone:
        names = "; ".join(f"{layer} at {size}, {mode}, {dtype}" for dtype, size, layer, mode in alone)
        lines.append(f"- PyG as called gave no time where swap's model did: {names}.")
    header = ["geometric mean of", "", "over PyG as called", "over best", "peak memory of attention, PyG over swap"]
    return "\n".join(lines) + "\n\n" + table(header, rows)


def memory_ratio(these: list[dict[str, dict]]) -> str:
    """Geometric mean of peak memory, PyG as called over swap's model, of attention layers."""
    ratios = []
    for variants in these:
        own, fast = variants.get("PyG", {}).get("peak_mib"), variants.get("swap", {}).get("peak_mib")
        if own and fast and variants["swap"]["layer"] in ATTENTION:
            ratios.append({"median": own / fast})
    return mean_of(ratios)


def machine(facts: dict) -> str:
    rows = []
    for name, value in facts.items():
        if isinstance(value, dict):
            value = f"{with_interval(value)}, {value['n']} samples"
        rows.append([LABELS.get(name, name.replace("_", " ")), value])
    return table(["", ""], rows)


def tests_line(row: dict) -> str:
    if not row:
        return f"{NOT.capitalize()}."
    found = ", ".join(f"{n} {what}" for what, n in row["counts"].items()) or last_line(row)
    stopped = f"; stopped at the limit of {row['limit_s']:.0f} s" if row["status"] is None else ""
    failures = "".join(f"\n- {one}" for one in row["failures"])
    return f"`{row['command']}`: {found}{stopped}." + ("\n" + failures if failures else "")


def last_line(row: dict) -> str:
    return row["end"][-1] if row["end"] else "nothing was printed"


def correctness(results: dict) -> str:
    rows = []
    for row in results["checks"]:
        start = [row["layer"], row["size"], row["dtype"]]
        if "wrong" not in row:
            rows.append([*start, row.get("why", NOT)])
            continue
        error = "not finite or missing" if row["error"] is None else f"{row['error']:.1e}"
        names = "allowed", "pyg_error", "output_error", "pyg_output_error"
        numbers = [f"{row[name]:.1e}" if row.get(name) is not None else NOT for name in names]
        verdict = "**wrong**" if row["wrong"] else "right"
        verdict += f" but for {row['rows_off']} rows" if row.get("rows_off") else ""
        nodes = f"{row['nodes_compared']:,}"
        rows.append([*start, verdict, error, row["of"], *numbers, nodes, "yes" if row["bit_equal"] else "no"])
    header = [
        "layer",
        "size",
        "type",
        "",
        "error",
        "of",
        "allowed",
        "PyG's own error",
        "error of the output",
        "PyG's own",
    ]
    header += ["nodes", "two runs bit-equal"]
    rows = [row + [""] * (len(header) - len(row)) for row in rows]
    text = "Errors against PyG in float64, relative to the largest number of a tensor: the tensor that is furthest off."
    return text + "\n\n" + table(header, rows)


def times(results: dict) -> list[str]:
    """A heading and a table for each size and type."""
    found, sections = cells(results), []
    for dtype, size in dict.fromkeys((key[0], key[1]) for key in found):
        rows = []
        for layer in LAYERS:
            for mode in MODES:
                variants = found.get((dtype, size, layer, mode))
                if variants:
                    rows.append([layer, mode, *time_cells(variants)])
        header = ["layer", "", *(f"{name}, ms" for name in (*BASELINES, "swap")), "over PyG", "over best", "best"]
        header += ["peak MiB, PyG", "peak MiB, swap"]
        sections += [f"### {size}, {dtype}", table(header, rows)]
    return sections or [f"{NOT.capitalize()}."]


def time_cells(variants: dict[str, dict]) -> list[str]:
    times = [time_cell(variants.get(name)) for name in (*BASELINES, "swap")]
    ratios = [with_interval(ratio(variants), "x") for ratio in (over_pyg, over_best)]
    peaks = [number(variants.get(name, {}).get("peak_mib")) for name in ("PyG", "swap")]
    return [*times, *ratios, best_name(variants), *peaks]


def time_cell(row: dict | None) -> str:
    if row is None:
        return NOT
    if "median" not in row:
        return row.get("why", NOT)
    return with_interval(row) + ("" if counts(row) else " (another result: does not count)")


def chosen(results: dict) -> str:
    rows = []
    for row in results["checks"]:
        how = "; ".join(one[2] for one in row["replaced"]) or "kept: " + "; ".join(one[2] for one in row["kept"])
        rows.append([row["layer"], row["size"], row["dtype"], how, number(row["swap_s"]), row["note"]])
    return table(["layer", "size", "type", "what runs", "swap took, s", ""], rows)


def floors(results: dict) -> list[str]:
    rate = results["facts"].get("copy_tb_s")
    if not rate:
        return [f"The copy rate was {NOT}."]
    rows = []
    for (dtype, size, layer, mode), variants in cells(results).items():
        shape = Size(*results["settings"]["sizes"][size])
        nbytes = bytes_moved(layer, shape, mode, ITEMSIZE[dtype])
        floor = nbytes / (rate["median"] * 1e12) * 1e3
        best = min((row["median"] for row in baselines(variants)), default=None)
        taken = [variants.get("PyG", {}).get("median"), best, variants.get("swap", {}).get("median")]
        over = [NOT if one is None else f"{one / floor:.3g}x" for one in taken]
        rows.append([layer, size, dtype, mode, number(nbytes / 1e6), number(floor), *over])
    header = ["layer", "size", "type", "", "MB", "floor, ms", "PyG / floor", "best / floor", "swap / floor"]
    return [table(header, rows)]


def captures(results: dict) -> str:
    rows = []
    for row in results["captured"]:
        start = [row["layer"], row["size"], row["mode"], row["variant"], with_interval(row)]
        if "captured" not in row:
            rows.append([*start, row.get("why", NOT), "", ""])
            continue
        equal = "bit by bit" if row["bit_equal"] else f"within {row['error']:.1e}" if not row["wrong"] else "**no**"
        rows.append([*start, with_interval(row["captured"]), with_interval(row["gain"], "x"), equal])
    header = ["layer", "size", "", "variant", "kernel by kernel, ms", "captured, ms", "gain", "equal on other features"]
    return table(header, rows)


def notebooks(results: dict) -> str:
    rows = []
    for row in results["notebooks"]:
        ended = "stopped at the end of the budget" if row["status"] is None else f"status {row['status']}"
        rows.append([row["notebook"], ended, number(row["seconds"]), row["said"]])
    return table(["notebook", "", "s", "last line"], rows)


def missed(results: dict) -> str:
    asked = results["settings"]["parts"]
    rows = [row["what"] for row in results["missed"]]
    if results["finished"]:
        rows += [f"{name}: not asked for" for name in PARTS if name not in asked]
    return "\n".join(f"- {one}" for one in rows) or "Nothing was left out."
