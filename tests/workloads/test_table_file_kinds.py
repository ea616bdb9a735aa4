"""Columns come out the same from every kind of file; a file that has none is refused in one line that names it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal

from gnnlab.errors import GnnlabError
from gnnlab.workloads.table_files import MISSING, read_columns

CELLS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=6)


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused(path: Path, *names: str) -> str:
    line = refusal(read_columns, path, names or ("drug", "gene"))
    assert line.startswith(str(path))
    return line


def values(path: Path, *names: str) -> list[list[str | None]]:
    frame = read_columns(path, names).astype(object)
    return frame.where(frame.notna(), None).to_numpy().tolist()


@settings(max_examples=30)
@given(st.lists(st.tuples(CELLS, CELLS, st.one_of(st.none(), st.integers(-9, 9))), min_size=1, max_size=8))
def test_csv_tsv_and_parquet_of_one_table_read_alike(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("tables")
    frame = pd.DataFrame(rows, columns=["drug", "gene", "dose"]).astype({"drug": object, "gene": object})
    frame.to_csv(folder / "a.csv", index=False)
    frame.to_csv(folder / "a.tsv", index=False, sep="\t")
    frame.to_parquet(folder / "a.parquet")
    from_csv = values(folder / "a.csv", "dose", "drug", "gene")
    assert from_csv == values(folder / "a.tsv", "dose", "drug", "gene")
    assert from_csv == values(folder / "a.parquet", "dose", "drug", "gene")
    assert [row[1] for row in from_csv] == [None if d.strip() in MISSING else d.strip() for d, _, _ in rows]


def test_cells_are_stripped_text_and_what_says_missing_is(tmp_path):
    path = write(tmp_path / "a.csv", "drug , gene,rest\n a ,NA,1\n,x y,2\n007,nan,3\n")
    assert values(path, "gene", "drug") == [[None, "a"], ["x y", None], [None, "007"]]


def test_integers_with_a_missing_one_are_not_written_with_a_point(tmp_path):
    path = write(tmp_path / "a.csv", "drug,gene,dose\n1.0,1.0,1.5\n,v2.0,2.0\n12.0,2.0,2.0\n")
    assert [row[0] for row in values(path, "drug")] == ["1", None, "12"]
    assert [row[0] for row in values(path, "gene")] == ["1.0", "v2.0", "2.0"]
    assert [row[0] for row in values(path, "dose")] == ["1.5", "2.0", "2.0"]


def test_a_byte_order_mark_quotes_and_line_ends_of_windows_are_understood(tmp_path):
    path = write(tmp_path / "a.csv", b'\xef\xbb\xbfdrug,gene\r\n"a, b","c\nd"\r\n"e ""f""",g\r\n')
    assert values(path, "drug", "gene") == [["a, b", "c\nd"], ['e "f"', "g"]]


def test_parquet_takes_categories_booleans_and_columns_without_a_value(tmp_path):
    columns = {
        "drug": pa.array(["a", None, "b"]).dictionary_encode(),
        "gene": pa.array([True, False, None]),
        "dose": pa.nulls(3),
        "nested": pa.array([[1], [2], []]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert values(tmp_path / "a.parquet", "drug", "gene", "dose") == [
        ["a", "True", None],
        [None, "False", None],
        ["b", None, None],
    ]
    assert "column 'nested' holds list<" in refused(tmp_path / "a.parquet", "nested")


def test_a_file_that_is_not_there_or_no_file_is_refused(tmp_path):
    assert "there is no such file" in refused(tmp_path / "a.csv")
    assert "is a folder" in refused(tmp_path)
    assert "ends in .csv, .tsv, .parquet, not in '.xlsx'" in refused(write(tmp_path / "a.xlsx", "drug,gene\n"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ("drug,gene\n", "the table has no rows"),
        ("drug,gene\na,b\nc,d,e\n", "its rows do not fit its header"),
        ("drug,gene\na,b,c\nd,e,f\n", "its rows do not fit its header"),
        ('drug,gene\na,"b\nc,d\n', "its rows do not fit its header"),
        ("drug,gene\nbü,c\n".encode("latin-1"), "is no text in UTF-8"),
        ("drug,gene\na,b\n".encode("utf-16"), "is no text in UTF-8"),
        (b"PAR1\x15\x04\x15\x80\x80PAR1", "is no text in UTF-8"),
        (b"PK\x03\x04\x14\x00\x00\x00", "there is no column 'drug'"),
        ('{"drug": ["a"], "gene": ["b"]}', "there is no column 'drug'"),
        ("drug;gene\na;b\n", "there is no column 'drug' (did you mean drug;gene?)"),
        ("drugs,gene\na,b\n", "did you mean drugs?"),
        ("x,y\na,b\n", "there are 'x, y'"),
        ("drug,gene,drug\na,b,c\n", "2 columns are named 'drug'"),
    ],
)
def test_text_that_is_no_such_table_is_refused(tmp_path, content, message):
    assert message in refused(write(tmp_path / "a.csv", content))


def test_parquet_that_is_none_is_refused(tmp_path):
    assert "is no Parquet file" in refused(write(tmp_path / "a.parquet", "drug,gene\na,b\n"))
    assert "is no Parquet file" in refused(write(tmp_path / "b.parquet", ""))
    pd.DataFrame({"drug": ["a"] * 9, "gene": ["b"] * 9}).to_parquet(tmp_path / "c.parquet")
    whole = (tmp_path / "c.parquet").read_bytes()
    assert "is no Parquet file" in refused(write(tmp_path / "d.parquet", whole[:-20]))
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["drug", "drug"])
    pq.write_table(twice, tmp_path / "e.parquet")
    assert "2 columns are named 'drug'" in refused(tmp_path / "e.parquet", "drug")
    pd.DataFrame({"drug": pd.Series([], dtype=object), "gene": []}).to_parquet(tmp_path / "f.parquet")
    assert "no rows" in refused(tmp_path / "f.parquet")


@given(st.binary(max_size=300), st.sampled_from([".csv", ".tsv", ".parquet"]))
def test_any_bytes_are_a_table_or_an_error_in_one_line(tmp_path_factory, content, suffix):
    path = write(tmp_path_factory.mktemp("bytes") / f"a{suffix}", content)
    assert "\n" not in refused(path, "drug")


def test_a_damaged_parquet_file_is_refused_wherever_the_damage_is(tmp_path):
    path = tmp_path / "a.parquet"
    pd.DataFrame({"drug": [f"d{i}" for i in range(50)]}).to_parquet(path)
    whole = path.read_bytes()
    for place in range(4, len(whole) - 8, 97):
        damaged = write(tmp_path / "b.parquet", whole[:place] + bytes(8) + whole[place + 8 :])
        try:
            read_columns(damaged, ["drug"])
        except GnnlabError as error:
            assert "\n" not in str(error)
