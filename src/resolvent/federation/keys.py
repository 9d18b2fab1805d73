"""Certificates and keys: a certificate authority of the federation's own, the server's certificate, a key per node."""

from __future__ import annotations

import ipaddress
import os
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from resolvent.errors import InputError
from resolvent.federation.project import Project
from resolvent.installed import install

DAYS = 3650
CA, CA_KEY, CERTIFICATE, SERVER_KEY, SECRET = "ca.crt", "ca.key", "server.crt", "server.key", "superexec.secret"
EARLY = timedelta(hours=1)
"""Certificates begin to be valid this long ago: clocks differ."""


def _needed() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise InputError(f"keys need cryptography, which is not installed; {install('flower')}") from None


def make_server(project: Project, hosts: list[str]) -> None:
    """A certificate authority where there is none yet, and the server's certificate for these names and addresses."""
    _needed()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    folder = project.keys
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / CA).is_file():
        _make_authority(folder)
    authority = x509.load_pem_x509_certificate((folder / CA).read_bytes())
    ca_key, key = _load(folder / CA_KEY), _new()
    names = [_general_name(host) for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1"])]
    made = _builder(x509, hosts[0], authority.subject, key)
    made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    made = made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    _write(folder / CERTIFICATE, _pem(made.sign(ca_key, hashes.SHA256())), secret=False)
    _write(folder / SERVER_KEY, _private(key), secret=True)
    if not (folder / SECRET).is_file():
        _write(folder / SECRET, secrets.token_hex(32).encode(), secret=True)


def _make_authority(folder: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    key = _new()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"resolvent federation {secrets.token_hex(4)}")])
    made = _builder(x509, None, name, key)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    usage = dict.fromkeys(("digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
                           "key_agreement", "encipher_only", "decipher_only"), False)  # fmt: skip
    made = made.add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
    _write(folder / CA, _pem(made.sign(key, hashes.SHA256())), secret=False)
    _write(folder / CA_KEY, _private(key), secret=True)


def make_node(project: Project, name: str) -> Path:
    """The key pair of a node, in OpenSSH's format: NAME and NAME.pub. A key that is there already is left alone."""
    _needed()
    from cryptography.hazmat.primitives import serialization as s

    check_name(name)
    path = project.nodes / name
    if not path.is_file():
        key = _new()
        path.parent.mkdir(parents=True, exist_ok=True)
        private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption())
        _write(path, private, secret=True)
        public = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH)
        _write(path.with_name(f"{name}.pub"), public + b"\n", secret=False)
    return path


def check_name(name: str) -> None:
    if not name or len(name) > 60 or not all(c.isascii() and (c.isalnum() or c in "-_") for c in name):
        raise InputError(f"the node's name is {name[:80]!r}, but letters, digits, - and _ are needed, 60 at most")


def public_keys(project: Project) -> dict[bytes, str]:
    """The names of the nodes by their public keys, in the form in which Flower knows them."""
    _needed()
    from cryptography.hazmat.primitives import serialization as s

    found = {}
    for name in project.names():
        path = project.nodes / f"{name}.pub"
        try:
            key = s.load_ssh_public_key(path.read_bytes())
        except ValueError:
            raise InputError(f"{path} is no public key; copy it again from the node's machine") from None
        found[key.public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)] = name
    return found


def valid_until(path: Path) -> tuple[datetime, datetime, list[str]]:
    """From when until when a certificate is valid, and for which names."""
    _needed()
    from cryptography import x509

    found = x509.load_pem_x509_certificate(path.read_bytes())
    names: list[str] = []
    try:
        extension = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = [str(name.value) for name in extension]
    except x509.ExtensionNotFound:
        pass
    return found.not_valid_before_utc, found.not_valid_after_utc, names


# --- what they are made of -------------------------------------------------------------------------------------------


def _builder(x509: Any, common: str | None, issuer: Any, key: Any) -> Any:
    subject = issuer if common is None else x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common[:60])])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number())
    return made.not_valid_before(now - EARLY).not_valid_after(now + timedelta(days=DAYS))


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _new() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _load(path: Path) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not path.is_file():
        raise InputError(f"{path} is missing: only the machine that made the certificate authority can sign")
    return load_pem_private_key(path.read_bytes(), None)


def _private(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as s

    made: bytes = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    return made


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    made: bytes = certificate.public_bytes(Encoding.PEM)
    return made


def _write(path: Path, content: bytes, secret: bool) -> None:
    """Secrets can be read by this user alone, from the first moment on."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
