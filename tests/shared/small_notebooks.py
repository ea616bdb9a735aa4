"""Small notebooks with a cell of parameters."""

import nbformat

PYTHON = {"name": "python3", "display_name": "Python 3", "language": "python"}


def write(path, parameters, *sources, tags=("parameters",), kernel=PYTHON, **about):
    """Write a notebook: a cell of `parameters`, a cell for each of the sources (Markdown where it begins with "# ") and
    `about` as what it says of itself; its path."""
    cells = [nbformat.v4.new_code_cell(parameters, metadata={"tags": list(tags)})]
    for source in sources:
        new = nbformat.v4.new_markdown_cell if source.startswith("# ") else nbformat.v4.new_code_cell
        cells.append(new(source))
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "gnnlab": about}), path)
    return path
