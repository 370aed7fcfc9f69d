"""Users and permissions: one listener for everybody inside, one with passwords, and who may do what."""

from __future__ import annotations

import asyncio

import pyarrow as pa

import fluss
from fluss import embedded

# The same keys stand in a server.yaml.
OPTIONS = {
    "bind.listeners": "INSIDE://127.0.0.1:0, CLIENT://127.0.0.1:0",
    "internal.listener.name": "INSIDE",
    "security.protocol.map": "CLIENT:sasl",
    "security.sasl.enabled.mechanisms": "plain",
    "security.sasl.plain.credentials": "admin:admin-secret,alice:alice-secret",
    "authorizer.enabled": "true",
    "super.users": "User:admin",
}
PATH = fluss.TablePath("fluss", "salaries")


def config(server: embedded.EmbeddedServer, user: str, password: str) -> fluss.Config:
    return server.config(
        "CLIENT", security_protocol="sasl", security_sasl_username=user, security_sasl_password=password
    )


async def try_to_connect(server: embedded.EmbeddedServer, user: str, password: str) -> None:
    try:
        await fluss.FlussConnection.create(config(server, user, password))
    except fluss.FlussError as error:
        print(f"{user} with a wrong password: code {error.error_code}")


async def main() -> None:
    async with embedded.EmbeddedServer(OPTIONS) as server:
        await try_to_connect(server, "alice", "wrong")

        async with await fluss.FlussConnection.create(config(server, "admin", "admin-secret")) as admin_connection:
            admin = admin_connection.get_admin()
            schema = fluss.Schema(pa.schema([("name", pa.string()), ("salary", pa.int64())]))
            await admin.create_table(PATH, fluss.TableDescriptor(schema))

            async with await fluss.FlussConnection.create(config(server, "alice", "alice-secret")) as connection:
                print("alice sees:", await connection.get_admin().list_tables("fluss"))
                may_write = fluss.AclBinding(fluss.AclResource.table(PATH), "User:alice", fluss.AclOperation.WRITE)
                await admin.create_acls([may_write])
                print("with a permission to write, alice sees:", await connection.get_admin().list_tables("fluss"))
                table = await connection.get_table(PATH)
                async with table.new_append().create_writer() as writer:
                    writer.append(["alice", 100])
                scanner = await table.new_scan().create_log_scanner()
                scanner.subscribe(0, fluss.EARLIEST_OFFSET)
                try:
                    scanner.poll(2000)
                except fluss.FlussError as error:
                    print(f"but reading is refused: code {error.error_code}")


if __name__ == "__main__":
    asyncio.run(main())
