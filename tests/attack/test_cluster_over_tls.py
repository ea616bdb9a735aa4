"""A cluster over TLS, started as SECURITY.md says: who has a certificate of its CA is let in, nobody else."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gnnlab.campaign import cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not here to make certificates"),
]
ROOT = Path(__file__).parents[2]
MEASURE = """
import sys
from pathlib import Path
from gnnlab.campaign import measure, sizes
from gnnlab.errors import GnnlabError
try:
    asked = dict(models=Path("."), sizes=sizes.read(["10/20"]), blocks=["1"], names=["torch:CPU"], features=4)
    found = measure.measure(Path(sys.argv[2]), **asked, cluster=sys.argv[1])
    print("measured", *found.cells["status"])
except GnnlabError as error:
    print("refused", error)
"""


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def certificates(folder):
    """ca.pem; own.pem, signed by it; stranger.pem, signed by nobody else."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "stranger"):
        subject = ("-days", "2", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
        openssl(folder, "req", "-x509", *key, *subject)
    openssl(folder, "req", *key, "-subj", "/CN=member", "-keyout", "own.key", "-out", "own.csr")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-out", "own.pem")
    openssl(folder, "x509", "-req", "-in", "own.csr", *signed)


def environment(folder, name=None):
    given = dict(zip(cluster.TLS_SETTINGS, ("ca.pem", f"{name}.pem", f"{name}.key"), strict=True)) if name else {}
    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
    return {**os.environ, "PYTHONPATH": path, **{key: str(folder / file) for key, file in given.items()}}


def start(command, folder, ready):
    """One of the documented commands; waits until it says that it is ready."""
    words = command.replace("dask ", "", 1).split()
    log = (folder / f"{words[0]}-{len(list(folder.glob('*.log')))}.log").open("w+", encoding="utf-8")
    program = [sys.executable, "-m", f"distributed.cli.dask_{words[0]}", *words[1:]]
    process = subprocess.Popen(program, cwd=folder, env=environment(folder), stderr=log, stdout=log)
    for _ in range(600):
        if ready in Path(log.name).read_text(encoding="utf-8"):
            return process
        assert process.poll() is None, Path(log.name).read_text(encoding="utf-8")
        psutil.wait_procs([psutil.Process(process.pid)], timeout=0.2)
    raise TimeoutError(Path(log.name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """A scheduler and two workers; gives their folder, their address and their processes."""
    folder = tmp_path_factory.mktemp("tls")
    certificates(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tls://127.0.0.1:{port}"
    started = []
    try:
        started.append(start(f"{cluster.SCHEDULER} --port {port} {cluster.TLS}", folder, "Scheduler at:"))
        worker = f"{cluster.WORKER.replace('ADDRESS', address)} --resources HOST=1 {cluster.TLS}"
        started += [start(worker, folder, "Registered to:") for _ in range(2)]
        yield folder, address, started
    finally:
        for process in started:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for one in family:
                one.kill()
            process.wait()


def measured(members, name=None, address=None):
    folder, own, _ = members
    command = [sys.executable, "-c", MEASURE, address or own, str(folder / f"stages-{name}")]
    ended = subprocess.run(
        command, cwd=folder, env=environment(folder, name), capture_output=True, text=True, timeout=300
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.stdout.strip()


def test_who_has_a_certificate_measures_on_it(members, tally):
    assert measured(members, "own") == "measured measured"
    tally["cluster over TLS: a member"]["survived"] += 1


@pytest.mark.parametrize("who", ["stranger", None, "without TLS"])
def test_nobody_else_does_and_is_told_so_in_one_line(members, who, tally):
    plain = members[1].replace("tls:", "tcp:") if who == "without TLS" else None
    found = measured(members, None if plain else who, plain)
    assert found.startswith("refused no Dask scheduler answers at") and len(found.splitlines()) == 1, found
    assert "tls://" in found or "TLS__CA_FILE" in found
    tally["cluster over TLS: a stranger"]["survived"] += 1


def test_it_listens_to_the_address_that_it_was_given_alone(members):
    found = [
        connection.laddr.ip
        for process in members[2]
        for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True))
        for connection in one.net_connections("inet")
        if connection.status == "LISTEN"
    ]
    assert found and set(found) == {"127.0.0.1"}


def test_what_is_documented_is_what_was_tried():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert cluster.TLS in text and all(name in text for name in cluster.TLS_SETTINGS)
