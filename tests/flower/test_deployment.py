"""A real federation on this machine: a SuperLink and four SuperNodes, each a process of its own."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'wellorder[flower]'")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from wellorder import PairGraB
from wellorder.federated import fedavg
from wellorder.problems import quadratics

BIN, APP, NODES = Path(sys.executable).parent, Path(__file__).parent / "app", 4
PROBLEM = quadratics(NODES, 3, seed=5)
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",
}
# The program flower-supernode, with the shortest heartbeat that a SuperLink accepts: a node that was killed
# is missed, and may come back with its key, after 20 seconds instead of 60.
SUPERNODE = """
import sys
from flwr.common import constant
constant.HEARTBEAT_DEFAULT_INTERVAL = 10
from flwr.supernode.cli import flower_supernode
sys.exit(flower_supernode())
"""
pytestmark = pytest.mark.slow


def wait_for(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.1)
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Link:
    """A SuperLink with its SuperNodes; all that they leave behind is under one folder."""

    def __init__(self, home, secure):
        self.home, self.secure, self.processes, self.runs = home, secure, {}, 0
        self.address, self.desk = f"127.0.0.1:{free_port()}", home / "desk"
        self.desk.mkdir(parents=True)
        np.savez(self.desk / "problem.npz", a=PROBLEM.a, b=PROBLEM.b)
        self.env = {
            **os.environ,
            **OFFLINE,
            "FLWR_HOME": str(home / "flwr"),
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        (home / "flwr").mkdir()
        trust = f'root-certificates = "{home}/ca.pem"' if secure else "insecure = true"
        (home / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{self.address}"\n{trust}\n'
        )

    def spawn(self, name, *command):
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=self.env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def open(self):
        port = self.address.split(":")[1]
        safety = ["--insecure"]
        if self.secure:
            make_certificates(self.home)
            names = ("ca", "cert", "key")
            ca, cert, key = (str(self.home / f"{name}.pem") for name in names)
            safety = ["--ssl-ca-certfile", ca, "--ssl-certfile", cert, "--ssl-keyfile", key]
            safety += ["--enable-supernode-auth"]
        self.spawn("superlink", "flower-superlink", *safety, "--port", port)
        host = self.address.split(":")
        wait_for(lambda: answers(host[0], int(host[1])), 30, "SuperLink")
        if self.secure:
            register = [
                ["supernode", "register", str(self.home / f"node-{n}.pub"), "here"] for n in range(NODES)
            ]
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda command: self.flwr(*command), register))
        for node in range(NODES):
            self.start_node(node)

    def start_node(self, node):
        safety = ["--insecure"]
        if self.secure:
            safety = ["--root-certificates", str(self.home / "ca.pem")]
            safety += ["--auth-supernode-private-key", str(self.home / f"node-{node}")]
        self.spawn(
            f"node-{node}", "python", "-c", SUPERNODE, *safety, "--superlink", self.address,
            "--port", str(free_port()), "--node-config", f"partition-id={node} num-partitions={NODES}",
        )  # fmt: skip

    def flwr(self, *command):
        done = subprocess.run(
            [str(BIN / "flwr"), *command],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, **config):
        config = {"desk": str(self.desk), **config}
        told = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        self.runs += 1
        self.spawn(f"run-{self.runs}", "flwr", "run", str(APP), "here", "--run-config", told, "--stream")

    def kill(self, name):
        """Kill a process and all that it started."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def restart_node(self, node):
        """Kill a SuperNode and start it until the SuperLink, which must miss its heartbeats, lets it in."""
        before, name = self.activations(), f"node-{node}"
        self.kill(name)
        self.start_node(node)

        def is_back():
            if self.processes[name].poll() is not None:
                self.start_node(node)
            return self.activations() > before

        wait_for(is_back, 60, "restarted node")

    def close(self):
        for name in list(self.processes):
            self.kill(name)
        for pid in self.leftovers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not self.leftovers(), 10, "end of all processes")

    def leftovers(self):
        """Processes that were started with our FLWR_HOME, in whatever session they are."""
        mark, found = f"FLWR_HOME={self.home}/flwr\0".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def round(self):
        path = self.desk / "round.json"
        return json.loads(path.read_text()) if path.exists() else {"round": -1}

    def activations(self):
        return (self.home / "superlink.log").read_text().count("Activated node_id")

    def visits(self):
        """(round, partition) of every training that a ClientApp began."""
        path = self.desk / "visits"
        return (
            [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []
        )

    def result(self, seconds):
        path = self.desk / "result.json"
        wait_for(path.exists, seconds, "result")
        wait_for(lambda: "[ORDER] finished" in self.log(), 20, "end of the log")
        return json.loads(path.read_text())

    def log(self):
        """What the ServerApps said, run by run."""
        return "\n".join(path.read_text() for path in sorted(self.home.glob("run-*.log")))


def answers(host, port):
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def make_certificates(home):
    """A certificate authority, a certificate for 127.0.0.1, and a key pair for each SuperNode."""
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in ("ca", "server")}
    names = {name: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in keys}
    now = datetime.now(UTC)

    def certificate(name, extension):
        return (
            x509.CertificateBuilder()
            .subject_name(names[name]).issuer_name(names["ca"])
            .public_key(keys[name].public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
            .add_extension(extension, critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(keys[name].public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(keys["ca"].public_key()), critical=False
            )
            .sign(keys["ca"], hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )  # fmt: skip

    (home / "ca.pem").write_bytes(certificate("ca", x509.BasicConstraints(ca=True, path_length=None)))
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    (home / "cert.pem").write_bytes(certificate("server", x509.SubjectAlternativeName(hosts)))
    plain = serialization.NoEncryption()
    (home / "key.pem").write_bytes(
        keys["server"].private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
    for node in range(NODES):
        key = ec.generate_private_key(ec.SECP384R1())
        private, public = serialization.PrivateFormat.OpenSSH, serialization.PublicFormat.OpenSSH
        (home / f"node-{node}").write_bytes(key.private_bytes(serialization.Encoding.PEM, private, plain))
        (home / f"node-{node}.pub").write_bytes(
            key.public_key().public_bytes(serialization.Encoding.OpenSSH, public)
        )


def key_name(home, node):
    """The name that a strategy with names="key" gives to a node."""
    key = serialization.load_ssh_public_key((home / f"node-{node}.pub").read_bytes())
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    return f"key-{sha256(key.public_bytes(serialization.Encoding.PEM, spki)).hexdigest()[:16]}"


@contextlib.contextmanager
def superlink(home, *, secure):
    link = Link(home, secure)
    try:
        link.open()
        yield link
    except AssertionError:
        print(link.log()[-6000:])
        raise
    finally:
        link.close()


def test_two_epochs_are_those_of_algorithm_2_though_a_node_and_the_server_are_killed(tmp_path):
    with superlink(tmp_path, secure=False) as link:
        for at in (1, 3):
            (link.desk / f"hold-{at}").touch()
        link.run()
        wait_for(lambda: link.round()["round"] == 1, 60, "first round")
        last = next(node for node in range(NODES) if node not in [node for _, node in link.visits()])
        link.restart_node(last)  # without a key of its own it is another node, but the same partition
        (link.desk / "hold-1").unlink()
        wait_for(lambda: link.round()["round"] == 3, 90, "third round")
        os.kill(link.round()["pid"], signal.SIGKILL)
        (link.desk / "hold-3").unlink()
        link.run()
        result, log = link.result(60), link.log()
    run = fedavg(PROBLEM, PairGraB(), step_size=0.02, epochs=2, cohort=2, local_steps=3)
    assert list(result["rounds"]) == ["1", "2", "3", "4"], "the history before the restart is kept"
    assert sorted(link.visits()) == sorted(
        (at + 1, int(unit)) for at, cohort in enumerate(run.orders.reshape(4, 2)) for unit in cohort
    )
    np.testing.assert_allclose(result["weights"], run.x[-1], rtol=1e-12)
    assert f"as client {last}" in log
    assert "going on after round 3" in log


def test_a_killed_a_failing_and_a_silent_client_under_tls_and_node_authentication(tmp_path):
    with superlink(tmp_path, secure=True) as link:
        clients = {key_name(tmp_path, node): node for node in range(NODES)}
        for at in (1, 2):
            (link.desk / f"hold-{at}").touch()
        link.run(names="key", rounds=4, timeout=20.0, attempts=1)
        wait_for(lambda: link.round()["round"] == 1, 60, "first round")
        first = [node for at, node in link.visits() if at == 1]
        killed, failing = (node for node in range(NODES) if node not in first)
        silent = first[0]
        link.restart_node(killed)
        (link.desk / f"mood-{failing}").write_text("error")
        (link.desk / "hold-1").unlink()
        wait_for(lambda: link.round()["round"] == 2, 90, "second round")
        (link.desk / f"mood-{failing}").unlink()
        (link.desk / f"mood-{silent}").write_text("silent")
        (link.desk / "hold-2").unlink()
        result, log = link.result(90), link.log()
    assert sorted(clients) == sorted(result["names"])
    epochs = {0: [], 1: []}
    for metrics in result["rounds"].values():
        epochs[metrics["order-epoch"]] += [clients[result["names"][c]] for c in metrics["order-cohort"]]
    assert sorted(epochs[0]) == sorted({*range(NODES)} - {failing})
    assert sorted(epochs[1]) == sorted({*range(NODES)} - {silent})
    assert epochs[1][0] == failing, "who was missed comes first"
    told = {node: name for name, node in clients.items()}
    assert re.search(f"client {told[failing]} failed: .*client {failing} was told to fail", log)
    assert f"client {told[silent]} failed: no answer in time" in log
