"""What runs in the child process of a notebook: papermill. Loads nothing else of ours that is heavy."""

from __future__ import annotations

import json
import logging
import os
import sys

from gnnlab.worker_process import end_tree, end_with_parent

START_TIMEOUT_S = 120  # of a kernel; a virus scanner may read every file of the environment first
OUTPUT_TIMEOUT_S = 60  # for the last outputs of a cell, on a busy machine


def main() -> None:
    """`papermill.execute_notebook` with the arguments from standard input; what ended it goes to standard output."""
    import papermill

    end_with_parent(end=lambda: end_tree(os.getpid()))
    asked, answer, screen = json.load(sys.stdin), os.dup(1), os.fdopen(os.dup(2), "w")
    nothing = os.open(os.devnull, os.O_WRONLY)  # takes what the kernel and what it starts would print
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    if asked["progress_bar"]:
        asked["progress_bar"]["file"] = screen
    logging.disable(logging.CRITICAL)
    options = {"kernel_name": "python3", "language": "python", "start_timeout": START_TIMEOUT_S}
    options |= {"iopub_timeout": OUTPUT_TIMEOUT_S, "coalesce_streams": True, "store_widget_state": False}
    try:
        papermill.execute_notebook(**asked, **options)
    except Exception as error:  # whatever Jupyter raises: this notebook failed, the others still run
        os.write(answer, f"{type(error).__name__}: {error}".encode())
        sys.exit(1)


if __name__ == "__main__":
    main()
