"""Arrays that processes share are the same memory, and what there is no room for is refused, not crashed on."""

import json
import subprocess
import sys

import numpy as np
import pytest

from gnnlab.errors import GnnlabError
from gnnlab.planning.block_runner import SharedArrays

FIELDS = {"a/x": ((3, 5), "float32"), "b": ((7,), "int64"), "empty": ((0, 4), "float32")}


def test_another_process_sees_the_same_memory_and_leaves_it_there():
    arrays = SharedArrays.create(FIELDS)
    try:
        arrays["a/x"][:] = np.arange(15).reshape(3, 5)
        code = (
            "import json, sys; from gnnlab.planning.block_runner import SharedArrays\n"
            "arrays = SharedArrays.attach(json.loads(sys.argv[1]))\n"
            "print(float(arrays['a/x'].sum())); arrays['b'][:] = 9\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(arrays.layout)], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "105.0" and done.stderr == ""
        assert (arrays["b"] == 9).all() and arrays["empty"].shape == (0, 4)
    finally:
        arrays.close()


def test_no_room_is_an_error_in_one_line():
    with pytest.raises(GnnlabError, match="no shared memory of") as error:
        SharedArrays.create({"x": ((2**42,), "uint8")})
    assert "\n" not in str(error.value)
