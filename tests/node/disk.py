"""A node's disk: trees that nodes share, never written, under a layer of the node's own (overlayfs)."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.node.process import command


@dataclass(frozen=True)
class Disk:
    """`layer` may be written from here until the node boots; afterwards the disk belongs to the node."""

    bases: tuple[Path, ...]  # the one on top first
    folder: Path

    @property
    def layer(self) -> Path:
        return self.folder / "layer"

    @property
    def root(self) -> Path:
        """Where the disk is mounted, in the node's own mount namespace only: for this machine the folder is empty."""
        return self.folder / "root"

    @property
    def mount_options(self) -> str:
        # volatile: the disk need not outlive a crash of this machine, so nothing waits for it (dpkg syncs each file)
        lower = ":".join(map(str, self.bases))
        return f"lowerdir={lower},upperdir={self.layer},workdir={self.folder / 'work'},volatile"

    def make(self) -> None:
        for part in (self.layer, self.root, self.folder / "work"):
            part.mkdir()

    def has(self, path: Path | str) -> bool:
        """Whether an absolute path exists on the disk."""
        inside = Path(path).relative_to("/")
        return any(os.path.lexists(tree / inside) for tree in (self.layer, *self.bases))

    def directory(self, path: Path | str) -> Path:
        """The layer's directory for an absolute path, made with the owner and mode that the bases give it."""
        made, inside = self.layer, Path(path).relative_to("/")
        for part in [Path(), *reversed(inside.parents), inside]:
            made = self.layer / part
            if not made.is_dir():
                made.mkdir(mode=0o755)
            original = next((base / part for base in self.bases if (base / part).is_dir()), None)
            if original:
                status = original.stat()
                os.chown(made, status.st_uid, status.st_gid)
                made.chmod(status.st_mode & 0o7777)
        return made

    def write(self, path: Path | str, text: str, mode: int = 0o644) -> None:
        """Write a file of root's at an absolute path."""
        target = self.directory(Path(path).parent) / Path(path).name
        target.write_text(text)
        target.chmod(mode)

    def copy(self, source: Path, path: Path | str) -> None:
        """Copy a file, or what is in a folder, of this machine to an absolute path on the disk."""
        if source.is_dir():
            command("cp", "-a", f"{source}/.", f"{self.directory(path)}/")
        else:
            shutil.copy2(source, self.directory(Path(path).parent) / Path(path).name)
