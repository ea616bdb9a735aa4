"""Serve the decisions of `gnnlab infer` over HTTP, in batches, with metrics; on request with a cache and a record.

POST /predict takes one network, POST /predict_batch a list of them (docs/serving.md).
Every further setting is a variable GNNLAB_SERVE_... (docs/serving.md); a URL with a password belongs
there, too: what is typed here, every user of this machine can read. Ctrl-C answers what was accepted, and ends.

examples:
  gnnlab serve
  gnnlab serve --model-type dqn --port 8080 --workers 2
  gnnlab serve --redis redis://127.0.0.1:6379/0 --database postgresql://gnnlab@127.0.0.1/gnnlab
  curl -H 'content-type: application/json' -d @state.json http://127.0.0.1:8000/predict
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .terminal import count

# others: the environment, or the default
SETTINGS = ("host", "port", "model_type", "workers", "redis", "database", "keep_days")


def add_arguments(parser: ArgumentParser) -> None:
    what = "address to bind (127.0.0.1); any other makes it reachable from elsewhere, without a login"
    parser.add_argument("--host", help=what)
    parser.add_argument("--port", type=int, metavar="N", help="port (8000); 0: any that is free")
    what = "what answers a request that names none (hybrid)"
    parser.add_argument("--model-type", choices=("dqn", "ppo", "hybrid"), help=what)
    parser.add_argument("--workers", type=count, metavar="N", help="processes that answer (1)")
    what = "cache of all workers and hosts: redis://HOST:6379/0, or none (none)"
    parser.add_argument("--redis", metavar="URL", help=what)
    what = "what keeps the decisions: sqlite:///FILE, postgresql://USER@HOST/NAME or none (none)"
    parser.add_argument("--database", metavar="URL", help=what)
    what = "delete stored decisions that are older; 0: none (0)"
    parser.add_argument("--keep-days", type=float, metavar="N", help=what)


def run(arguments: Namespace) -> int:
    """Serve until Ctrl-C."""
    from gnnlab.serving import server
    from gnnlab.serving.settings import configure

    given = {name: getattr(arguments, name) for name in SETTINGS if getattr(arguments, name) is not None}
    return server.serve(configure(**given))
