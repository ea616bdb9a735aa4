"""A table of categorical columns and what is to be predicted from them, and how well it was.

    table = load("rows.csv", fields=["drug", "gene"], targets=["outcome"])
    training, validation = table.split(0.25, seed=0)
    synthetic(20_000).best_score                     # long-tailed categories, drawn effects, and a truth that is known

A file is `.csv`, `.tsv` or `.parquet`, as pandas reads them; nothing in it is ever unpickled. What was read, and what
had to be filled in or left out, `FeatureTable.read_as` says in one line.
"""

from __future__ import annotations

import gzip
import itertools
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import expit, softmax
from torch import Tensor

from gnnlab.errors import GnnlabError, meant, whole_numbers
from gnnlab.workloads.delimited import uneven
from gnnswap.errors import one_line, quoted

SEPARATOR = ";"  # of the labels in one cell
ROWS_A_CLASS = 2  # fewer rows a class on average: the column is text, an identifier or a quantity
# among numbers; else they are categories
MISSING = ("NA", "#N/A", "N/A", "n/a", "<NA>", "NaN", "nan", "NULL", "null", "None")


@dataclass(frozen=True)
class Target:
    """One thing to predict.

    `kind` "classes": one of `size` classes, int64 (R,); "labels": `size` independent yes/no labels, float32 (R, size).
    """

    name: str
    kind: str  # classes|labels
    size: int


def scores(outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor], specs: Sequence[Target]) -> dict[str, float]:
    """A metric in 0..1 by target: accuracy for classes, mean area under the ROC curve (AUROC) for labels.

    `outputs` are logits or probabilities (R, size), `targets` (R,) classes or (R, size) labels, each by target name.
    Labels of which only one answer occurs have no AUROC, nor has a target of such labels alone.
    Raises `GnnlabError` where an output is nan.
    """
    from sklearn.metrics import roc_auc_score  # over a second to load, and classes need none

    by_target = {}
    for spec in specs:
        output, wanted = outputs[spec.name].detach().float().cpu(), targets[spec.name].cpu()
        if output.isnan().any():
            raise GnnlabError(f"target {spec.name}: outputs are nan, which have no score; lower the learning rate")
        if spec.kind == "classes":
            by_target[spec.name] = float((output.argmax(dim=1) == wanted).double().mean())
        elif (varied := (wanted != wanted[0]).any(dim=0)).any():
            by_target[spec.name] = float(roc_auc_score(wanted[:, varied].numpy(), output[:, varied].numpy()))
    return by_target


@dataclass(frozen=True)
class FeatureTable:
    """R rows of M categorical fields and T targets."""

    fields: Tensor  # (R, M) int64; column m holds 0..cardinalities[m]-1; in a user's table 0 is missing
    targets: Mapping[str, Tensor]  # by Target.name; shapes and types as in Target
    specs: tuple[Target, ...]
    cardinalities: tuple[int, ...]
    field_names: tuple[str, ...]
    truth: Mapping[str, Tensor] | None = field(default=None, repr=False)  # (R, size) true probabilities, where known
    notes: tuple[str, ...] = ()  # how the table was read, what was left out or filled in, a sentence each

    def __len__(self) -> int:
        return self.fields.shape[0]

    @property
    def read_as(self) -> str:
        """One line: rows, fields with the categories that occur, targets with their sizes, and the notes."""
        columns = zip(self.field_names, self.fields.unbind(1), strict=True)
        fields = ", ".join(f"{name} ({len(column.unique()):,} categories)" for name, column in columns)
        targets = ", ".join(f"{spec.name} ({spec.size} {spec.kind})" for spec in self.specs)
        return ". ".join([f"{len(self):,} rows. Fields: {fields}. Targets: {targets}", *self.notes]) + "."

    def __str__(self) -> str:
        return self.read_as

    @property
    def best_score(self) -> dict[str, float] | None:
        """What the true probabilities score on these rows, by target: no model does better but by luck.

        None where the truth is not known; a target that has no AUROC is left out.
        """
        return None if self.truth is None else scores(self.truth, self.targets, self.specs)

    def rows(self, index: Tensor) -> FeatureTable:
        """The table of these rows; `index` int64 (K,)."""
        return replace(
            self,
            fields=self.fields[index],
            targets={name: column[index] for name, column in self.targets.items()},
            truth=None if self.truth is None else {name: p[index] for name, p in self.truth.items()},
        )

    def split(self, validation: float, seed: int) -> tuple[FeatureTable, FeatureTable]:
        """Rows to train on, and the share `validation` (above 0, below 1) of the rows, drawn by `seed`, to validate."""
        count = round(len(self) * validation)
        if not 0 < count < len(self):
            raise GnnlabError(f"{len(self)} rows cannot be split: {validation} of them for validation are {count} rows")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        return self.rows(order[count:].sort().values), self.rows(order[:count].sort().values)


