"""Show every device: usable or not, its chip, why not, what to install.

Each is really tried, with a tiny inference in a process of its own, where a driver may hang or crash.
A device of your own is module:factory, where factory() returns a gnnlab.stages.devices.Device.

examples:
  gnnlab devices
  gnnlab devices openvino:GPU openvino:NPU --json
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .terminal import add_json, json_text, show, table


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("devices", nargs="*", metavar="DEVICE", help="names of devices (default: all)")
    add_json(parser)


def run(arguments: Namespace) -> int:
    """Try every device, or those named, each in a worker. No runtime is loaded here: it may be what is broken."""
    from gnnlab.stages import devices

    chosen = {name: devices.find(name) for name in arguments.devices} or devices.all_devices()
    found = devices.probe(chosen)
    if arguments.json:
        about = ("processor", "runtime", "precisions", "static_shapes", "exporter")
        of = {name: {key: getattr(device, key) for key in about} for name, device in chosen.items()}
        show(json_text([{"device": name, **of[name], **vars(found[name])} for name in chosen]))
        return 0
    rows = [(n, "yes" if a.usable else "no", a.why or a.chip, a.remedy or "", a.version) for n, a in found.items()]
    columns = ("device", "usable", "chip, or why not", "what it needs", "version")
    show(table("devices", columns, rows, whole=columns[:2]))
    return 0
