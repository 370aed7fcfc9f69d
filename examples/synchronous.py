"""No event loop anywhere: the blocking face of the client, for scripts, threads and notebooks."""

from __future__ import annotations

import pyarrow as pa

from fluss import blocking, embedded

PATH = blocking.TablePath("fluss", "logins")


def main() -> None:
    with embedded.start() as server, blocking.FlussConnection.create(server.config()) as connection:
        schema = blocking.Schema(pa.schema([("user", pa.string()), ("ok", pa.bool_())]))
        connection.get_admin().create_table(PATH, blocking.TableDescriptor(schema))
        table = connection.get_table(PATH)

        with table.new_append().create_writer() as writer:
            for number in range(1000):
                writer.append((f"user-{number % 10}", number % 4 != 0))

        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, blocking.EARLIEST_OFFSET)
        logins = scanner.to_pandas()
        print(f"{len(logins)} logins, {int((~logins['ok']).sum())} of them failed")


if __name__ == "__main__":
    main()
