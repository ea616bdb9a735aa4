"""Settings come from what is given, then the environment, then the defaults; a wrong one is a line without secrets."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gnnlab.errors import GnnlabError
from gnnlab.serving.settings import PREFIX, ServiceSettings, configure, environment


def test_the_default_is_the_loopback_without_a_server_and_what_is_given_goes_before_the_environment(monkeypatch):
    own = configure()
    assert (own.host, own.redis_url, own.database_url, own.cache_entries) == ("127.0.0.1", None, None, 0)
    monkeypatch.setenv("GNNLAB_SERVE_PORT", "9000")
    assert (configure().port, configure(port=9001).port) == (9000, 9001)


def test_a_process_gets_all_of_it_by_its_environment(monkeypatch):
    own = configure(port=0, redis="redis://:secret@host:1/2", cache_ttl_s=0.25, cache_entries=0)
    for name, text in environment(own).items():
        monkeypatch.setenv(name, text)
    assert configure() == own and "secret" not in repr(own) + str(own) + own.model_dump_json()


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"port": 99999}, "port: 99999 given"),
        ({"workers": 0}, "workers: 0 given"),
        ({"model_type": "a2c"}, "model_type: 'a2c' given"),
        ({"nonsense": 1}, "nonsense: 1 given"),
        ({"host": ""}, "host: '' given"),
        ({"hosts": ""}, "hosts: '' given"),
        ({"deadline_s": 0}, "deadline_s: 0 given"),
        ({"redis": "redis://:secret@x/0?timeout=5"}, "redis: none, or a URL redis://"),
        ({"redis": "redis://:secret@x/0?decode_responses=true"}, "redis: none, or a URL redis://"),
        ({"database": "postgresql://user:p@secret@y/z"}, "database: none, sqlite:///FILE or postgresql://"),
        ({"database": "postgresql://user:secret@y/z?nonsense=1"}, "database: none, sqlite:///FILE or postgresql://"),
        ({"database": "sqlite:///x.sqlite?nonsense=1"}, "database: none, sqlite:///FILE or postgresql://"),
        ({"redis": "http://:secret@x"}, "redis: none, or a URL redis://"),
        ({"redis": "redis://:secret@host:port/0"}, "redis: none, or a URL redis://"),
        ({"database": "mysql://user:secret@x/y"}, "database: none, sqlite:///FILE or postgresql://"),
        ({"database": "sqlite:///:memory:"}, "database: none, sqlite:///FILE or postgresql://"),
        ({"database": "postgresql://user:p@x:secret@y/z"}, "database: none, sqlite:///FILE or postgresql://"),
        ({"database": "secret"}, "database: none, sqlite:///FILE or postgresql://"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line_that_shows_no_secret(given, part):
    with pytest.raises(GnnlabError) as caught:
        configure(**given)
    text = str(caught.value)
    assert part in text and "\n" not in text and "secret" not in text and "gnnlab serve --help" in text


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("redis", "rediss://:p@host/0?ssl_cert_reqs=none"),
        ("database", "postgresql://user:p%40s@[::1]:5432/x?sslmode=require"),
        ("database", "postgresql:///x?host=/var/run"),
    ],
)
def test_options_that_the_libraries_know_are_taken(name, given):
    assert getattr(configure(**{name: given}), f"{name}_url")


@pytest.mark.parametrize(
    ("name", "part"), [("MAX_BATHC", "did you mean GNNLAB_SERVE_MAX_BATCH"), ("X", "'GNNLAB_SERVE_X'")]
)
def test_an_unknown_variable_is_named(monkeypatch, name, part):
    monkeypatch.setenv(f"GNNLAB_SERVE_{name}", "8")
    with pytest.raises(GnnlabError, match="no setting of gnnlab serve") as caught:
        configure()
    assert part in str(caught.value)


def test_the_example_of_several_hosts_sets_what_there_is_and_opens_the_loopback_alone():
    example = yaml.safe_load((Path(__file__).parents[2] / "examples/compose.yaml").read_text(encoding="utf-8"))
    services = example["services"]
    given = services["service"]["environment"]
    names = {name.removeprefix(PREFIX).lower() for name in given if name.startswith(PREFIX)}
    assert names <= set(ServiceSettings.model_fields) and services["service"]["deploy"]["replicas"] == 2
    assert "$" not in given[f"{PREFIX}DATABASE"]  # no password in a URL, whose signs it may have
    assert all(port.startswith("127.0.0.1:") for one in services.values() for port in one.get("ports", []))


def test_the_command_names_what_is_wrong_with_an_option_a_port_and_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for words, part in (
            (["--port", port, "--database", "none"], "address already in use"),
            (["--port", "-1"], "port: -1 given"),
            (["--database", f"sqlite:///{tmp_path}/file/folder/x.sqlite"], f"({tmp_path}/file/folder)"),
        ):
            command = [sys.executable, "-m", "gnnlab", "serve", *words]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert ended.returncode and part in ended.stderr.splitlines()[-1].lower()
            assert "Traceback" not in ended.stderr