# ---- from a file ----------------------------------------------------------------------------------------------------


def load(path: str | Path, *, fields: Sequence[str], targets: Sequence[str]) -> FeatureTable:
    """The table in the file; `fields` and `targets` are names of columns, of which text and integers are taken.

    Categories and classes are numbered in ascending order; index 0 of a field is for missing values. A target with a
    `;` in any cell is multi-label: `pain;rash` are two labels, a separator alone is none. Rows without a target and
    fields with one value only are left out, and `notes` says so.
    Raises `GnnlabError`: no such file or column, a file of another kind, a target of one class only or of hardly any
    repeated value.
    """
    path = Path(path)
    for what, names in {"fields": fields, "targets": targets}.items():
        if isinstance(names, str) or not names:
            raise GnnlabError(f"{path}: {what} must name one column or more, as [name, name], got {quoted(names)}")
    if len({*fields, *targets}) < len(fields) + len(targets):
        raise GnnlabError(f"{path}: a column is asked for twice; name each field and target once")
    columns = read_columns(path, [*fields, *targets])
    rows, notes = columns.dropna(subset=list(targets)), []
    if left_out := len(columns) - len(rows):
        notes.append(f"{left_out} of {len(columns)} rows are left out: a target is missing")
    answers = {name: _target(path, rows[name]) for name in targets}
    specs = tuple(spec for spec, _ in answers.values())
    places, sizes = {}, {}
    for name in fields:
        place, values = _places(rows[name])
        missing = int((place < 0).sum())
        if len(values) + bool(missing) < 2:
            notes.append(f"field {name} is left out: it holds one value only")
            continue
        if missing:
            notes.append(f"field {name}: {missing} of {len(rows)} values missing, read as index 0")
        places[name], sizes[name] = place + 1, len(values) + 1
    if not places:
        raise GnnlabError(f"{path}: every field holds one value only ({', '.join(fields)}); choose fields that vary")
    labels = (spec for spec in specs if spec.kind == "labels")
    notes += [f"target {spec.name} is read as {spec.size} labels separated by {SEPARATOR!r}" for spec in labels]
    index = torch.from_numpy(np.stack(list(places.values()), axis=1))
    by_target = {name: answer for name, (_, answer) in answers.items()}
    return FeatureTable(index, by_target, specs, tuple(sizes.values()), tuple(places), notes=tuple(notes))


def _target(path: Path, column: pd.Series) -> tuple[Target, Tensor]:
    """What a column asks for, and its answers: classes (R,) or labels (R, size)."""
    kind = "labels" if column.str.contains(SEPARATOR, regex=False).any() else "classes"
    if kind == "labels":
        dummies = column.str.replace(rf"\s*{SEPARATOR}\s*", SEPARATOR, regex=True).str.get_dummies(SEPARATOR)
        values = _ascending([label for label in dummies if label])  # a separator alone is no label
        answers = torch.tensor(dummies[values].to_numpy(dtype=np.float32))
    else:
        places, values = _places(column)
        answers = torch.from_numpy(places)
    what = f"{path}: target {column.name!r}"
    if not (answers != answers[:1]).any():
        raise GnnlabError(f"{what} holds fewer than two different answers in {len(column)} rows; 2 are needed")
    if len(values) > max(2, len(column) / ROWS_A_CLASS):
        raise GnnlabError(
            f"{what} looks like text, an identifier or a quantity: {len(values)} different {kind} in {len(column)} "
            f"rows, {ROWS_A_CLASS} rows for each are needed on average; cut a quantity into ranges first (pandas.qcut)"
        )
    return Target(column.name, kind, len(values)), answers


