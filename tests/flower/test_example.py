"""The example app runs by ``flwr run`` in Flower's simulation, as its README says."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Flower's simulation is not installed: pip install 'wellorder[flower]'")

APP, BIN = Path(__file__).parents[2] / "examples" / "flower", Path(sys.executable).parent
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}


@pytest.mark.slow
def test_the_example_runs_in_simulation_and_visits_every_client_once(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {key: value for key, value in os.environ.items() if key != "WELLORDER_DATA"}
    env |= {**OFFLINE, "FLWR_HOME": str(tmp_path), "PATH": f"{BIN}:{env['PATH']}"}
    here = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (tmp_path / "config.toml").write_text(here)
    result = tmp_path / "result.json"
    with (tmp_path / "superlink.log").open("wb") as log:
        link = subprocess.Popen(
            [BIN / "flower-superlink", "--insecure", "--simulation", "--port", str(port)],
            env=env,
            stdout=log,
            stderr=log,
        )
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        settings = f'clients=8 cohort=4 epochs=2 result="{result}"'
        run = [BIN / "flwr", "run", str(APP), "here", "--stream"]
        run += ["--federation-config", "num-supernodes=8", "--run-config", settings]
        done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=120, check=False)
        told = json.loads(result.read_text()) if result.exists() else {}
    finally:
        link.terminate()
        try:
            link.wait(20)
        except subprocess.TimeoutExpired:
            link.kill()
            link.wait(10)
    assert done.returncode == 0, done.stdout + done.stderr
    visits = {0: [], 1: []}
    for metrics in told["rounds"].values():
        visits[metrics["order-epoch"]] += metrics["order-cohort"]
    assert [sorted(order) for order in visits.values()] == [list(range(8))] * 2
    assert told["test"]["accuracy"] > 0.5
    assert "made-up images: WELLORDER_DATA is not set" in done.stdout + done.stderr
