"""Names and sentences use the words of the field: the private ones that were replaced stay away.

Looked at are the names that code defines for others (modules, classes, functions, arguments, attributes), and prose:
docstrings, comments, other strings, Markdown. Ordinary English stays; only the private meaning goes.
"""

import ast
import io
import json
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = {  # a word of a name, as `peers` of `best_of_peers`: what to write instead
    "anew": "again, rerun",
    "artefacts?": "exported model",
    "bags?": "segment sum",
    "campaigns?": "sweep",
    "forms?": "variant (of a race), kernel (of a layer), layout (of an exported sum)",
    "ghosts?": "padding node",
    "hoisted": "cached, constant output",
    "house": "architecture",
    "ladder": "S0's optimizations, cumulative",
    "ledgers?": "claims report",
    "peers?": "alternative, baseline",
    "plant(s|ed)?": "synthetic",
    "pus?": "device",
    "rooms|doors?": "package, entry point",
    "trials?": "equivalence test",
    "zoos?": "collection, examples",
}
NAMES = {  # a whole name
    "begin|begun|ended": "start, started, finished",
    "carry_out|carried_out": "execute, run",
    "compiled_passes|one_pass|one_pass_forms": "fused, fused_layers, fused_numba",
    "end_rows|EndRows": "pushdown, DeferredRows",
    "held|held_mib|HeldBytes": "peak, kept, clamp",
    "left|need|room": "input, requires, package",
    "looked": "check, applies_to",
    "softened|gated|modulated": "softmax_aggregate, gated_sum, film_sum",
    "off_grid": "test_sizes",
    "surprise": "distance_to_claim",
    "told|said": "what it is: reason, output",
    "works_of|spans_of|whole_until": "device_steps, calls_of, last_full_stage",
    "yours|of_the_user": "user_model",
}
PROSE = {  # in sentences
    "(?<!embedding )bags?(?![- ]of[- ]words)": "segment sum (`embedding_bag` is an operator of torch)",
    "anew": "again",
    "artefacts?": "exported model",
    "campaigns?": "sweep",
    "carr(y|ies|ied) out": "execute, run",
    "ghost nodes?": "padding node",
    "hoisted": "cached until the weights change",
    "the house|house words?": "architecture",
    "ledgers?": "claims report",
    "(?<!`)peers?": "alternative, baseline",
    "planted": "synthetic, with known truth",
    "(a|each|every|this) room|rooms|doors?": "package, entry point",
    "symptom ladder": "S0's three optimizations",
    "trials?": "equivalence test",
    "what it is called with": "its inputs, its arguments",
}
STAYS = {  # names and literals with one of these words, and why
    "embedding_bag_sum": "calls torch.nn.functional.embedding_bag",
}
CODE = sorted([*ROOT.glob("gnnlab/**/*.py"), *ROOT.glob("gnnswap/**/*.py"), *ROOT.glob("notebooks/*.ipynb")])
TESTS = sorted(ROOT.glob("tests/**/*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/decisions/*.md")])


def cells(path, kind):
    return ["".join(c["source"]) for c in json.loads(path.read_text("utf-8"))["cells"] if c["cell_type"] == kind]


def sources(path):
    """The Python of a file: a module, or the cells of a notebook."""
    return cells(path, "code") if path.suffix == ".ipynb" else [path.read_text("utf-8")]


def names(source):
    """Every name that the code defines for others: modules' and classes' own, functions, arguments."""
    tree = ast.parse(source)
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    for statement in (statement for body in bodies for statement in body):
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        yield from (target.id for target in targets if isinstance(target, ast.Name))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg


def prose(path):
    """Comments, strings and Markdown."""
    if path.suffix == ".md":
        yield path.read_text("utf-8")
    elif path.suffix == ".ipynb":
        yield from cells(path, "markdown")
    for source in [] if path.suffix == ".md" else sources(path):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)):
                yield token.string


def private(name, whole=True):
    """What to write in place of a name, also where it is private as a `whole`; nothing where it is the field's."""
    inside = [instead for word, instead in PARTS.items() if re.search(rf"(?:^|_)(?:{word})(?:_|$)", name.lower())]
    alone = [instead for word, instead in NAMES.items() if whole and re.fullmatch(word, name)]
    return [] if name in STAYS else inside + alone


def test_names_are_the_fields():
    found = []
    for path in CODE:
        module = path.suffix == ".py"  # the variables of a notebook are its own
        defined = {path.stem, *(name for source in sources(path) for name in names(source))}
        found += [
            f"{path.relative_to(ROOT)}: {name}: {instead}" for name in defined for instead in private(name, module)
        ]
    assert not found, "\n".join(sorted(found))


def test_names_of_tests_are_the_fields():
    found = []
    for path in TESTS:
        tests = [path.stem, *(name for name in names(path.read_text("utf-8")) if name.startswith("test_"))]
        found += [f"{path.relative_to(ROOT)}: {name}: {instead}" for name in tests for instead in private(name, False)]
    assert not found, "\n".join(found)


def test_sentences_are_the_fields():
    found = []
    for path in [*CODE, *PAGES]:
        for text in (re.sub(r"\s+", " ", each) for each in prose(path) if each.strip("\"'") not in STAYS):
            for word, instead in PROSE.items():
                for match in re.finditer(rf"(?<![\w.])(?:{word})(?!\w)", text, re.I):
                    around = text[max(0, match.start() - 40) : match.end() + 40]
                    found.append(f"{path.relative_to(ROOT)}: ...{around}...: {instead}")
    assert not found, "\n".join(found)
