"""A Vault of the loopback: the transit routes that a key provider asks, over HTTPS, with real keys."""

from __future__ import annotations

import base64
import datetime
import hmac
import ipaddress
import json
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "s.a-token-of-a-test"


class Vault:
    """The keys of one transit engine, and what was asked."""

    def __init__(self, *names: str) -> None:
        self.keys: dict[str, list[bytes]] = {name: [os.urandom(32)] for name in names}
        self.asked: list[str] = []
        self.tokens: set[str] = {TOKEN}
        self.status = 0  # answered to everything; 0: work
        self.hangs = threading.Event()  # until it is set again
        self.hangs.set()
        self.address = ""
        self.ca_file = ""

    def rotate(self, name: str) -> None:
        """Let a key have another version, under which is written from now on."""
        self.keys[name].append(os.urandom(32))

    def encrypt(self, name: str, item: Any) -> dict[str, str]:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce, version = os.urandom(12), len(self.keys[name])
        data = base64.b64decode(item.get("associated_data", ""))
        sealed = AESGCM(self.keys[name][-1]).encrypt(nonce, base64.b64decode(item["plaintext"]), data)
        return {"ciphertext": f"vault:v{version}:{base64.b64encode(nonce + sealed).decode()}"}

    def decrypt(self, name: str, item: Any) -> dict[str, str]:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            vault, version, text = item["ciphertext"].split(":")
            assert (vault, version[0]) == ("vault", "v")
            content = base64.b64decode(text, validate=True)
            data = base64.b64decode(item.get("associated_data", ""))
            key = self.keys[name][int(version[1:]) - 1]
            plain = AESGCM(key).decrypt(content[:12], content[12:], data)
        except Exception:
            return {"error": "cipher: message authentication failed"}
        return {"plaintext": base64.b64encode(plain).decode()}

    def digest(self, name: str, body: Any) -> dict[str, str]:
        key = self.keys[name][body.get("key_version", len(self.keys[name])) - 1]
        digest = hmac.digest(key, base64.b64decode(body["input"]), "sha256")
        return {"hmac": f"vault:v1:{base64.b64encode(digest).decode()}"}

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        """The status and the data of an answer."""
        verb, _, name = path.removeprefix("/v1/transit/").partition("/")
        if name not in self.keys:
            return 404, None
        if verb == "keys":
            return 200, {"name": name, "type": "aes256-gcm96"}
        if verb == "hmac":
            return 200, self.digest(name, body)
        work = self.encrypt if verb == "encrypt" else self.decrypt
        results = [work(name, item) for item in body["batch_input"]]
        return (400 if all("error" in one for one in results) else 200), {"batch_results": results}


class _Handler(BaseHTTPRequestHandler):
    vault: Vault
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._serve(None)

    def do_POST(self) -> None:
        self._serve(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _serve(self, body: Any) -> None:
        self.vault.asked.append(self.path.removeprefix("/v1/transit/"))
        self.vault.hangs.wait()
        status, data = self.vault.status, None
        if not status and self.headers["x-vault-token"] not in self.vault.tokens:
            status = 403
        if not status:
            status, data = self.vault.answer(self.path, body)
        content = json.dumps({"data": data} if data is not None else {"errors": ["no"]}).encode()
        try:
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:  # who asked has gone
            self.close_connection = True

    def log_message(self, *args: Any) -> None:
        """Nothing."""


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args: Any) -> None:
        """Nothing: a test that closes a connection means to."""


@contextmanager
def a_vault(directory: Path, *names: str, port: int = 0) -> Iterator[Vault]:
    """A Vault with keys of these names, whose certificate is one of its own."""
    vault = Vault(*names)
    vault.ca_file = str(directory / "vault.pem")
    key_file = directory / "vault.key"
    _make_certificate(Path(vault.ca_file), key_file)
    handler = type("Handler", (_Handler,), {"vault": vault})
    listener = _Listener(("127.0.0.1", port), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(vault.ca_file, key_file)
    listener.socket = context.wrap_socket(listener.socket, server_side=True)
    thread = threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    vault.address = f"https://127.0.0.1:{listener.server_address[1]}"
    try:
        yield vault
    finally:
        vault.hangs.set()
        listener.shutdown()
        listener.server_close()


def _make_certificate(certificate_file: Path, key_file: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "vault")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
