"""TLS: a server with a certificate, users who log in by SCRAM with hashed passwords, and a client with a certificate.

The CA is made here, by the program openssl, and thrown away. A real one stays where only its owner can reach it.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pyarrow as pa

import fluss
from fluss import embedded
from fluss.protocol.stored_password import StoredPassword
from fluss.testing.certificates import ThrowawayCa

PATH = fluss.TablePath("fluss", "payments")


async def main(directory: Path) -> None:
    ca = ThrowawayCa(directory)
    server_certificate = ca.issue("server", names=["127.0.0.1"])
    robot = ca.issue("robot")
    # What `python -m fluss.server hash-password --user alice` prints. The server never sees the password itself.
    users = directory / "users"
    users.touch(mode=0o600)
    users.write_text(f"alice:{StoredPassword.of('alice-secret')}\n")

    # The same keys stand in a server.yaml.
    options = {
        "bind.listeners": "USERS://127.0.0.1:0, ROBOTS://127.0.0.1:0",
        "security.protocol.map": "USERS:SASL_SSL, ROBOTS:SSL",
        "security.ssl.certificate.file": str(server_certificate.certificate_file),
        "security.ssl.key.file": str(server_certificate.key_file),
        # Robots do not have passwords but certificates; their common names are their user names.
        "security.ssl.listener.name.robots.client.auth": "required",
        "security.ssl.listener.name.robots.client.ca.file": str(ca.certificate_file),
        "security.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "security.sasl.users.file": str(users),
        "authorizer.enabled": "true",
        "super.users": "User:alice",
    }
    async with embedded.EmbeddedServer(options) as server:
        alice = server.config(
            "USERS",
            security_protocol="sasl_ssl",
            security_ssl_ca=str(ca.certificate_file),
            security_sasl_mechanism="SCRAM-SHA-256",
            security_sasl_username="alice",
            security_sasl_password="alice-secret",
        )
        async with await fluss.FlussConnection.create(alice) as connection:
            admin = connection.get_admin()
            schema = fluss.Schema(pa.schema([("id", pa.int64()), ("amount", pa.int64())]))
            await admin.create_table(PATH, fluss.TableDescriptor(schema))
            may_write = fluss.AclBinding(fluss.AclResource.table(PATH), "User:robot", fluss.AclOperation.WRITE)
            await admin.create_acls([may_write])
            print("alice has made a table, and lets the robot write")

        as_robot = server.config(
            "ROBOTS",
            security_protocol="ssl",
            security_ssl_ca=str(ca.certificate_file),
            security_ssl_certificate=str(robot.certificate_file),
            security_ssl_key=str(robot.key_file),
        )
        async with await fluss.FlussConnection.create(as_robot) as connection:
            table = await connection.get_table(PATH)
            async with table.new_append().create_writer() as writer:
                writer.append([1, 100])
            print("the robot has written, without a password")

        for what, config in (
            ("without TLS", server.config("USERS")),
            ("with a CA that did not sign it", server.config("ROBOTS", security_protocol="ssl")),
        ):
            try:
                await fluss.FlussConnection.create(config)
            except fluss.FlussError as error:
                print(f"{what}: {error.message}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
