"""Runs spmd-run on the nodes of a Ray cluster.

For people, in a script of `ray job submit` or anywhere else that reaches the cluster:

    import spmd_ray
    spmd_ray.run("program.hlo", hosts=4, fill="random:0")   # the report of --format json
    spmd_ray.devices(hosts=8, slices=2)                     # the global device view
    spmd_ray.execute(["./train", "--steps", "100"], hosts=4)

For `spmd-run --launcher ray`, which starts this very file as a program: it reserves the nodes, starts a helper of
spmd-run in an actor on each, and carries bytes between launcher and helpers, a Unix socket for each. What the two say to
each other beside that are lines of JSON on standard input and output.
"""

import collections
import contextlib
import inspect
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time


class JobError(RuntimeError):
    """A job that failed. `code` is spmd-run's exit code; why has been printed."""

    def __init__(self, code):
        super().__init__(f"spmd-run failed with exit code {code}")
        self.code = code


def run(program, hosts=1, **options):
    """Runs an HLO or StableHLO program with one controller on each of `hosts` nodes, and returns the report as a dict.

    `options` are those of the command line: `warmup=10` is `--warmup 10`, `print=True` is `--print`, and a list gives an
    option several times. With `per_chip=True` there is a controller for each chip, and `hosts` counts these.
    """
    return json.loads(_spmd_run(["run", program, "--format", "json"], hosts, options, subprocess.PIPE))


def devices(hosts=1, **options):
    """The global device view of `hosts` nodes, as a dict."""
    return json.loads(_spmd_run(["devices", "--format", "json"], hosts, options, subprocess.PIPE))


def execute(command, hosts=1, **options):
    """Runs a program that joins the job by itself on each of `hosts` nodes. What it prints is printed."""
    _spmd_run(["exec"], hosts, options, None, ["--", *command])


def _spmd_run(words, hosts, options, stdout, rest=()):
    arguments = [_binary(), *words, "--launcher", "ray", "-n", hosts]
    if "ray_address" not in options and (address := _connected()):
        arguments += ["--ray-address", address]
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        for value in value if isinstance(value, (list, tuple)) else [value]:
            arguments += [option] if value is True else [] if value in (False, None) else [option, value]
    # What spmd-run takes for python3 is to be this very one, which has Ray.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    done = subprocess.run([str(word) for word in [*arguments, *rest]], stdout=stdout, env={**os.environ, "PATH": path})
    if done.returncode != 0:
        raise JobError(done.returncode)
    return done.stdout


def _binary():
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "spmd-run")
    found = beside if os.access(beside, os.X_OK) else shutil.which("spmd-run")
    if not found:
        raise FileNotFoundError(f"spmd-run is neither beside {__file__} nor on the PATH: `spmd-run ray DIR` copies both")
    return found


def _connected():
    """The address of the cluster that this process is connected to, if it is."""
    ray = sys.modules.get("ray")
    return ray.get_runtime_context().gcs_address if ray and ray.is_initialized() else None


class Failed(Exception):
    """Why the job cannot be placed, for the user."""


SLICE_NAME = "ray.io/tpu-slice-name"
WORKER_ID = "ray.io/tpu-worker-id"
# Resources that every node may have; what else a node of a TPU slice has is the slice's name, or the user's.
KNOWN = re.compile(r"(CPU|GPU|TPU|memory|object_store_memory|TPU-.*|node:.*|accelerator_type:.*|.*_group_.*)$")


class Node:
    """A node of the cluster, with what it has and what is free."""

    def __init__(self, entry, free):
        self.id, self.host, self.address = entry["NodeID"], entry["NodeManagerHostname"], entry["NodeManagerAddress"]
        self.has, self.free, self.labels = entry["Resources"], free, entry.get("Labels") or {}
        self.head = next((name for name in self.has if re.fullmatch("TPU-.*-head", name)), None)
        self.slice = self.labels.get(SLICE_NAME)
        self.worker = self.labels.get(WORKER_ID)

    def can_give(self, wanted, now):
        there = self.free if now else self.has
        return all(there.get(name, 0) >= amount for name, amount in wanted.items())


def name_slices(nodes):
    """Finds the slices' names where nodes have no labels: the rarest of the other resources of a slice's first node."""
    count = collections.Counter(name for node in nodes for name in node.has)
    names = set()
    for node in nodes:
        if node.head and not node.slice:
            others = [name for name, amount in node.has.items() if amount == 1 and not KNOWN.match(name)]
            names.update(sorted(others, key=lambda name: (count[name], name))[:1])
    for node in nodes:
        if not node.slice:
            node.slice = next((name for name in node.has if name in names), None)


