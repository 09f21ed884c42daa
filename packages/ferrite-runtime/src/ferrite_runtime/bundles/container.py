"""The outer form of a bundle: a digest, a manifest, blobs; nothing is looked at before the digest matches."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ferrite_runtime.errors import FileUnreadable, NoPackage, PackageInvalid, SpecError, VersionUnsupported
from ferrite_runtime.formats.canonical_json import dump_canonical
from ferrite_runtime.process.files import open_file

MAGIC = b"ferrite-bundle/"
MAJOR = 2
# A manifest is text that people may read; a file that claims more than this is not one of ours.
MAX_MANIFEST = 32 << 20
MAX_VALUES = 1 << 20
"""Numbers, strings, arrays and objects in a manifest: what is read of one takes a hundred bytes of memory each."""
MAX_FILE = 16 << 30
_DIGEST = 64
_HEAD = len(MAGIC) + 16 + _DIGEST


def pack_container(manifest: Mapping[str, Any], blobs: Mapping[str, bytes]) -> tuple[bytes, str]:
    """Returns a container's bytes, and its digest in hex.

    Args:
        manifest: JSON; its field ``blobs`` is written by this function.
        blobs: contents by their SHA-256 in hex.
    """
    names = sorted(blobs)
    table = [{"sha256": name, "size": len(blobs[name])} for name in names]
    text = dump_canonical({**manifest, "blobs": table}).encode()
    body = b"%d\n" % len(text) + text + b"".join(blobs[name] for name in names)
    digest = hashlib.sha256(body).hexdigest()
    return MAGIC + b"%d\n" % MAJOR + digest.encode() + b"\n" + body, digest


def read_container_file(path: Path | str) -> bytes:
    """Returns the bytes of a container in a file.

    Raises:
        FileUnreadable: there is no such file, it may not be read, or it is none, but a pipe or a device.
        NoPackage: it does not begin like a container (of which no more is read then), or is larger than one may be.
    """
    try:
        with open_file(path) as file:
            head = file.read(_HEAD)
            if not head.startswith(MAGIC):
                raise NoPackage(f"{path} is no bundle: it does not begin with {MAGIC.decode()!r}")
            size = os.fstat(file.fileno()).st_size
            if size > MAX_FILE:
                raise NoPackage(f"{path} has {size} bytes, a bundle has {MAX_FILE} at most")
            return head + file.read(max(size - len(head), 0))  # of a file that grows meanwhile: what it had
    except OSError as error:
        raise FileUnreadable(path, error) from error


def unpack_container(data: bytes) -> tuple[dict[str, Any], dict[str, memoryview], str]:
    """Returns the manifest, the blobs by SHA-256, and the digest of a container.

    Raises:
        VersionUnsupported: if it is of another major version.
        PackageInvalid: if a digest does not match, or the bytes are not what a container has, to the byte.
    """
    magic, _, _ = data[: len(MAGIC) + 16].partition(b"\n")
    if not magic.startswith(MAGIC):
        raise PackageInvalid(f"this is no bundle: it does not begin with {MAGIC.decode()!r}")
    version = magic[len(MAGIC) :]
    if version != b"%d" % MAJOR:
        shown = version[:16].decode(errors="replace")
        raise VersionUnsupported(f"this is a bundle of version {shown!r}; this runtime reads {MAJOR}")
    start = len(magic) + 1
    digest, body = data[start : start + _DIGEST], memoryview(data)[start + _DIGEST + 1 :]
    if data[start + _DIGEST : start + _DIGEST + 1] != b"\n":
        raise PackageInvalid("the second line of this bundle is no SHA-256 in hex")
    actual = hashlib.sha256(body).hexdigest()
    if actual.encode() != digest:
        raise PackageInvalid(
            f"the bundle claims the digest {digest[:12].decode(errors='replace')}…, it has {actual[:12]}…"
        )
    manifest, end = _read_manifest(body)
    return manifest, _read_blobs(manifest.pop("blobs", None), body[end:]), actual


def _read_manifest(body: memoryview) -> tuple[dict[str, Any], int]:
    line = bytes(body[:20])
    count, separator, _ = line.partition(b"\n")
    if not separator or not count.isdigit() or count != b"%d" % int(count):
        raise PackageInvalid("the third line of this bundle is no length")
    start, size = len(count) + 1, int(count)
    if size > min(MAX_MANIFEST, len(body) - start):
        raise PackageInvalid(f"the bundle claims a manifest of {size} bytes, {len(body) - start} are left")
    text = bytes(body[start : start + size])
    if _has_too_many_values(text):
        raise PackageInvalid(f"the manifest of this bundle has more than {MAX_VALUES} values")
    try:
        manifest = json.loads(text)
        canonical = dump_canonical(manifest).encode()
    except (ValueError, RecursionError, SpecError) as error:
        raise PackageInvalid(f"the manifest of this bundle is no JSON: {error}") from error
    if canonical != text:
        raise PackageInvalid("the manifest of this bundle is not in canonical form")
    if not isinstance(manifest, dict):
        raise PackageInvalid("the manifest of this bundle is no object")
    return manifest, start + size


def _has_too_many_values(text: bytes) -> bool:
    """Returns whether JSON has more values than a manifest may have, without reading it.

    Outside of strings each but the first follows a comma or opens something. Quotes that are escaped end no string.
    """
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 4 * MAX_VALUES:  # two strings a value at most, of which one is its key
        return True
    outside = b"".join(plain.split(b'"')[::2])
    return sum(map(outside.count, (b",", b"[", b"{"))) > MAX_VALUES


def _read_blobs(table: object, content: memoryview) -> dict[str, memoryview]:
    if not isinstance(table, list):
        raise PackageInvalid("blobs: an array is needed")
    blobs: dict[str, memoryview] = {}
    start, last = 0, ""
    for position, row in enumerate(table):
        name, size = _read_row(row, f"blobs[{position}]")
        if name <= last:
            raise PackageInvalid(f"blobs[{position}]: the blobs are not in the order of their digests")
        if size > len(content) - start:
            raise PackageInvalid(f"blobs[{position}]: {size} bytes are claimed, {len(content) - start} are left")
        blobs[name] = content[start : start + size]
        if hashlib.sha256(blobs[name]).hexdigest() != name:
            raise PackageInvalid(f"blobs[{position}]: the digest does not match the content")
        start, last = start + size, name
    if start != len(content):
        raise PackageInvalid(f"{len(content) - start} bytes after the last blob belong to nothing")
    return blobs


def _read_row(row: object, path: str) -> tuple[str, int]:
    if not isinstance(row, dict) or set(row) != {"sha256", "size"}:
        raise PackageInvalid(f"{path}: an object of sha256 and size is needed")
    name, size = row["sha256"], row["size"]
    if not isinstance(name, str) or len(name) != _DIGEST or not isinstance(size, int) or isinstance(size, bool):
        raise PackageInvalid(f"{path}: sha256 is 64 hex digits, size an integer")
    if size < 0:
        raise PackageInvalid(f"{path}: a size of {size}")
    return name, size
