"""`gnnlab serve`: the edge allocator over HTTP."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from gnnlab.serving import server
from gnnlab.serving.settings import made

OPTIONS = ("host", "port", "model_type", "workers", "redis", "database")


def run(arguments: Namespace, show: Callable[[Any], None]) -> int:
    """Serve until a signal; what no option says, the environment does (GNNLAB_SERVE_...), or the default."""
    given = {name: getattr(arguments, name) for name in OPTIONS}
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    return server.serve(made(**{name: value for name, value in given.items() if value is not None}))