class Choice:
    """Bundles of one placement group, one for each node, in the order of the slices."""

    def __init__(self, amount):
        self.amount, self.bundles, self.selectors, self.slices, self.is_free = amount, [], [], [], True

    def key(self):
        return self.bundles, self.selectors


class Request:
    """What is asked of the cluster."""

    def __init__(self, processes, slices, per_chip, resources, accelerator):
        self.processes, self.slices, self.per_chip = processes, slices, per_chip
        self.resources, self.accelerator = resources, accelerator

    def kind(self, nodes):
        """The resource of which each node gives all it has, if there is one."""
        if self.resources:
            return None
        if self.accelerator:
            return self.accelerator
        return "TPU" if any(node.has.get("TPU") for node in nodes) else None

    def choose(self, nodes):
        """The best choice that the nodes allow, free or not; `None` if they never will."""
        kind = self.kind(nodes)
        if kind is None:
            if self.per_chip:
                raise Failed("--per-chip: no node has TPU or GPU among its Ray resources")
            return self._among(nodes, self.resources or {"CPU": 1}, self.processes, 1)
        best = None
        for amount in sorted({int(node.has.get(kind, 0)) for node in nodes} - {0}, reverse=True):
            each = amount if self.per_chip else 1
            if self.processes % (self.slices * each) == 0:
                alike = [node for node in nodes if node.has.get(kind, 0) == amount]
                choice = self._among(alike, {kind: amount}, self.processes // each, amount)
                if choice and (best is None or choice.is_free and not best.is_free):
                    best = choice
        return best

    def _among(self, nodes, wanted, hosts, amount):
        """A choice of so many hosts among nodes that are alike."""
        by_slice = collections.defaultdict(list)
        for node in nodes:
            if node.can_give(wanted, now=False):
                by_slice[node.slice if "TPU" in wanted else None].append(node)
        unnamed, need = by_slice.pop(None, []), hosts // self.slices
        enough = [(name, members) for name, members in by_slice.items() if len(members) >= need]
        free = {name: self._free(members, self._bundles(name, members, wanted, need)[0]) for name, members in enough}
        # Slices that are free, then those of the right size, as libtpu wants whole slices.
        enough.sort(key=lambda slice: (free[slice[0]] < need, len(slice[1]) != need, natural(slice[0])))
        choice = Choice(amount)
        if len(enough) >= self.slices:
            for name, members in sorted(enough[: self.slices], key=lambda slice: natural(slice[0])):
                bundles, selectors = self._bundles(name, members, wanted, need)
                choice.bundles += bundles
                choice.selectors += selectors
                choice.slices += [name] * need
                choice.is_free &= free[name] >= need
            return choice
        if len(unnamed) < hosts:
            return None
        choice.bundles, choice.selectors = [dict(wanted) for _ in range(hosts)], [{} for _ in range(hosts)]
        choice.slices = [None] * hosts
        choice.is_free = sum(node.can_give(wanted, now=True) for node in unnamed) >= hosts
        return choice

    @staticmethod
    def _bundles(name, members, wanted, need):
        """A slice's bundles and the labels they select. The first takes what stands for the slice as a whole."""
        as_resource = all(name in member.has for member in members)
        each = {**wanted, name: 1} if as_resource else dict(wanted)
        bundles = [dict(each) for _ in range(need)]
        head = next((member.head for member in members if member.head), None)
        if head:
            bundles[0][head] = 1
        return bundles, [{} if as_resource else {SLICE_NAME: name} for _ in range(need)]

    @staticmethod
    def _free(members, bundles):
        """How many of a slice's nodes are free; none if another job has reserved the slice by its head."""
        first, rest = bundles[0], bundles[-1]
        is_first_free = any(member.can_give(first, now=True) for member in members)
        return sum(member.can_give(rest, now=True) for member in members) if is_first_free else 0

    def text(self, nodes):
        kind = self.kind(nodes)
        amounts = sorted({int(node.has[kind]) for node in nodes if node.has.get(kind)}) if kind else []
        if kind is None:
            each = ", ".join(f"{name} {amount:g}" for name, amount in (self.resources or {"CPU": 1}).items())
        else:
            each = f"all of its {kind}" + (f" ({' or '.join(map(str, amounts))})" if amounts else "")
        hosts = f"{self.processes} " + ("chips" if self.per_chip else "node" if self.processes == 1 else "nodes")
        of_slices = f", in {self.slices} slices of equal size" if self.slices > 1 else ""
        if self.slices == 1 and kind == "TPU" and self.processes > 1 and any(node.slice for node in nodes):
            of_slices = ", in one slice (--slices says how many)"
        return f"asked for {hosts}{of_slices}; each node gives {each}"

    def table(self, nodes):
        """What the cluster has and what is free, a line for each node."""
        kinds = list(self.resources or [self.kind(nodes) or "CPU"])
        rows = [("node", "slice", "worker", "has", "free")]
        for node in sorted(nodes, key=lambda node: (natural(node.slice), natural(node.worker), natural(node.host))):
            amounts = [", ".join(f"{kind} {there.get(kind, 0):g}" for kind in kinds) for there in (node.has, node.free)]
            rows.append((f"{node.host} ({node.id[:8]})", node.slice or "-", node.worker or "-", *amounts))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def natural(text):
    """A sorting key by which worker-10 comes after worker-9."""
    return [(part.isdigit(), int(part) if part.isdigit() else part) for part in re.split(r"(\d+)", text or "") if part]


def cluster_view():
    """The nodes of the cluster that are alive, and the free resources of each."""
    import ray
    from ray._private.state import available_resources_per_node

    return [node for node in ray.nodes() if node["Alive"]], available_resources_per_node()


class Host:
    """An actor on a node, the parent of the helper there."""

    def worker_id(self):
        return os.environ.get("TPU_WORKER_ID")

    def has_binary(self, path, hash):
        """Whether this very spmd-run is here, at the launcher's path or in the cache."""
        self.cached = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "spmd-run/ray", hash)
        for self.binary in (path, self.cached):
            if self.is_binary(self.binary):
                return True
        return False

    def is_binary(self, path):
        question = [path, "__host", "--is", os.path.basename(self.cached)]
        return os.access(path, os.X_OK) and not subprocess.run(question, stdin=subprocess.DEVNULL, capture_output=True).returncode

    def receive(self, pieces):
        """Keeps the binary in the cache, and no more than a few of other versions."""
        import ray

        folder = os.path.dirname(self.cached)
        os.makedirs(folder, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            for piece in pieces:
                file.write(ray.get(piece))
        os.chmod(file.name, 0o700)
        try:
            os.link(file.name, self.cached)
            os.unlink(file.name)
        except OSError:
            # Another node with the same cache was faster, and runs it by now; or it is damaged, or there are no links.
            os.unlink(file.name) if self.is_binary(self.cached) else os.replace(file.name, self.cached)
        versions = sorted((entry.path for entry in os.scandir(folder)), key=os.path.getmtime)
        for old in versions[:-3]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(old)

    def start(self, words, address):
        """Starts the helper, by words in which the binary's path and a name at the end are missing."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MEGASCALE_")}
        environment.pop("OMP_NUM_THREADS", None)  # Ray's, by the CPUs that were asked for; a controller has the node.
        environment["SPMD_HOST_ADDRESS"] = address
        self.words = tempfile.TemporaryFile()
        self.helper = subprocess.Popen(
            [self.binary if word is None else word for word in words] + [secrets.token_hex(8)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.words,
            env=environment,
            bufsize=0,
            start_new_session=True,
        )

    def write(self, data):
        """Gives bytes to the helper; nothing means that no more will come."""
        try:
            if data:
                self.helper.stdin.write(data)
            else:
                self.helper.stdin.close()
        except OSError:
            pass  # A helper that has ended says so itself.

    def read(self):
        """Waits for bytes of the helper; nothing means that no more will come."""
        return os.read(self.helper.stdout.fileno(), 1 << 20)

    def end(self):
        """The helper's exit code, and what it said in the end beside the bytes."""
        code = self.helper.wait()
        self.words.seek(max(0, self.words.seek(0, os.SEEK_END) - 4096))
        lines = self.words.read().decode(errors="replace").strip().splitlines()
        return code, lines[-1] if lines else ""


class Driver:
    """The launcher's end of the cluster."""

    BUSY_LINE = 10.0  # Seconds between two lines that say what is waited for.
    PIECE = 4 << 20  # Bytes of the binary in one object, which fit into any object store.

    def __init__(self, job, out):
        self.job, self.out, self.lock = job, out, threading.Lock()
        self.deadline = time.monotonic() + job["limit"]
        self.request = Request(*(job[name] for name in ("processes", "slices", "per_chip", "resources", "accelerator")))
        self.group, self.pieces, self.hosts, self.carriers = None, None, [], []

    def say(self, **event):
        with self.lock:
            self.out.write(json.dumps(event) + "\n")
            self.out.flush()

    def left(self):
        return max(0.0, self.deadline - time.monotonic())

    def connect(self):
        try:
            import ray
        except ImportError as error:
            raise Failed(
                f"{sys.executable} has no Ray ({error}): put the Python that has it first on the PATH "
                "(source VENV/bin/activate), or install it: pip install ray"
            ) from None
        address = self.job["address"]
        where = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address)
        if where:
            try:
                socket.create_connection((where[1].strip("[]"), int(where[2])), timeout=min(10, self.left())).close()
            except (OSError, OverflowError) as error:
                raise Failed(f"--ray-address {address} cannot be reached: {error}") from None
        elif address != "auto":
            raise Failed(f"--ray-address {address}: it must be auto, HOST:PORT or ray://HOST:PORT")
        try:
            ray.init(address, namespace="spmd-run", log_to_driver=False, logging_level="ERROR")
        except ConnectionError as error:
            if address == "auto":
                raise Failed(
                    "no Ray cluster runs on this machine: start one (ray start --head), or say where it is with "
                    "--ray-address HOST:PORT or RAY_ADDRESS"
                ) from None
            raise Failed(f"--ray-address {address}: {first_line(error)}") from None
        except Exception as error:
            raise Failed(f"--ray-address {address}: {first_line(error)}") from None
        self.ray = ray

    def nodes(self):
        if self.job["address"].startswith("ray://"):
            entries, free = self.ray.get(self.ray.remote(num_cpus=0)(cluster_view).remote())
        else:
            entries, free = cluster_view()
        nodes = [Node(entry, free.get(entry["NodeID"], {})) for entry in entries]
        name_slices(nodes)
        return nodes

    def place(self):
        """Reserves nodes, all or none, and returns them with their slices and the chips of each."""
        chosen, seen, next_line = None, None, time.monotonic() + 1.0
        while True:
            nodes = self.nodes()
            choice = self.request.choose(nodes)
            if choice is None:
                raise Failed(f"the cluster has too few nodes: {self.request.text(nodes)}\n{self.request.table(nodes)}")
            # Who waits for some nodes while others are free, or for some that are gone, waits for the wrong ones.
            changed, seen = seen != {node.id for node in nodes}, {node.id for node in nodes}
            if chosen is None or choice.key() != chosen.key() and (choice.is_free or changed):
                self.release()
                chosen, self.group = choice, self.reserve(choice)
            if self.group.wait(min(1.0, self.left())):
                return chosen, {node.id: node for node in self.nodes()}
            if self.left() == 0:
                reason = f"the nodes were not free within {self.job['limit']:g} s (--rendezvous-timeout)"
                raise Failed(f"{reason}: {self.request.text(nodes)}\n{self.request.table(nodes)}")
            if time.monotonic() >= next_line:
                next_line = time.monotonic() + self.BUSY_LINE
                self.say(waiting=f"until nodes are free: {self.request.text(nodes)}\n{self.request.table(nodes)}")

    def reserve(self, choice):
        from ray.util.placement_group import placement_group

        labels = {"bundle_label_selector": choice.selectors} if any(choice.selectors) else {}
        if labels and "bundle_label_selector" not in inspect.signature(placement_group).parameters:
            raise Failed("this version of Ray cannot select nodes by labels: give each slice's nodes its name as a resource")
        name = f"spmd-run-{secrets.token_hex(4)}"  # Shown by `ray list placement-groups`.
        return placement_group(choice.bundles, strategy="STRICT_SPREAD", name=name, **labels)

    def release(self):
        if self.group:
            self.ray.util.remove_placement_group(self.group)
            self.group = None

    def start(self, choice, nodes):
        """Starts an actor on each node, and returns what the launcher is to know of them, in the order of the job."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        homes = self.ray.util.placement_group_table(self.group)["bundles_to_node_id"]
        actor = self.ray.remote(Host)
        places = []
        for bundle, wanted in enumerate(choice.bundles):
            place = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=bundle)
            resources = {name: amount for name, amount in wanted.items() if name not in ("CPU", "GPU", "memory")}
            options = dict(num_cpus=wanted.get("CPU", 0), num_gpus=wanted.get("GPU", 0), resources=resources)
            options = dict(options, scheduling_strategy=place, max_concurrency=4)
            places.append((choice.slices[bundle], nodes[homes[bundle]], actor.options(**options).remote()))
        workers = self.ray.get([host.worker_id.remote() for _, _, host in places], timeout=self.left())
        order = sorted(
            zip(places, workers),
            key=lambda it: (natural(it[0][0]), natural(it[0][1].worker or it[1]), not it[0][1].head, natural(it[0][1].host)),
        )
        self.hosts = [(node, host) for (_, node, host), _ in order]
        several = collections.Counter(node.host for node, _ in self.hosts)
        names = [node.host if several[node.host] == 1 else f"{node.host}/{node.id[:8]}" for node, _ in self.hosts]
        each = choice.amount if self.request.per_chip else 1
        return [{"name": name, "address": node.address, "processes": each} for name, (node, _) in zip(names, self.hosts)]

    def carry(self, index, line):
        """Has a helper started, and carries bytes between it and the launcher until it ends."""
        node, host = self.hosts[index]
        try:
            self.bring_binary(host)
            self.ray.get(host.start.remote(self.job["helper"], node.address))
            threading.Thread(target=self.feed, args=(host, line), daemon=True).start()
            while data := self.ray.get(host.read.remote()):
                try:
                    line.sendall(data)
                except OSError:
                    pass  # The launcher is gone, at which the helper ends in order.
            code, words = self.ray.get(host.end.remote())
            reason = f"the helper has ended with exit code {code}" + (f": {words}" if words else "")
        except self.ray.exceptions.RayActorError as error:
            reason = self.obituary(node, error)
        except Exception as error:
            reason = first_line(getattr(error, "cause", None) or error)
        self.say(ended=[index, reason])
        line.shutdown(socket.SHUT_RDWR)

    def feed(self, host, line):
        try:
            while data := line.recv(1 << 20):
                self.ray.get(host.write.remote(data))
        except Exception:
            pass  # Who carries the bytes of the other direction tells why.
        host.write.remote(b"")

    def bring_binary(self, host):
        path, hash = self.job["binary"], self.job["hash"]
        if self.ray.get(host.has_binary.remote(path, hash)):
            return
        with self.lock:
            if self.pieces is None:
                with open(path, "rb") as file:
                    self.pieces = [self.ray.put(piece) for piece in iter(lambda: file.read(self.PIECE), b"")]
        self.ray.get(host.receive.remote(self.pieces))
        self.ray.get(host.has_binary.remote("", hash))

    def obituary(self, node, error):
        """Why an actor is gone; the cluster may take a moment to notice that its node is."""
        for _ in range(20):
            if node.id not in {entry["NodeID"] for entry in self.ray.nodes() if entry["Alive"]}:
                return f"its Ray node {node.id[:8]} has died"
            time.sleep(0.1)
        return f"its Ray actor has died: {first_line(error)}"

    def work(self):
        try:
            self.connect()
            choice, nodes = self.place()
            self.say(placed=self.start(choice, nodes))
            lines = [self.call_launcher() for _ in self.hosts]
        except Failed as failure:
            self.say(failed=str(failure))
            return
        except Exception as error:
            self.say(failed=f"{type(error).__name__}: {first_line(error)}")
            return
        self.carriers = [threading.Thread(target=self.carry, args=it, daemon=True) for it in enumerate(lines)]
        for carrier in self.carriers:
            carrier.start()

    def call_launcher(self):
        line = socket.socket(socket.AF_UNIX)
        line.connect(self.job["socket"])
        return line

    def end(self):
        """Frees what the job had. What Ray does not free in time it frees when this process is gone."""
        try:
            until = time.monotonic() + 5.0
            for carrier in self.carriers:  # Helpers end by themselves and tidy up; Ray would kill them.
                carrier.join(max(0.0, until - time.monotonic()))
            for _, host in self.hosts:
                self.ray.kill(host)
            self.release()
            self.ray.shutdown()
        except Exception:
            pass


def first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    # What is only announced there is said at the end.
    return f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") else lines[0]


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What Ray prints is no event.
    driver = Driver(json.loads(sys.stdin.readline()), out)
    threading.Thread(target=driver.work, daemon=True).start()
    sys.stdin.read()  # Until the launcher is done, or gone.
    shutil.rmtree(os.path.dirname(driver.job["socket"]), ignore_errors=True)
    ending = threading.Thread(target=driver.end, daemon=True)
    ending.start()
    ending.join(8)
    os._exit(0)


if __name__ == "__main__":
    main()
