"""The page in a real browser: every view with live data, hostile texts, many tables, a server that goes away, logins.

``make test-page`` runs them, and installs what they need where it can: chromium, playwright, axe-core for checks of
accessibility. Without these they are skipped, and say so. The default tests have one of them, where there is a browser.
Screenshots for the documentation are made if ``FLUSS_SCREENSHOTS`` names a directory.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import fluss
from fluss import blocking, embedded
from tests.pages import ROOT
from tests.ports import free_port

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="the page is tested in a browser: `make browser` installs playwright and chromium"
)
expect = sync_api.expect
slow = pytest.mark.slow

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = ROOT / ".axe" / "node_modules" / "axe-core" / "axe.min.js"
HOSTILE = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 2</script>\' " & \N{RIGHT-TO-LEFT OVERRIDE}x'
ORDERS, EVENTS, READINGS = "shop.orders", "shop.events", "shop.readings"
# Nothing here depends on how fast a machine is.
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)
VIEWS = ["#/", "#/tables", "#/connections", "#/config", "#/log"]
TABS = ["rows", "changelog", "lookup", "schema", "buckets", "consumers", "storage"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[object]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium: `make browser` installs it, or apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page, and everything that it has complained about."""

    def __init__(self, browser, url: str, **options: object) -> None:
        self.context = browser.new_context(base_url=url, **options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.page.on("console", self._hear)

    def _hear(self, message) -> None:
        # A request that is refused is what some tests are about.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    def go(self, hash_: str):
        self.page.goto(f"/{hash_}")
        return self.page

    def __enter__(self):
        return self

    def __exit__(self, *exception: object) -> None:
        self.context.close()


def fill(connection) -> None:
    admin = connection.get_admin()
    admin.create_database("shop", ignore_if_exists=True)
    orders = fluss.Schema(
        pa.schema([pa.field("id", pa.int64(), nullable=False), ("customer", pa.string()), ("note", pa.string())]),
        primary_keys=["id"],
    )
    descriptor = blocking.TableDescriptor(orders, bucket_count=3, comment=HOSTILE, custom_properties={"owner": HOSTILE})
    admin.create_table(ORDERS, descriptor)
    events = pa.schema([("at", pa.timestamp("ms")), ("kind", pa.string()), ("price", pa.decimal128(12, 2))])
    admin.create_table(EVENTS, blocking.TableDescriptor(fluss.Schema(events), bucket_count=4))
    readings = pa.schema([("day", pa.string()), ("value", pa.float64())])
    admin.create_table(READINGS, blocking.TableDescriptor(fluss.Schema(readings), partition_keys=["day"]))
    for day in ("2026-01-01", "2026-01-02"):
        admin.create_partition(READINGS, {"day": day})
    upserts = connection.get_table(ORDERS).new_upsert().create_writer()
    for number in range(40):
        upserts.upsert(
            {"id": number, "customer": f"customer {number % 7}", "note": HOSTILE if number % 5 == 0 else None}
        )
    upserts.flush()
    upserts.upsert({"id": 3, "customer": "somebody else", "note": "changed"})
    upserts.flush()
    append_events(connection, 200)
    appends = connection.get_table(READINGS).new_append_writer()
    appends.append({"day": "2026-01-02", "value": 1.5})
    appends.flush()


def append_events(connection, count: int) -> None:
    rows = pa.table(
        {
            "at": pa.array(range(count), pa.int64()).cast(pa.timestamp("ms")),
            "kind": [["view", "click", "buy", HOSTILE][number % 4] for number in range(count)],
            "price": pa.array([number / 100 for number in range(count)]).cast(pa.decimal128(12, 2)),
        }
    )
    writer = connection.get_table(EVENTS).new_append_writer()
    writer.write_arrow(rows)
    writer.flush()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, object]]:
    port = free_port()
    with (
        embedded.start({"http.listener": port}, data_dir=tmp_path_factory.mktemp("data")) as server,
        blocking.FlussConnection.create(server.config()) as connection,
    ):
        fill(connection)
        yield f"http://127.0.0.1:{port}", connection


def no_harm(opened: Opened) -> None:
    assert opened.page.evaluate("window.hacked") is None
    assert opened.complaints == []


@slow
def test_the_overview_is_alive(chromium, site) -> None:
    url, connection = site
    with Opened(chromium, url, viewport={"width": 1280, "height": 860}) as opened:
        page = opened.go("#/")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        expect(page.locator(".pill.green")).to_have_text("green")
        before = int(page.locator("dd").nth(2).inner_text())
        assert before == 3
        plots = page.locator("svg.plot")
        expect(plots).to_have_count(7)
        for _ in range(3):
            append_events(connection, 100)
        # The table of requests and the plots follow.
        expect(page.get_by_role("cell", name="produceLog")).to_be_visible()
        expect(plots.first).to_have_attribute("aria-label", re.compile(r"Requests: .*/s"))
        expect(plots.first.locator(".line").first).to_have_attribute("d", re.compile(".{30,}"))
        page.get_by_role("button", name="Change between dark and light").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        no_harm(opened)