def _places(column: pd.Series) -> tuple[np.ndarray, list[str]]:
    """The place of each row's value (R,) int64 among the values in ascending order, -1 where it is missing."""
    values = _ascending(column.dropna().unique())
    return pd.Categorical(column, categories=values).codes.astype(np.int64), values


def _ascending(values: Sequence[str]) -> list[str]:
    """Numbers by their size, anything else as text."""
    try:
        return sorted(values, key=lambda value: (float(value), value))
    except ValueError:
        return sorted(values)


def read_columns(path: Path, names: Sequence[str]) -> pd.DataFrame:
    """The named columns as stripped text, one row a row of the file.

    Missing are null and empty cells, and words such as nan in a column of a text file that holds numbers otherwise.
    Raises `GnnlabError` in one line that begins with the path.
    """
    frame = read_file(path, READERS)
    for name in names:
        if name not in frame:
            there = quoted(", ".join(frame))
            raise GnnlabError(f"{path}: there is no column {name!r}{meant(name, frame)}; there are {there}")
        if not frame.columns.is_unique and list(frame).count(name) > 1:
            raise GnnlabError(f"{path}: there are two columns {name!r}; rename one")
    if frame.empty:
        raise GnnlabError(f"{path}: the table has no rows; at least one is needed")
    text = frame[list(names)].astype("string").apply(lambda column: column.str.strip())
    text = text.mask(text == "")
    if path.suffix.lower() == ".parquet":  # has null for what is missing
        return text
    return text.apply(lambda column: column.mask(column.isin(MISSING)) if _of_numbers(column) else column)


def _of_numbers(column: pd.Series) -> bool:
    given = column[~column.isin(MISSING)].dropna()
    return len(given) > 0 and pd.to_numeric(given, errors="coerce").notna().all()


