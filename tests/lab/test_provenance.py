"""The environment of a run is whole, without what it does not need."""

import json
import platform

from gnnlab import machine
from gnnlab.lab import provenance


def test_the_environment_has_what_matters_is_json_and_does_not_name_the_computer():
    environment = provenance.collect()
    assert json.loads(json.dumps(environment, allow_nan=False)) == environment
    assert environment["cpu"]["logical"] >= 1 and environment["memory_gb"] > 0 and environment["threads"] >= 1
    assert environment["versions"]["torch"].startswith("2.") and len(environment["load"]) == 3
    assert environment["devices"][0]["kind"] == "CPU" and environment["devices"][0]["name"] == machine.processor()
    assert platform.node() not in json.dumps(environment | {"os": None}) or not platform.node()
