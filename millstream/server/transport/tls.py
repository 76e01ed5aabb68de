"""The certificate a server shows, checked before anything is loaded: uvicorn reads it again when it begins to
listen."""

from __future__ import annotations

import ssl
from pathlib import Path

from millstream.core.errors import ConfigError


def check_certificate(cert: Path | None, key: Path | None) -> None:
    """Raises one line about what is wrong with the pair. Neither is right too: then the server speaks
    HTTP."""
    if cert is None and key is None:
        return
    if cert is None or key is None:
        given, missing = ("--tls-cert", "--tls-key") if key is None else ("--tls-key", "--tls-cert")
        raise ConfigError(f"{given} needs {missing} beside it")
    _check_readable("--tls-cert", cert)
    _check_readable("--tls-key", key)

    def refuse_encrypted() -> str:
        raise ConfigError(
            f"--tls-key {key} is encrypted and nobody is there to type its password; give one that is not"
        )

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=refuse_encrypted)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"--tls-key {key} does not belong to --tls-cert {cert}; give the key it was made with"
            ) from None
        why = (error.reason or "unreadable").replace("_", " ").lower()
        raise ConfigError(
            f"--tls-cert {cert} and --tls-key {key} must be a certificate and its key in PEM: {why}"
        ) from None


def _check_readable(option: str, path: Path) -> None:
    """For OpenSSL does not say which of the two it could not read."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"cannot read {option} {path}: {error.strerror}") from None