def _read_text(path: Path) -> pd.DataFrame:
    """Cells as text; the header tells what separates them."""
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    if kind not in SEPARATORS:
        raise GnnlabError(f"of packed files tables are read; unpack it with gunzip {path.name}")
    with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
        header = file.readline()
    header = re.sub('"[^"]*"', "", header)  # a name may hold a separator
    separator = next((each for each in (SEPARATORS[kind], "\t", ";", ",", "|") if each in header), ",")
    try:
        rows = pd.read_csv(path, sep=separator, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except pd.errors.ParserError as error:
        raise GnnlabError(uneven(error)) from error
    except pd.errors.EmptyDataError as error:
        raise GnnlabError("it is empty; names of columns are needed, and rows") from error
    again = (rows[1:] == rows.iloc[0]).all(axis=1)
    if again.any() and rows.shape[1] > 1:
        raise GnnlabError(f"row {again.idxmax() + 1} is the header again; delete it, and what does not belong there")
    for _, column in rows.items():
        broken = column[column.str.contains("\n", regex=False, na=False)]
        inner = broken.str.split("\n").str[1:].explode().str.count(re.escape(separator))
        if (inner == rows.shape[1] - 1).any():
            raise GnnlabError(
                f"{quoted(broken.iloc[0])} may be one cell, or rows within a quotation mark that is left open; delete "
                "the mark, or the line breaks"
            )
    return rows[1:].reset_index(drop=True).set_axis(rows.iloc[0].fillna("").str.strip(), axis=1)


def _read_parquet(path: Path) -> pd.DataFrame:
    frame = pd.read_parquet(path, dtype_backend="numpy_nullable")
    return (frame if frame.index.name is None else frame.reset_index()).rename(columns=str)


def read_file(path: Path, readers: Mapping[str, tuple[Callable[[Path], Any], str]]) -> Any:
    """What the reader of a file's suffix makes of it. `readers`: the reader of each suffix, and what it can read.

    Raises `GnnlabError`: no such file, another suffix, or what the library that reads it says of it, in one line.
    """
    path, suffix = path.expanduser(), path.suffix.lower()
    if re.match("[a-z]+:/", str(path)):
        raise GnnlabError(f"{path}: an address; download the file first and name its path")
    if not path.is_file():
        if path.exists():
            raise GnnlabError(f"{path}: {'a folder' if path.is_dir() else 'no plain file'}; name a file")
        raise GnnlabError(f"{path}: there is no such file; check the path (the current folder is {Path.cwd()})")
    if suffix not in readers:
        raise GnnlabError(f"{path}: a file that ends in {', '.join(readers)} is needed")
    with path.open("rb") as file:
        begin = file.read(256)
    for pattern, where, what in BEGINNINGS:
        if suffix not in where and re.match(pattern, begin, re.IGNORECASE):
            raise GnnlabError(f"{path}: it is {what}")
    reader, allowed = readers[suffix]
    try:
        return reader(path)
    except GnnlabError as error:  # says what to do
        raise GnnlabError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise GnnlabError(f"{path}: it is not text in UTF-8; save it so (in Excel: CSV UTF-8)") from error
    except (EOFError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error) as error:
        raise GnnlabError(f"{path}: it is cut off or damaged; download it again, or write it again") from error
    except Exception as error:
        raise GnnlabError(f"{path}: {one_line(error)}; needed: {allowed}") from error


SEPARATORS = {".csv": ",", ".tsv": "\t"}
READERS: dict[str, tuple[Callable[[Path], pd.DataFrame], str]] = {
    **dict.fromkeys((*SEPARATORS, ".gz"), (_read_text, "a table in UTF-8, names of columns first")),
    ".parquet": (_read_parquet, "a Parquet file"),
}
# how files begin, the suffixes where that is right, and what else it is
BEGINNINGS = (
    (rb"version https://git-lfs", (), "a pointer of Git LFS; get the file itself: git lfs pull"),
    (rb"\s*<(!doctype )?html", (), "a web page; download the file itself"),
    (rb"PK\x03\x04", (".npz", ".pt"), "a zip archive or an Excel file; unpack it, or save it as CSV"),
    (rb"\x1f\x8b", (".gz",), "packed by gzip; add .gz to its name"),
    (rb"BZh|\xfd7zXZ", (), "packed; unpack it"),
    (rb"\x93NUMPY", (), "an array of numpy.save; save it by numpy.savez(path, edge_index=array)"),
    (rb'\s*[\[{]\s*[\[{"]', (), 'JSON; of a list of rows, pandas.read_json(path).to_csv("new.csv", index=False)'),
)


# ---- synthetic -------------------------------------------------------------------------------------------------------

# a pharmacogenomic table in the order of the seed: field -> categories
PHARMACOGENOMIC = {"drug": 600, "genotype": 1200, "gene": 120, "allele": 800}
TARGETS = (
    Target("outcome", "classes", 4),
    Target("direction", "classes", 3),
    Target("effect", "classes", 8),
    Target("phenotypes", "labels", 12),
)
LATENT = 4  # factors of a category
MOST_PAIRS = 12  # pairs with an effect
PAIR_SHARE = 0.5  # of the variance of a score
OFFSET = {"classes": (0.0, 0.5), "labels": (-1.0, 0.5)}  # mean and spread over the scores: labels are rather absent


def synthetic(
    rows: int, *, cardinalities: Sequence[int] | None = None, noise: float = 0.3, seed: int = 0
) -> FeatureTable:
    """A table whose truth is known, with four targets: 4, 3 and 8 classes, and 12 labels.

    Each field draws its category on its own, the k-th most frequent with probability ~ 1 / k. Every
    category has latent factors; a score is the sum of linear effects of the fields and of products of pairs of fields
    (what a factorization machine can learn), both centred and of half its variance, 1 in all, plus an offset. Then the
    answer is drawn: with Gumbel noise of scale `noise` on each score the largest one is the class, with logistic noise
    of that scale a label holds if its score is above 0. So the true probabilities are softmax(score / noise) and
    sigmoid(score / noise), and what they score is the best that any model can do but by luck.

    The fields are those of a pharmacogenomic table, or one for each of `cardinalities`. `noise`: scale of the noise
    on scores of standard deviation 1. Tables of the same seed and sizes share one truth, whatever their
    number of rows.
    Raises `GnnlabError`: no row.
    """
    sizes = tuple(PHARMACOGENOMIC.values() if cardinalities is None else cardinalities)
    own = len(sizes) == len(PHARMACOGENOMIC)
    names = tuple(PHARMACOGENOMIC) if own else tuple(f"field_{m}" for m in range(len(sizes)))
    whole_numbers(1, rows=rows)
    for_effects, for_rows, for_noise = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3))
    # Zipf's 1 / rank, in random order: frequent categories do not lie side by side
    ranked = [1 / np.arange(1, size + 1) for size in sizes]
    frequencies = [for_effects.permutation(weights / weights.sum()) for weights in ranked]
    columns = [for_rows.choice(size, size=rows, p=p) for size, p in zip(sizes, frequencies, strict=True)]
    logits = _true_scores(columns, frequencies, for_effects) / noise
    targets, truth, first = {}, {}, 0
    for spec in TARGETS:
        answers, probabilities = _draw(spec, logits[:, first : first + spec.size], for_noise)
        targets[spec.name], truth[spec.name] = torch.from_numpy(answers), torch.from_numpy(probabilities).float()
        first += spec.size
    return FeatureTable(torch.from_numpy(np.stack(columns, axis=1)), targets, TARGETS, sizes, names, truth)


