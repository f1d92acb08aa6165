#!/usr/bin/env python3
"""Clean the burned devices of this host and release them: a sample to copy and to change.

A device of one time use stays reserved when its instance is gone. On each compute host, this runs a command of yours
for every such device that is idle. Where the command exits with 0, the device is released::

    clean_burned_devices.py --periodic 60 -- /usr/local/sbin/reflash-gpu --full
    # runs: /usr/local/sbin/reflash-gpu --full 0000:81:00.0 3f0c0c3e-0f0e-4b51-9d0a-5d0b7f6c2a11

The command gets the PCI address and the uuid of the resource provider as its last two arguments, no shell, and no
input. Everything else than exit code 0 leaves the device burned.

clouds.yaml and OS_CLOUD, or OS_* variables, name Placement. --autoclave, AUTOCLAVE_URL or AUTOCLAVE_DATA_DIR (of an
`autoclave up`) names Autoclave; there is no default. The user must be allowed to write inventories in Placement and to
read /autoclave/v1/burned (both are an administrator's). Needs openstacksdk; with a
broker, oslo.messaging too. Polling alone misses nothing. Events only make it faster: an instance whose build failed
has burned its device as well, and nobody may have been listening.

Exit codes: 0 nothing has failed; 1 something has (with --once), or it could not start; 2 wrong arguments; with
--once, 128 + the signal that ended it. Without --once, SIGTERM and SIGINT are the way to end it, with 0.
"""

import argparse
import fcntl
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import openstack.config
import yaml
from keystoneauth1.adapter import Adapter
from keystoneauth1.exceptions import ClientException, Conflict, NotFound
from openstack.exceptions import SDKException

LOG = logging.getLogger("clean-burned-devices")

