"""Provider configuration from the files of a directory.

What they say decides where instances may go, so they have to come from root or from the user that reads them: a file
that anybody else could have written is refused.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from oslo_log import log as logging

from autoclave.exceptions import ProviderConfigFaults
from autoclave.rules.provider_config import ProviderConfig, parse

LOG = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 20
"""The largest file that is read."""

_SUFFIX = ".yaml"


def load(location: str, *, user: int | None = None) -> ProviderConfig:
    """Read every ``*.yaml`` file of a directory, in lexicographic order; hidden ones are left out.

    :param location: ``[compute] provider_config_location``. Where there is nothing of that name, or none is given,
        nothing is configured.
    :param user: uid that may own the files besides root; by default the one of this process.
    :raises ProviderConfigFaults: with everything that is wrong with the directory and its files.
    """
    if not location:
        return ProviderConfig()
    directory = Path(location)
    try:
        distrust = [f"{_shown(directory)}: {why}" for why in _distrust(directory.stat(), user)]
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        LOG.info("There is no %s: nothing is added to resource providers", _shown(directory))
        return ProviderConfig()
    except OSError as e:
        raise ProviderConfigFaults([f"{_shown(directory)}: cannot be read: {e.strerror}"]) from None
    for name in names:
        if name.endswith(".yml"):
            LOG.warning("%s is not read: only names that end in %s are", _shown(directory / name), _SUFFIX)
    wanted = (directory / name for name in names if name.endswith(_SUFFIX) and not name.startswith("."))
    return _parsed(wanted, user, distrust)


def load_file(path: Path) -> ProviderConfig:
    """Read one file, whatever its name.

    :raises ProviderConfigFaults: with everything that is wrong with it.
    """
    return _parsed([path], None, [])


def _parsed(paths: Iterable[Path], user: int | None, faults: list[str]) -> ProviderConfig:
    """What the files say.

    :param faults: what is known to be wrong already.
    :raises ProviderConfigFaults: with these and everything else.
    """
    texts = {}
    for path in paths:
        try:
            texts[_shown(path)] = _text(path, user)
        except ProviderConfigFaults as e:
            faults += e.faults
    try:
        config = parse(texts)
    except ProviderConfigFaults as e:
        faults += e.faults
    if faults:
        raise ProviderConfigFaults(faults)
    for note in config.notes:
        LOG.warning("%s", note)
    return config


def _text(path: Path, user: int | None) -> str:
    """The text of a file.

    :raises ProviderConfigFaults: it cannot be read, is too large or no text, or is not to be trusted.
    """
    name = _shown(path)
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ProviderConfigFaults([f"{name}: is not a regular file"])
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as e:
        raise ProviderConfigFaults([f"{name}: cannot be read: {e.strerror}"]) from None
    faults = [f"{name}: {why}" for why in _distrust(status, user)]
    text = ""
    if len(raw) > MAX_FILE_BYTES:
        faults.append(f"{name}: is larger than {MAX_FILE_BYTES} bytes; split it")
    else:
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as e:
            line = raw.count(b"\n", 0, e.start) + 1
            faults.append(f"{name}:{line}: is not UTF-8: byte {e.start} cannot be decoded")
    if faults:
        raise ProviderConfigFaults(faults)
    return text


def _open_at_once(name: str, flags: int) -> int:
    """Open without waiting: a FIFO would not open before somebody writes into it."""
    return os.open(name, flags | os.O_NONBLOCK)


def _distrust(status: os.stat_result, user: int | None) -> Iterator[str]:
    """Why what has this status may not say where instances go."""
    own = os.geteuid() if user is None else user
    if status.st_uid not in (0, own):
        yield f"belongs to uid {status.st_uid}; it must belong to root or to the user of the service, uid {own}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield f"can be written by others than its owner (mode {stat.S_IMODE(status.st_mode):04o}); use chmod go-w"


def _shown(path: Path) -> str:
    """*path* in one line, whatever its name."""
    text = str(path)
    return text if text.isprintable() else repr(text)
