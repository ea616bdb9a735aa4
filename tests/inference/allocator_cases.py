"""States of edge networks for tests, the odd ones among them."""

from edge_states import random_state
from hypothesis import strategies as st

KNOWN = ("cpu_util", "mem_util", "energy", "latency", "bandwidth", "queue_len", "node_type")


def node(node_id="a", **fields):
    """A good node."""
    usual = dict(zip(KNOWN, (0.5, 0.4, 120.0, 15.0, 150.0, 5, 1), strict=True))
    return {"node_id": node_id, **usual, **fields}


@st.composite
def states(draw, most_nodes=9):
    """Good states: one node and more, without links and with many, isolated nodes, extreme values."""
    count = draw(st.integers(1, most_nodes))
    share, size = st.floats(0, 1), st.floats(0, 1e5)
    nodes = [
        node(
            f"n{i}",
            cpu_util=draw(share),
            mem_util=draw(share),
            energy=draw(size),
            latency=draw(size),
            bandwidth=draw(size),
            queue_len=draw(st.integers(0, 1000)),
            node_type=draw(st.integers(0, 2)),
        )
        for i in range(count)
    ]
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda p: p[0] < p[1])
    links = draw(st.lists(pairs, unique=True, max_size=20)) if count > 1 else []
    return {"nodes": nodes, "links": [[f"n{a}", f"n{b}"] for a, b in links]}


def usual_states(count=6, nodes=12):
    return [random_state(nodes + place, place) for place in range(count)]