TRAIT = "HW_PCI_ONE_TIME_USE"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
HTTP_TIMEOUT = 30
GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL for a command that must end."""
SOON = 10.0
"""Seconds until a device is looked at again that the agent has not seen idle yet."""
BLINK = 0.2


class Later(Exception):
    """Nothing has failed, but the device is not to be cleaned now; the text completes "<address> …"."""


class NotYet(Later):
    """The same, and the reason passes by itself."""


class StaysBurned(Exception):
    """The device could not be cleaned or released; the text completes "<address> stays burned: …"."""


class Interrupted(Exception):
    """A signal has ended it."""


@dataclass(frozen=True)
class Device:
    """A device to be cleaned, by its resource provider."""

    provider: str
    address: str
    resource_class: str


@dataclass(frozen=True)
class Seen:
    """The inventory of a device before it was cleaned, and the generation that the provider had then."""

    generation: int
    record: dict[str, Any]


class Signals:
    """What SIGTERM and SIGINT have asked for. A handler only notes the number: it may interrupt anything."""

    def __init__(self) -> None:
        self.caught = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self.caught = number

    def sleep(self, seconds: float, until: threading.Event) -> None:
        """Wait that long, or for *until*, or for a signal."""
        end = time.monotonic() + seconds
        while not self.caught and time.monotonic() < end and not until.wait(BLINK):
            pass


class Placement:
    """The inventories of devices."""

    def __init__(self, http: Adapter) -> None:
        self._http = http

    def look(self, device: Device) -> Seen:
        """What is known of an idle and reserved device. Ask who holds it after this, never before.

        :raises Later: it is neither, so it is not to be cleaned.
        """
        path = f"/resource_providers/{device.provider}"
        answer = self._get(f"{path}/inventories")
        record = answer["inventories"].get(device.resource_class)
        if record is None:
            raise StaysBurned(f"its provider {device.provider} has no inventory of {device.resource_class}")
        if record["reserved"] < record["total"]:
            raise NotYet("is not reserved any more: somebody has released it")
        if self._get(f"{path}/allocations")["allocations"]:
            raise Later("is in use")
        return Seen(answer["resource_provider_generation"], record)

    def release(self, device: Device, seen: Seen) -> None:
        """Offer it again, unless anything has happened to it since it was *seen*.

        The whole record is written: Placement resets what is left out.
        """
        body = {**seen.record, "reserved": 0, "resource_provider_generation": seen.generation}
        path = f"/resource_providers/{device.provider}/inventories/{device.resource_class}"
        try:
            self._http.put(path, json=body, timeout=HTTP_TIMEOUT)
        except Conflict:
            raise StaysBurned("it was taken, held or changed while it was cleaned") from None

    def devices(self, host: str) -> Iterator[Device]:
        """What is reserved of the devices of one time use of *host*, whoever has reserved it."""
        tree = self._get("/resource_providers", in_tree=self.root(host), required=TRAIT)
        for provider in tree["resource_providers"]:
            uuid, name = provider["uuid"], provider["name"]
            address = name.removeprefix(f"{host}_").lower()  # host names may have a "_" as well
            records = self._get(f"/resource_providers/{uuid}/inventories")["inventories"]
            if ADDRESS.fullmatch(address) is None or len(records) != 1:
                LOG.warning("Provider %s (%s) is not one device of this host; it is left alone", name, uuid)
                continue
            [(resource_class, record)] = records.items()
            if record["reserved"] >= record["total"]:
                yield Device(uuid, address, resource_class)

    def root(self, host: str) -> str:
        """Return the uuid of the provider of *host* itself.

        :raises StaysBurned: Placement has no such provider.
        """
        roots = self._get("/resource_providers", name=host)["resource_providers"]
        if not roots:
            raise StaysBurned(f"Placement has no provider named {host}; name the host as it does, with --host")
        return str(roots[0]["uuid"])

    def _get(self, path: str, **params: str) -> Any:
        return self._http.get(path, params=params, timeout=HTTP_TIMEOUT).json()


class Source(Protocol):
    """Who says what is burned on a host."""

    def devices(self, host: str) -> Iterator[Device]:
        """What may be burned."""

    def confirm(self, device: Device) -> None:
        """Say whether it is to be cleaned, after Placement was read.

        :raises Later: it is not, and why.
        """


class Autoclave:
    """It knows what is burned, and so what an operator keeps reserved for reasons of his own."""

    def __init__(self, http: Adapter, placement: Placement) -> None:
        self._http = http
        self._placement = placement

    def devices(self, host: str) -> Iterator[Device]:
        """What is burned on *host*. An unknown host is an error: Autoclave lists nothing for it."""
        self._placement.root(host)
        answer = self._http.get("/autoclave/v1/burned", params={"hostname": host}, timeout=HTTP_TIMEOUT).json()
        for row in answer["burned"]:
            yield Device(row["rp_uuid"], row["pci_address"], row["resource_class"])

    def confirm(self, device: Device) -> None:
        try:
            row = self._http.get(f"/autoclave/v1/burned/{device.provider}", timeout=HTTP_TIMEOUT).json()
        except NotFound:
            raise Later("is not burned: whoever reserved it has his reasons") from None
        if row["in_use"]:
            raise Later("is in use")
        if row["missing"]:
            raise Later("is not in this host now")
        if row["release_pending"]:
            raise NotYet("is being released")
        if not row["confirmed"]:
            raise NotYet("has not been seen idle by its agent yet")  # who releases it now would not be believed


class NovaOnly:
    """Without Autoclave, whatever is reserved counts as burned: a hold looks the same."""

    def __init__(self, placement: Placement) -> None:
        self.devices = placement.devices

    def confirm(self, device: Device) -> None:
        """There is nobody to ask."""


@contextmanager
def lock_of(device: Device, directory: Path) -> Iterator[int]:
    """Keep others on this host from cleaning it; the file descriptor of the lock, for the command to keep.

    Were two at it, the first would release it while the second still writes to it, under the next guest.

    :raises Later: somebody is at it.
    """
    path = directory / f"clean-burned-{device.provider}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Later("is being cleaned by another process") from None
        yield descriptor
    finally:
        os.close(descriptor)


class Command:
    """The operator's command.

    :param timeout: seconds that it may take for one device.
    """

    def __init__(self, argv: Sequence[str], timeout: float, signals: Signals) -> None:
        self.argv = argv
        self._timeout = timeout
        self._signals = signals

    def run(self, device: Device, lock: int) -> None:
        """Run it for *device*; it inherits the *lock*, which outlasts us if we are killed.

        :raises StaysBurned: it did not end with 0, or left processes behind.
        :raises Interrupted: a signal has ended it.
        """
        argv = [*self.argv, device.address, device.provider]
        # A session of its own: what is ended is the command with all that it has started.
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=(lock,))
        end = time.monotonic() + self._timeout
        while process.poll() is None:
            if self._signals.caught or time.monotonic() > end:
                _end(process)
                if self._signals.caught:
                    raise Interrupted
                raise StaysBurned(f"{argv[0]} took more than {self._timeout:g} s")
            with suppress(subprocess.TimeoutExpired):
                process.wait(BLINK)
        if _has_left_some(process):
            _end(process)
            raise StaysBurned(f"{argv[0]} ended and left processes running, which are killed now")
        if process.returncode:
            raise StaysBurned(f"{argv[0]} ended with {process.returncode}")


def _has_left_some(process: "subprocess.Popen[bytes]") -> bool:
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass
class Cleaner:
    """Cleans what is burned on one host.

    :param classes: only devices of these resource classes; empty: all.
    :param idle: the log level at which it is said that there is nothing to do.
    """

    host: str
    source: Source
    placement: Placement
    command: Command
    lock_directory: Path
    classes: frozenset[str] = frozenset()
    dry_run: bool = False
    failed: int = 0
    passing: int = 0
    idle: int = logging.DEBUG

    def clean_all(self) -> None:
        """Clean every device once; ``failed`` and ``passing`` count those that stay and those to be looked at soon."""
        self.failed = self.passing = 0
        try:
            devices = list(self.source.devices(self.host))
        except (StaysBurned, ClientException, OSError, ValueError, LookupError, TypeError) as error:
            self.failed = 1
            LOG.error("What is burned on %s is not known: %s", self.host, _said(error))
            return
        wanted = [device for device in devices if not self.classes or device.resource_class in self.classes]
        if not wanted:
            of = f" of {', '.join(sorted(self.classes))}" if self.classes else ""
            LOG.log(self.idle, "No device%s on %s is burned (--host is the host's name in Placement)", of, self.host)
        for device in wanted:
            self._try(device)

    def _try(self, device: Device) -> None:
        try:
            self._clean(device)
        except Later as reason:
            self.passing += isinstance(reason, NotYet)
            LOG.info("%s %s; it is left alone", device.address, reason)
        except (StaysBurned, ClientException, OSError, ValueError, LookupError, TypeError) as error:
            self.failed += 1
            LOG.error("%s (provider %s) stays burned: %s", device.address, device.provider, _said(error))

    def _clean(self, device: Device) -> None:
        if self.dry_run:
            self._look(device)
            command = " ".join([*self.command.argv, device.address, device.provider])
            LOG.info("%s would be cleaned and released, by: %s", device.address, command)
            return
        with lock_of(device, self.lock_directory) as lock:
            seen = self._look(device)
            LOG.info("%s is being cleaned", device.address)
            self.command.run(device, lock)
            self.placement.release(device, seen)
            LOG.info("%s (provider %s) is clean and released", device.address, device.provider)

    def _look(self, device: Device) -> Seen:
        # In this order: a hold set between the two moves the generation, and so is not released.
        seen = self.placement.look(device)
        self.source.confirm(device)
        return seen


def _said(error: Exception) -> str:
    """The error in words. A failed request may have been applied; the next pass will see that."""
    return str(error) or type(error).__name__


class Events:
    """Hears of instances, and wakes whoever waits for ``heard``."""

    def __init__(self, url: str, topic: str, pool: str | None, host: str) -> None:
        import oslo_messaging  # only who has a broker needs it
        from oslo_config import cfg

        self.heard = threading.Event()
        self._host = host
        try:
            transport = oslo_messaging.get_notification_transport(cfg.ConfigOpts(), url=url)
        except oslo_messaging.MessagingException as error:
            raise ValueError(f"--broker: {error}; write rabbit://user:password@host:5672/") from error
        target = oslo_messaging.Target(topic=topic)
        listener = oslo_messaging.get_notification_listener(
            transport, [target], [self], executor="threading", pool=pool
        )
        # A broker that is away must not keep us from polling; oslo.messaging tries until it is back.
        threading.Thread(target=listener.start, name="events", daemon=True).start()

    def info(self, _context: Any, _publisher: str, event_type: str, payload: Any, _metadata: Any) -> None:
        """Wake up for what ends the use of a device of this host."""
        with suppress(LookupError, TypeError):
            ended = event_type.endswith((".end", ".error"))
            if ended and payload["nova_object.data"]["host"] == self._host:
                LOG.debug("heard %s", event_type)
                self.heard.set()

    error = info


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description="Clean the burned devices of this host, and release them.")
    add = parser.add_argument
    add("--host", default=socket.getfqdn(), help="this host's name in Placement (default: %(default)s)")
    add("--os-cloud", default=os.environ.get("OS_CLOUD"), help="the cloud of clouds.yaml (env OS_CLOUD)")
    add(
        "--autoclave",
        default=os.environ.get("AUTOCLAVE_URL"),
        metavar="URL",
        help="where Autoclave listens (env AUTOCLAVE_URL; or AUTOCLAVE_DATA_DIR, the directory of an `autoclave up`)",
    )
    add(
        "--without-autoclave",
        action="store_true",
        help=f"ask nobody what is burned, for a Nova without Autoclave: whatever is reserved and has {TRAIT} is "
        "cleaned AND RELEASED, also what you keep reserved for another reason. Hold such devices otherwise, as by "
        "taking them out of [pci] device_spec",
    )
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument("--once", action="store_true", help="clean what is burned now, and end")
    when.add_argument("--periodic", type=seconds, metavar="SECONDS", help="look every so often, until a signal")
    add("--dry-run", action="store_true", help="say what would be done; run nothing and write nothing")
    add("--resource-class", action="append", default=[], metavar="CLASS", help="only such devices; may be repeated")
    add("--timeout", type=seconds, default=3600.0, metavar="SECONDS", help="for each device (default: 3600)")
    add("--lock-directory", type=Path, default=Path("/run"), help="one for all on this host (default: /run)")
    add(
        "--broker",
        default=os.environ.get("CLEANER_TRANSPORT_URL"),
        metavar="URL",
        help="listen there too, rabbit://user:password@host:5672/ (better in the environment, CLEANER_TRANSPORT_URL: "
        "arguments are seen by everybody)",
    )
    add("--topic", default="versioned_notifications", help="to listen to; best one of this host's own")
    add("--pool", help="name of a group of listeners that share a copy of all events")
    add("--debug", action="store_true", help="log every request")
    add("--nvme", action="store_true", help="the command is erase_nvme.py, beside this file, with the arguments given")
    add("command", nargs="*", help="after --: the command and its first arguments")
    parsed = parser.parse_args(argv)
    if not parsed.nvme and not parsed.command:
        parser.error("name a command after --, or --nvme")
    if parsed.nvme:
        parsed.command = [sys.executable, str(Path(__file__).with_name("erase_nvme.py")), *parsed.command]
    return parsed


def seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e7:  # also refuses nan
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return seconds


def connect(args: argparse.Namespace) -> tuple[Placement, Source]:
    """Placement, and who says what is burned.

    :raises SDKException: no cloud is named, or clouds.yaml is wrong.
    :raises ValueError: nothing says where Autoclave listens.
    """
    region = openstack.config.OpenStackConfig().get_one(cloud=args.os_cloud)
    session = region.get_session()
    http = Adapter(
        session,
        service_type="placement",
        interface=region.get_interface("placement"),
        region_name=region.get_region_name("placement"),
        endpoint_override=region.get_endpoint("placement"),
        default_microversion="1.26",  # the first in which all of an inventory may be reserved
    )
    placement = Placement(http)
    if args.without_autoclave:
        LOG.warning("Without Autoclave, burned and held look the same: whatever is reserved is cleaned and released")
        return placement, NovaOnly(placement)
    url = args.autoclave or _url_of(os.environ.get("AUTOCLAVE_DATA_DIR"))
    return placement, Autoclave(Adapter(session, endpoint_override=url.rstrip("/")), placement)


def _url_of(data_dir: str | None) -> str:
    """Return where the `autoclave up` of a data directory listens.

    :raises ValueError: no directory is named, or its clouds.yaml does not say where.
    :raises OSError: its clouds.yaml cannot be read.
    """
    if not data_dir:
        raise ValueError(
            "no Autoclave is named: set --autoclave, AUTOCLAVE_URL or AUTOCLAVE_DATA_DIR, or --without-autoclave"
        )
    file = Path(data_dir) / "clouds.yaml"
    try:
        override = yaml.safe_load(file.read_text())["clouds"]["autoclave"]["accelerator_endpoint_override"]
        return str(override).removesuffix("/accelerator/v2")
    except (yaml.YAMLError, LookupError, TypeError):
        raise ValueError(f"{file} does not say where Autoclave listens: restart its `autoclave up`") from None


def serve(cleaner: Cleaner, signals: Signals, every: float | None, heard: threading.Event) -> int:
    """Clean, once or until a signal; the exit code."""
    while not signals.caught:
        heard.clear()
        with suppress(Interrupted):
            cleaner.clean_all()
            if every is None:
                return 1 if cleaner.failed else 0
        if every is not None:
            signals.sleep(min(every, SOON) if cleaner.passing else every, heard)
    LOG.info("Ended by signal %d", signals.caught)
    return 128 + signals.caught if every is None else 0


def main(argv: Sequence[str]) -> int:
    """Run with these arguments; the exit code."""
    args = parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    LOG.setLevel(logging.INFO)
    if args.debug:
        logging.getLogger().setLevel(logging.DEBUG)
    signals = Signals()
    heard = threading.Event()
    try:
        placement, source = connect(args)
        if args.broker:
            heard = Events(args.broker, args.topic, args.pool, args.host).heard
    except (SDKException, ClientException, ImportError, OSError, ValueError) as error:
        LOG.error("Cannot start: %s", _said(error))
        return 1
    command = Command(args.command, args.timeout, signals)
    classes = frozenset(args.resource_class)
    cleaner = Cleaner(args.host, source, placement, command, args.lock_directory, classes, args.dry_run)
    if args.once:  # said every minute, it would fill the log
        cleaner.idle = logging.INFO
    return serve(cleaner, signals, args.periodic, heard)


def run() -> NoReturn:
    """Run, and end at once: a listener that waits for its broker would keep the process."""
    code = main(sys.argv[1:])
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
