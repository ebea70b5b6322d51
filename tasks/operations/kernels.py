"""Overlays: packages of ours beside the server's own, switched on by a .pth file."""

from __future__ import annotations

import io
import shlex
from collections.abc import Generator, Mapping, Sequence

from pyinfra import host
from pyinfra.api import FileUploadCommand, StringCommand, operation

from tasks.plan.files import Found
from tasks.plan.release import Overlay

Commands = Generator[StringCommand | FileUploadCommand, None, None]


@operation()
def overlay(placed: Overlay, site_packages: str, found: Mapping[str, Found]) -> Commands:
    """Every file of an overlay below site-packages, byte for byte; the .pth file last."""
    changed = [
        path
        for path, content in placed.files.items()
        if (there := found.get(f"{site_packages}/{path}")) is None or there.content != content
    ]
    if not changed:
        host.noop(f"overlay {placed.name} is as wanted")
        return
    for path in sorted(changed, key=lambda p: (p.endswith(".pth"), p)):
        target = f"{site_packages}/{path}"
        beside = f"{target}.new"
        yield StringCommand(f"mkdir -p {shlex.quote(target.rpartition('/')[0])}")
        yield FileUploadCommand(
            io.BytesIO(placed.files[path]), beside, remote_temp_filename=host.get_temp_filename(beside)
        )
        yield StringCommand(f"chmod 644 {shlex.quote(beside)} && mv -fT {shlex.quote(beside)} {shlex.quote(target)}")


@operation()
def no_other_overlays(site_packages: str, unwanted: Sequence[str]) -> Commands:
    """Overlays that no setting asks for any more are taken out."""
    if not unwanted:
        host.noop("no overlay is there that is not wanted")
        return
    yield StringCommand("rm -rf " + " ".join(shlex.quote(f"{site_packages}/{name}") for name in unwanted))
