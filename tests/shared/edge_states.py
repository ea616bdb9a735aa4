"""States of edge networks for tests, the odd ones among them."""

from hypothesis import strategies as st

from gnnlab.workloads.edge_networks import State, random_states


def node(node_id: str = "a", **fields):
    """A good node."""
    usual = {"cpu_util": 0.5, "mem_util": 0.4, "energy": 120, "latency": 15, "bandwidth": 150}
    return {"node_id": node_id, **usual, "queue_len": 5, "node_type": 1, **fields}


# the state of S2's benchmark: ten nodes alike, and no links
S2_STATE: State = {"nodes": [node(f"node_{i}") for i in range(10)]}


def random_state(nodes: int, seed: int) -> State:
    """A network of `nodes` nodes; the same seed gives the same."""
    return random_states(1, (nodes, nodes), seed=seed)[0]


def usual_states(count=6, nodes=12):
    return [random_state(nodes + place, place) for place in range(count)]


SIZES = dict.fromkeys(("energy", "latency", "bandwidth"), st.floats(0, 1e5))
COUNTS = {"queue_len": st.integers(0, 1000), "node_type": st.integers(0, 2)}
FIELDS = st.fixed_dictionaries({"cpu_util": st.floats(0, 1), "mem_util": st.floats(0, 1), **SIZES, **COUNTS})


@st.composite
def states(draw, most_nodes=9):
    """Good states: one node and more, without links and with many, isolated nodes, extreme values."""
    count = draw(st.integers(1, most_nodes))
    nodes = [node(f"n{i}", **draw(FIELDS)) for i in range(count)]
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda p: p[0] < p[1])
    links = draw(st.lists(pairs, unique=True, max_size=20)) if count > 1 else []
    return {"nodes": nodes, "links": [[f"n{a}", f"n{b}"] for a, b in links]}
