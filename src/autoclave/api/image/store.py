"""Store the data of images: one file each, named by uuid, in ``images`` of ``[agent] data_dir``.

Data is written to a temporary file, which is renamed when all of it is on disk. The writer holds a lock, which
distinguishes an upload in progress from the remains of a dead service.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from autoclave.exceptions import Conflict, StorageError
from autoclave.request_body import RequestBody

_PART, _LOCK = ".part", ".lock"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Received:
    """Describe the data of an upload: size in bytes, MD5 and SHA-512 in hexadecimal."""

    size: int
    md5: str
    sha512: str


class TooLarge(Exception):
    """Report more data than an image may have."""


class ImageStore:
    """Store files in one directory, which is created with the first file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, uuid: str) -> Path:
        """Return the path of an image's data."""
        return self._directory / uuid

    @contextmanager
    def part(self, uuid: str) -> Iterator[BinaryIO]:
        """Create a temporary file for the data of an image, for this upload only; delete it at the end unless it was
        kept.

        :raises Conflict: another upload of the image is in progress.
        :raises StorageError: the file cannot be created.
        """
        with self._on_disk():
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            # a separate lock file that is never removed: otherwise two uploads could lock two files of one name
            lock = (self._directory / f"{uuid}{_LOCK}").open("ab")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(f"An upload of image {uuid} is in progress already.") from None
            name = self._directory / f"{uuid}{_PART}"
            with self._on_disk():
                file = name.open("wb")
            try:
                with file:
                    yield file
            finally:
                name.unlink(missing_ok=True)

    def receive(self, body: RequestBody, file: BinaryIO, limit: int) -> Received:
        """Write *body* to *file*, and flush it to the disk.

        :raises BadRequest: the body is incomplete.
        :raises TooLarge: it has more than *limit* bytes.
        :raises StorageError: it cannot be written.
        """
        md5, sha512, size = hashlib.md5(usedforsecurity=False), hashlib.sha512(), 0
        while chunk := body.read(_CHUNK):
            size += len(chunk)
            if size > limit:
                raise TooLarge
            md5.update(chunk)
            sha512.update(chunk)
            with self._on_disk():
                file.write(chunk)
        with self._on_disk():
            file.flush()
            os.fsync(file.fileno())
        return Received(size, md5.hexdigest(), sha512.hexdigest())

    def keep(self, uuid: str) -> None:
        """Rename the file of :meth:`part` to its final name.

        :raises StorageError: the rename failed.
        """
        with self._on_disk():
            (self._directory / f"{uuid}{_PART}").rename(self.path(uuid))
            directory = os.open(self._directory, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def open(self, uuid: str) -> tuple[BinaryIO, int]:
        """Open the data of an image, and return its size in bytes.

        :raises StorageError: there is none.
        """
        with self._on_disk():
            file = self.path(uuid).open("rb")
            return file, os.fstat(file.fileno()).st_size

    def remove_strangers(self, known: Callable[[], set[str]]) -> None:
        """Remove every file without an image, also those that a dead service left.

        :param known: returns the uuids of all images. It is called after the directory was read, because an image has
            a row before it has a file.
        :raises StorageError: a file cannot be removed.
        """
        with self._on_disk():
            found = sorted(self._directory.iterdir()) if self._directory.is_dir() else []
            there = known()
            for file in found:
                if file.name.removesuffix(_PART).removesuffix(_LOCK) not in there:
                    file.unlink(missing_ok=True)

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{error.filename or self._directory}: {error.strerror}; images are stored below [agent] data_dir. "
                "It must have free space, be writable by the api service, and be shared by all api services and "
                "agents"
            ) from error
