from gnnlab.workloads.edge_networks import State, random_states


def random_state(nodes: int, seed: int) -> State:
    """A network of `nodes` nodes; the same seed gives the same."""
    return random_states(1, (nodes, nodes), seed=seed)[0]
