"""Certificates with their keys, for tests."""

import subprocess
from pathlib import Path


def made(folder: Path, name: str, host: str = "service.example") -> tuple[Path, Path]:
    """PEM files of a self-signed certificate and its key, valid for days."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key