def _true_scores(
    columns: Sequence[np.ndarray], frequencies: Sequence[np.ndarray], rng: np.random.Generator
) -> np.ndarray:
    """(R, S) scores of all targets side by side; each has variance 1 over the rows, and an offset."""
    width = sum(spec.size for spec in TARGETS)
    factors = [rng.normal(size=(len(p), LATENT)) for p in frequencies]  # (categories, LATENT) by field
    # with mean 0 over the rows, so that effects of fields and of pairs do not overlap
    factors = [z - p @ z for z, p in zip(factors, frequencies, strict=True)]
    pairs = list(itertools.combinations(range(len(columns)), 2))
    chosen = rng.permutation(len(pairs))[:MOST_PAIRS]
    offset = np.concatenate([rng.normal(*OFFSET[spec.kind], size=spec.size) for spec in TARGETS])
    scores = np.broadcast_to(offset, (len(columns[0]), width)).copy()
    for column, z, p in zip(columns, factors, frequencies, strict=True):
        effects = z @ rng.normal(size=(LATENT, width))  # (categories, S)
        effects *= np.sqrt((1 - PAIR_SHARE) / len(columns) / (p @ effects**2))
        scores += effects[column]
    weights = rng.normal(size=(len(chosen), width))
    weights *= np.sqrt(PAIR_SHARE / (weights**2).sum(axis=0))
    for weight, (a, b) in zip(weights, (pairs[i] for i in chosen), strict=True):
        product = np.einsum("rk,rk->r", factors[a][columns[a]], factors[b][columns[b]])
        covariance_a, covariance_b = ((factors[m] * frequencies[m][:, None]).T @ factors[m] for m in (a, b))
        spread = np.sqrt(np.trace(covariance_a @ covariance_b))
        scores += (product / spread)[:, None] * weight
    return scores


def _draw(spec: Target, scores: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Answers and the true probabilities (R, size) of scores in units of the noise."""
    if spec.kind == "classes":
        return (scores + rng.gumbel(size=scores.shape)).argmax(axis=1), softmax(scores, axis=1)
    return (scores + rng.logistic(size=scores.shape) > 0).astype(np.float32), expit(scores)
