"""Small wheels for tests, made on the spot, and their lines in a lock."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def wheel(
    folder: Path,
    name: str,
    version: str,
    files: dict[str, str],
    script: str = "",
    recorded: dict[str, str] | None = None,
) -> Path:
    """A wheel in `folder`. `recorded`: other contents to hash into RECORD than those packed."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    content = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        content[f"{info}/entry_points.txt"] = f"[console_scripts]\n{script}\n"
    rows = []
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in content.items():
            entry = zipfile.ZipInfo(file)
            entry.external_attr = 0o100600 << 16  # as packed by somebody with a strict umask
            archive.writestr(entry, text)
            packed = (recorded or {}).get(file, text).encode()
            digest = base64.urlsafe_b64encode(hashlib.sha256(packed).digest()).rstrip(b"=").decode()
            rows.append(f"{file},sha256={digest},{len(packed)}")
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
    return path


def pin(wheel: Path, sha256: str = "") -> str:
    name, version = wheel.name.split("-")[:2]
    return f"{name}=={version} \\\n    --hash=sha256:{sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
