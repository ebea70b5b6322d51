"""Fills a folder with every wheel that a release needs: make wheelhouse RELEASE=NAME PYTHON=3.11 [DEST=FOLDER].

These are the wheels of both locks (servers and router) and of uv, each compared with the lock's hashes. What lies there
already and is right is not fetched again, so that a run that broke off is gone on with. The folder then goes to the
host (setting package_wheelhouse); `sha256sum -c SHA256SUMS` in it tells whether it arrived whole.
Package sources are those of pip's own configuration on this machine.
"""

import argparse
import hashlib
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tasks.plan.errors import PlanError
from tasks.plan.phases.system import debian_packages
from tasks.plan.release import lock
from tasks.support import catalogue
from tools import download

AT_ONCE = 4  # batches fetched side by side
BATCH = 8  # wheels of one call of pip: it starts slowly, and what it fetched is there once it has all of them
SUMS = "SHA256SUMS"
MB, GB = 1_000_000, 1_000_000_000


def pins(release: str, python: str, router: str, torch_wheel: str) -> tuple[lock.Pin, ...]:
    """What a host with these settings installs. Raises PlanError."""
    manifest = catalogue.manifest(release)
    if python not in manifest.python:
        raise PlanError(f"release {release} has no lock for Python {python}: ask for {' or '.join(manifest.python)}")
    if router not in manifest.routers:
        raise PlanError(
            f"release {release} has no lock for the router {router}: ask for {' or '.join(manifest.routers)}"
        )
    found = catalogue.release(manifest, python, torch_wheel, "smg" if router == "smg" else "sglang-router")
    of = f"of {release}"
    return lock.read_all(
        {f"lock {of}": found.lock, f"router's lock {of}": found.router_lock, "uv.txt": catalogue.uv_lock()}
    )


def right(pin: lock.Pin, python: str, folder: Path) -> tuple[Path, str] | None:
    """The wheel of a pin that lies in `folder`, with its sha256; one with another content is removed."""
    for file in folder.glob(f"{pin.name.replace('-', '?')}-*.whl"):
        if lock.without_wheel([pin], python, [file.name]):
            continue
        digest = sha256(file)
        if f"sha256:{digest}" in pin.hashes:
            return file, digest
        print(f"{file.name}: not as the lock says, fetched again")
        file.unlink()
    return None


def fetch(batch: list[lock.Pin], python: str, folder: Path) -> dict[str, str]:
    """The wheels of some pins, each put into `folder` whole: file name -> sha256. Raises Failed."""
    hashes = {value for pin in batch for value in pin.hashes}
    sums = {}
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as part:
        for fetched in download.wheels([pin.requirement for pin in batch], python, Path(part)):
            sums[fetched.name] = sha256(fetched)
            if f"sha256:{sums[fetched.name]}" not in hashes:
                raise download.Failed(f"{fetched.name}: not as the lock says")
            fetched.rename(folder / fetched.name)
    return sums


def sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def write_sums(folder: Path, sums: dict[str, str]) -> None:
    """SHA256SUMS with these entries, and those of other releases' wheels that are still there."""
    path = folder / SUMS
    old = [line.split("  ", 1) for line in path.read_text().splitlines()] if path.exists() else []
    kept = {name: digest for digest, name in old if (folder / name).exists()}
    path.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted({**kept, **sums}.items())))


def fill(wanted: tuple[lock.Pin, ...], python: str, folder: Path) -> tuple[dict[str, str], int]:
    """File name -> sha256 of every wheel wanted, and how many were fetched now. Raises Failed, what came stays."""
    sums: dict[str, str] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        there = dict(zip(wanted, pool.map(lambda pin: right(pin, python, folder), wanted), strict=True))
        sums |= {found[0].name: found[1] for found in there.values() if found}
        missing = [pin for pin, found in there.items() if not found]
        batches = [missing[first : first + BATCH] for first in range(0, len(missing), BATCH)]
        fetching = [pool.submit(fetch, batch, python, folder) for batch in batches]
        try:
            for done in as_completed(fetching):
                sums |= done.result()
                for name in sorted(done.result()):
                    print(f"{name}, {(folder / name).stat().st_size / MB:.1f} MB", flush=True)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return sums, len(missing)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make wheelhouse", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("release", help="a folder of files/locks")
    parser.add_argument("python", help="3.11, 3.12 or 3.13: the one of the host")
    parser.add_argument("--dest", type=Path, default=Path("wheelhouse"), help="default: %(default)s")
    parser.add_argument("--router", default="sglang-router", help="or smg, as in the setting (default: %(default)s)")
    parser.add_argument("--torch-wheel", default="cpu", choices=["cpu", "ordinary"], help="of a CPU release")
    given = parser.parse_args()
    try:
        wanted = pins(given.release, given.python, given.router, given.torch_wheel)
        given.dest.mkdir(parents=True, exist_ok=True)
        sums, fetched = fill(wanted, given.python, given.dest)
        write_sums(given.dest, sums)
    except (PlanError, download.Failed) as fault:
        print(f"wheelhouse: {fault}", file=sys.stderr)
        return 1
    except OSError as fault:
        print(f"wheelhouse: {fault.filename}: {fault.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("wheelhouse: interrupted; the next run goes on", file=sys.stderr)
        return 130
    size = sum((given.dest / name).stat().st_size for name in sums)
    print(
        f"wheelhouse: {given.dest} holds the {len(sums)} files of {given.release} for Python {given.python}, "
        f"{size / GB:.2f} GB, verified; {fetched} fetched now"
    )
    packages = debian_packages(catalogue.manifest(given.release), [given.python])
    print(f"wheelhouse: the host needs these Debian packages too: {' '.join(packages)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