def test_a_table_with_a_key(chromium, site) -> None:
    url, connection = site
    with Opened(chromium, url, viewport={"width": 1280, "height": 860}) as opened:
        page = opened.go("#/tables")
        page.get_by_label("Name contains").fill("ORD")
        expect(page.get_by_text("1 to 1 of 1 tables")).to_be_visible()
        page.get_by_role("link", name="orders").click()
        expect(page.get_by_role("heading", name="orders")).to_be_visible()
        expect(page.get_by_text(HOSTILE).first).to_be_visible()
        expect(page.locator("tbody tr")).to_have_count(40)
        # A filter, and one that is wrong.
        page.get_by_label("Filter").fill("id >= 38")
        page.get_by_role("button", name="Read").click()
        expect(page.locator("tbody tr")).to_have_count(2)
        page.get_by_label("Filter").fill("nothing = 1")
        page.get_by_role("button", name="Read").click()
        expect(page.get_by_role("alert")).to_contain_text("there is no column 'nothing'")
        # One whole row.
        page.get_by_label("Filter").fill("id = 0")
        page.get_by_role("button", name="Read").click()
        page.get_by_role("button", name="Show the whole row").click()
        expect(page.get_by_role("dialog")).to_contain_text(HOSTILE)
        page.keyboard.press("Escape")
        # The tabs with the keyboard.
        page.get_by_role("tab", name="Rows").focus()
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name="Changelog")).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("cell", name="update_after")).to_be_visible()
        page.get_by_role("tab", name="Look up").click()
        page.get_by_label("id bigint").fill("3")
        page.get_by_role("button", name="Look up").click()
        expect(page.get_by_role("cell", name="somebody else")).to_be_visible()
        page.get_by_label("id bigint").fill("999")
        page.get_by_role("button", name="Look up").click()
        expect(page.get_by_text("There is no row with this key.")).to_be_visible()
        page.get_by_role("tab", name="Schema").click()
        expect(page.get_by_role("cell", name="primary key")).to_be_visible()
        expect(page.get_by_role("cell", name=HOSTILE).first).to_be_visible()
        page.get_by_role("tab", name="Buckets").click()
        expect(page.locator("tbody tr")).to_have_count(3)
        page.get_by_role("tab", name="Consumers").click()
        expect(page.get_by_text("Nobody reads this table")).to_be_visible()
        consumer = connection.get_table(ORDERS).consumer("billing <b>")
        try:
            consumer.poll(5000)
            page.reload()
            expect(page.get_by_role("heading", name="billing <b>")).to_be_visible()
        finally:
            consumer.close()
        page.get_by_role("tab", name="Lake and storage").click()
        expect(page.get_by_text("This table has no lake")).to_be_visible()
        no_harm(opened)


@slow
def test_a_live_tail_with_a_filter(chromium, site) -> None:
    url, connection = site
    with Opened(chromium, url, viewport={"width": 1280, "height": 860}) as opened:
        page = opened.go("#/tables/shop/events/tail")
        expect(page.get_by_role("status")).to_have_text("live; waiting for rows")
        append_events(connection, 8)
        expect(page.locator("tbody tr")).to_have_count(8)
        page.get_by_role("button", name="Stop").click()
        page.get_by_label("Filter").fill("kind = 'buy'")
        page.get_by_role("button", name="Start").click()
        expect(page.get_by_role("status")).to_have_text("live; waiting for rows")
        append_events(connection, 8)
        expect(page.locator("tbody tr")).to_have_count(2)
        no_harm(opened)


@slow
def test_a_table_with_partitions(chromium, site) -> None:
    url, _ = site
    with Opened(chromium, url) as opened:
        page = opened.go("#/tables/shop/readings")
        expect(page.get_by_role("cell", name="1.5")).to_be_visible()
        expect(page.get_by_text(re.compile("^1 row(;|$)"))).to_be_visible()
        page.get_by_role("tab", name="Partitions").click()
        expect(page.locator("tbody tr")).to_have_count(2)
        page.get_by_role("tab", name="Buckets").click()
        expect(page.get_by_label("Partition")).to_have_value("2026-01-02")
        expect(page.locator("tbody tr")).to_have_count(1)
        no_harm(opened)


