from gnnlab.workloads.edge_networks import State, random_states


def random_state(nodes: int, seed: int) -> State:
    """A network of `nodes` nodes; the same seed gives the same."""
    return random_states(1, (nodes, nodes), seed=seed)[0]


# the state of S2's benchmark: ten nodes alike, and no links
S2_STATE: State = {
    "nodes": [
        {
            "node_id": f"node_{i}",
            "cpu_util": 0.5,
            "mem_util": 0.4,
            "energy": 120,
            "latency": 15,
            "bandwidth": 150,
            "queue_len": 5,
            "node_type": 1,
        }
        for i in range(10)
    ]
}