@slow
def test_the_server_itself(chromium, site) -> None:
    url, _ = site
    with Opened(chromium, url, viewport={"width": 1280, "height": 860}) as opened:
        page = opened.go("#/connections")
        expect(page.get_by_role("cell", name=re.compile(r"127\.0\.0\.1:\d+")).first).to_be_visible()
        page.keyboard.press("g")
        page.keyboard.press("f")
        expect(page.get_by_role("heading", name="Configuration")).to_be_visible()
        page.get_by_label("Key or value contains").fill("http.listener")
        expect(page.get_by_role("cell", name="argument")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("g")
        page.keyboard.press("l")
        expect(page.get_by_role("heading", name="Log")).to_be_visible()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("find a table")
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type("readings")
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name="readings")).to_be_visible()
        no_harm(opened)


@slow
@pytest.mark.parametrize("width", [360, 768])
def test_nothing_is_wider_than_a_phone(chromium, site, width: int) -> None:
    url, _ = site
    with Opened(chromium, url, viewport={"width": width, "height": 740}) as opened:
        for view in [*VIEWS, *(f"#/tables/shop/orders/{tab}" for tab in TABS)]:
            page = opened.go(view)
            page.reload()
            expect(page.locator("main h1")).to_be_visible()
            page.wait_for_load_state("networkidle") if "orders" in view else None
            assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        no_harm(opened)


@slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(chromium, site, scheme: str) -> None:
    if not AXE.exists():
        pytest.skip(f"there is no {AXE}: npm install --prefix .axe axe-core")
    url, _ = site
    # The checks are a script of their own, which the policy of the page would keep out.
    with Opened(chromium, url, color_scheme=scheme, bypass_csp=True) as opened:
        for view in [*VIEWS, *(f"#/tables/shop/orders/{tab}" for tab in TABS)]:
            page = opened.go(view)
            page.reload()
            expect(page.locator("main h1")).to_be_visible()
            if view != "#/log":
                expect(page.locator("main table, main form, main [role=tabpanel] h2").first).to_be_visible()
            page.evaluate(AXE.read_text(encoding="utf-8"))
            found = page.evaluate("async () => (await axe.run()).violations")
            told = [(each["id"], [node["target"] for node in each["nodes"]][:5]) for each in found]
            assert told == [], view


@slow
def test_a_server_that_goes_away_and_comes_back(chromium, tmp_path: Path) -> None:
    http_port, port = free_port(), free_port()
    options = {"http.listener": http_port, "bind.listeners": f"FLUSS://127.0.0.1:{port}"}
    server = embedded.start(options, data_dir=tmp_path)
    try:
        with blocking.FlussConnection.create(server.config()) as connection:
            fill(connection)
        with Opened(chromium, f"http://127.0.0.1:{http_port}") as opened:
            overview = opened.go("#/")
            expect(overview.locator(".pill.green")).to_be_visible()
            tail = opened.context.new_page()
            tail.goto("/#/tables/shop/events/tail")
            expect(tail.get_by_role("status")).to_have_text("live; waiting for rows")
            server.stop()
            expect(overview.get_by_role("alert")).to_contain_text("The server does not answer")
            expect(tail.get_by_role("status")).to_contain_text("the server is away")
            server = embedded.start(options, data_dir=tmp_path)
            expect(overview.locator("#away")).to_be_hidden()
            expect(tail.get_by_role("status")).to_have_text("live; waiting for rows")
            with blocking.FlussConnection.create(server.config()) as connection:
                append_events(connection, 5)
            expect(tail.locator("tbody tr")).to_have_count(5)
    finally:
        server.stop()


@slow
def test_ten_thousand_tables(chromium, tmp_path: Path) -> None:
    http_port = free_port()
    with embedded.start({"http.listener": http_port, "durability": "os"}, data_dir=tmp_path) as server:
        with blocking.FlussConnection.create(server.config()) as connection:
            admin = connection.get_admin()
            descriptor = blocking.TableDescriptor(fluss.Schema(pa.schema([("a", pa.int32())])), bucket_count=1)
            for number in range(10_000):
                admin.create_table(f"fluss.table_{number:05}", descriptor)
        with Opened(chromium, f"http://127.0.0.1:{http_port}") as opened:
            page = opened.go("#/tables")
            expect(page.get_by_text("1 to 100 of 10,000 tables")).to_be_visible()
            page.get_by_role("button", name="Next").click()
            expect(page.get_by_text("101 to 200 of 10,000 tables")).to_be_visible()
            page.get_by_label("Name contains").fill("_0999")
            expect(page.get_by_text("1 to 10 of 10 tables")).to_be_visible()
            no_harm(opened)


@slow
def test_logging_in_and_out(chromium, tmp_path: Path) -> None:
    http_port = free_port()
    options = {
        "http.listener": http_port,
        "security.protocol.map": "FLUSS:SASL",
        "security.sasl.plain.credentials": "admin:admin-secret,alice:alice-secret",
        "authorizer.enabled": True,
        "super.users": "User:admin",
    }
    with embedded.start(options, data_dir=tmp_path), Opened(chromium, f"http://127.0.0.1:{http_port}") as opened:
        page = opened.go("#/")
        page.get_by_label("User").fill("admin")
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert").last).to_be_visible()
        page.get_by_label("Password").fill("admin-secret")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        expect(page.locator(".pill.green")).to_be_visible()
        expect(page.locator("#user")).to_have_text("admin")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        # Alice may not see the server itself, and is told so.
        page.get_by_label("User").fill("alice")
        page.get_by_label("Password").fill("alice-secret")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_text("has no authorization for DESCRIBE")).to_be_visible()


@slow
@pytest.mark.skipif("FLUSS_SCREENSHOTS" not in os.environ, reason="FLUSS_SCREENSHOTS names no directory")
def test_pictures_for_the_documentation(chromium, tmp_path: Path) -> None:
    directory = Path(os.environ["FLUSS_SCREENSHOTS"])
    http_port = free_port()
    with (
        embedded.start({"http.listener": http_port}, data_dir=tmp_path) as server,
        blocking.FlussConnection.create(server.config()) as connection,
    ):
        admin = connection.get_admin()
        admin.create_database("sales")
        orders = pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                ("customer", pa.string()),
                ("country", pa.string()),
                ("amount", pa.decimal128(10, 2)),
                ("ordered_at", pa.timestamp("ms")),
            ]
        )
        descriptor = blocking.TableDescriptor(
            fluss.Schema(orders, primary_keys=["id"]), bucket_count=4, comment="Orders of the web shop"
        )
        admin.create_table("sales.orders", descriptor)
        views = pa.schema([("page", pa.string()), ("user", pa.int64())])
        admin.create_table("sales.page_views", blocking.TableDescriptor(fluss.Schema(views), bucket_count=4))
        begin = datetime(2026, 3, 2, 9)

        def order(number: int) -> dict[str, object]:
            return {
                "id": number,
                "customer": ["Adler & Co", "Brook Ltd", "Castillo", "Dupont", "Eriksen", "Fischer"][number * 7 % 6],
                "country": ["DE", "GB", "ES", "FR", "NO", "AT"][number * 7 % 6],
                "amount": Decimal(number * 37 % 900 + 12) + Decimal(number % 100) / 100,
                "ordered_at": begin + timedelta(minutes=number),
            }

        def work(pages, rounds: int) -> None:
            for number in range(rounds):
                upserts = connection.get_table("sales.orders").new_upsert().create_writer()
                for each in range(100 + 60 * (number % 5)):
                    upserts.upsert(order(number * 40 + each))
                upserts.flush()
                appends = connection.get_table("sales.page_views").new_append_writer()
                count = 4000 * (1 + number % 7)
                appends.write_arrow(pa.table({"page": ["/shop"] * count, "user": range(count)}, schema=views))
                appends.flush()
                lookuper = connection.get_table("sales.orders").new_lookup().create_lookuper()
                for key in range(10 + number % 9):
                    lookuper.lookup({"id": key})
                for page in pages:
                    page.wait_for_timeout(150)

        with Opened(chromium, f"http://127.0.0.1:{http_port}", viewport={"width": 1280, "height": 760}) as opened:
            page = opened.go("#/")
            work([page], 150)
            hide_path = "[...document.querySelectorAll('dt')].at(-1).nextSibling.textContent = '/var/lib/fluss'"
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                page.wait_for_timeout(500)
                page.evaluate(hide_path)
                page.screenshot(path=directory / f"page-overview-{scheme}.png")
            page.emulate_media(color_scheme="light")
            page.set_viewport_size({"width": 390, "height": 780})
            page.evaluate(hide_path)
            page.screenshot(path=directory / "page-phone.png")
            page.set_viewport_size({"width": 1280, "height": 640})
            page = opened.go("#/tables/sales/orders")
            expect(page.locator("tbody tr")).to_have_count(50)
            page.screenshot(path=directory / "page-table.png")
            page = opened.go("#/tables/sales/orders/tail")
            page.reload()
            expect(page.get_by_role("status")).to_have_text("live; waiting for rows")
            work([page], 1)
            expect(page.locator("tbody tr").first).to_be_visible()
            page.wait_for_timeout(2000)
            page.screenshot(path=directory / "page-tail.png")
            assert opened.complaints == []
