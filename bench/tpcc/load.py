"""Fills TPC-C's tables, and ages them: rows are updated and old orders deleted, so that VACUUM has something to do."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psycopg

from cyclone_lab.cluster import Cluster

SCHEMA = Path(__file__).resolve().parent / "schema.sql"
SMALL_TABLES = ("warehouse", "district")  # updated by most transactions
# All others, in the order in which they are vacuumed
LARGE_TABLES = ("customer", "stock", "order_line", "orders", "new_order", "history", "item")

# Rows by the specification: items, stock of a warehouse; customers, orders, undelivered orders of one of its ten districts
SPECIFIED_ITEMS = 100_000
SPECIFIED_CUSTOMERS = 3000
SPECIFIED_UNDELIVERED = 900
SPECIFIED_NAMES = 1000
# A of NURand: how many of the items and customers are popular
SPECIFIED_ITEM_A = 8191
SPECIFIED_CUSTOMER_A = 1023


@dataclass(frozen=True)
class Sizes:
    """How many rows the tables get."""

    warehouses: int
    part: float  # of the rows that the specification wants for each warehouse
    dead: float  # of the rows that aging updates, and of the orders that it deletes; 0 to 1

    @property
    def items(self) -> int:
        return max(100, round(self.part * SPECIFIED_ITEMS))

    @property
    def customers(self) -> int:
        """Of a district. Each has one order, beside the archived ones."""
        return max(20, round(self.part * SPECIFIED_CUSTOMERS))

    @property
    def archived(self) -> int:
        """Old orders of a district: the first ones, which aging deletes."""
        return round(self.dead * self.customers)

    @property
    def undelivered(self) -> int:
        return self.customers * SPECIFIED_UNDELIVERED // SPECIFIED_CUSTOMERS

    @property
    def names(self) -> int:
        """Different last names; each district has a customer of every name."""
        return min(SPECIFIED_NAMES, self.customers)

    def variables(self) -> dict[str, int]:
        """Return what statements and scripts must know of these sizes, by name."""
        return {
            "warehouses": self.warehouses,
            "items": self.items,
            "customers": self.customers,
            "archived": self.archived,
            "undelivered": self.undelivered,
            "names": self.names,
            "item_a": _scaled_a(SPECIFIED_ITEM_A, self.items / SPECIFIED_ITEMS),
            "customer_a": _scaled_a(SPECIFIED_CUSTOMER_A, self.customers / SPECIFIED_CUSTOMERS),
        }


def _scaled_a(specified: int, part: float) -> int:
    """Return the A of NURand for a part of the range: like the specified one, the power of 2 less 1 that is next to it."""
    return (1 << max(1, round((specified + 1) * part).bit_length() - 1)) - 1


_ADDRESS = "drawn_text({0}, 10, 20), drawn_text({0} + 1, 10, 20), drawn_text({0} + 2, 10, 20), 'ST', '123411111'"
_DISTRICTS = "generate_series(1, %(warehouses)s) w, generate_series(1, 10) d"
_ORDERS = f"{_DISTRICTS}, generate_series(1, %(archived)s + %(customers)s) o"
# Distinct numbers for the keys of a table, as seeds for what is drawn
_CUSTOMER = "(((w * 10 + d) * 100000::bigint + c) * 16)"
_ORDER = "((w * 10 + d) * 1000000::bigint + o)"
_LINE = f"(({_ORDER} * 16 + line) * 4)"
_LINES_OF_ORDER = f"drawn({_ORDER}, 5, 15)"
_DELIVERED = "o <= %(archived)s + %(customers)s - %(undelivered)s"

# For each table the query of its rows; w, d, c, i, o are the numbers of warehouse, district, customer, item, order.
_ROWS = {
    "warehouse": f"""
        SELECT w, drawn_text(w, 6, 10), {_ADDRESS.format("w * 8")}, drawn(w, 0, 2000) / 10000.0, 100.0 * %(customers)s
        FROM generate_series(1, %(warehouses)s) w
    """,
    "district": f"""
        SELECT w, d, drawn_text(w * 10 + d, 6, 10), {_ADDRESS.format("(w * 10 + d) * 8")}, drawn(w * 10 + d, 0, 2000) / 10000.0,
               10.0 * %(customers)s, 1 + %(archived)s + %(customers)s
        FROM {_DISTRICTS}
    """,
    "item": """
        SELECT i, drawn(i, 1, 10000), drawn_text(i, 14, 24), drawn(i + 1, 100, 10000) / 100.0,
               drawn_text(i, 26, 42) || CASE WHEN drawn(i, 1, 10) = 1 THEN 'ORIGINAL' ELSE '' END
        FROM generate_series(1, %(items)s) i
    """,
    "stock": """
        SELECT w, i, drawn(key, 10, 100), substr(text, 1, 24), substr(text, 2, 24), substr(text, 3, 24), substr(text, 4, 24),
               substr(text, 5, 24), substr(text, 6, 24), substr(text, 7, 24), substr(text, 8, 24), substr(text, 9, 24),
               substr(text, 10, 24), 0, 0, 0, repeat(text, 2)::varchar(32)
        FROM generate_series(1, %(warehouses)s) w, generate_series(1, %(items)s) i,
             LATERAL (SELECT w * 1000000::bigint + i AS key, md5(format('%%s/%%s', w, i)) || 'tail' AS text) row
    """,
    "customer": f"""
        SELECT w, d, c, drawn_text({_CUSTOMER}, 8, 16), 'OE',
               last_name(CASE WHEN c <= %(names)s THEN c - 1 ELSE nurand({_CUSTOMER}, 255, %(names)s) - 1 END),
               {_ADDRESS.format(_CUSTOMER)}, '0123456789012345', now(),
               CASE WHEN drawn({_CUSTOMER} + 3, 1, 10) = 1 THEN 'BC' ELSE 'GC' END, 50000,
               drawn({_CUSTOMER} + 4, 0, 5000) / 10000.0, -10, 10, 1, 0, drawn_text({_CUSTOMER} + 5, 300, 500)
        FROM {_DISTRICTS}, generate_series(1, %(customers)s) c
    """,
    "history": f"""
        SELECT w, d, c, w, d, now(), 10, drawn_text({_CUSTOMER}, 12, 24) FROM {_DISTRICTS}, generate_series(1, %(customers)s) c
    """,
    # The prime number makes it a permutation: each customer has ordered.
    "orders": f"""
        SELECT w, d, o, (o * 7919::bigint + d) %% %(customers)s + 1, now(),
               CASE WHEN {_DELIVERED} THEN drawn({_ORDER} + 1, 1, 10) END, {_LINES_OF_ORDER}, 1
        FROM {_ORDERS}
    """,
    "new_order": f"SELECT w, d, o FROM {_ORDERS} WHERE NOT {_DELIVERED}",
    "order_line": f"""
        SELECT w, d, o, line, drawn({_LINE}, 1, %(items)s), w, CASE WHEN {_DELIVERED} THEN now() END, 5,
               CASE WHEN {_DELIVERED} THEN 0 ELSE drawn({_LINE} + 1, 1, 999999) / 100.0 END, left(md5({_LINE}::text), 24)
        FROM {_ORDERS}, generate_series(1, {_LINES_OF_ORDER}) line
    """,
}
_INDEXES = {
    "warehouse": ("ALTER TABLE warehouse ADD PRIMARY KEY (w_id)",),
    "district": ("ALTER TABLE district ADD PRIMARY KEY (d_w_id, d_id)",),
    "item": ("ALTER TABLE item ADD PRIMARY KEY (i_id)",),
    "stock": ("ALTER TABLE stock ADD PRIMARY KEY (s_w_id, s_i_id)",),
    "customer": (
        "ALTER TABLE customer ADD PRIMARY KEY (c_w_id, c_d_id, c_id)",
        "CREATE INDEX customer_by_name ON customer (c_w_id, c_d_id, c_last, c_first)",
    ),
    "history": (),
    "orders": (
        "ALTER TABLE orders ADD PRIMARY KEY (o_w_id, o_d_id, o_id)",
        "CREATE INDEX orders_by_customer ON orders (o_w_id, o_d_id, o_c_id, o_id)",
    ),
    "new_order": ("ALTER TABLE new_order ADD PRIMARY KEY (no_w_id, no_d_id, no_o_id)",),
    "order_line": ("ALTER TABLE order_line ADD PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number)",),
}
_FOREIGN_KEYS = (
    "ALTER TABLE district ADD FOREIGN KEY (d_w_id) REFERENCES warehouse",
    "ALTER TABLE stock ADD FOREIGN KEY (s_w_id) REFERENCES warehouse, ADD FOREIGN KEY (s_i_id) REFERENCES item",
    "ALTER TABLE customer ADD FOREIGN KEY (c_w_id, c_d_id) REFERENCES district",
    "ALTER TABLE history ADD FOREIGN KEY (h_c_w_id, h_c_d_id, h_c_id) REFERENCES customer,"
    " ADD FOREIGN KEY (h_w_id, h_d_id) REFERENCES district",
    "ALTER TABLE orders ADD FOREIGN KEY (o_w_id, o_d_id, o_c_id) REFERENCES customer",
    "ALTER TABLE new_order ADD FOREIGN KEY (no_w_id, no_d_id, no_o_id) REFERENCES orders",
    "ALTER TABLE order_line ADD FOREIGN KEY (ol_w_id, ol_d_id, ol_o_id) REFERENCES orders,"
    " ADD FOREIGN KEY (ol_supply_w_id, ol_i_id) REFERENCES stock",
)
# None of these changes what the tables say, as far as the specification's consistency conditions go.
_AGING = (
    "UPDATE customer SET c_data = reverse(c_data) WHERE drawn(c_w_id + 100 * c_id, 0, 999) < %(dead)s * 1000",
    "UPDATE stock SET s_quantity = s_quantity + 1 WHERE drawn(s_w_id + 100 * s_i_id, 0, 999) < %(dead)s * 1000",
    "UPDATE order_line SET ol_quantity = 6 WHERE ol_o_id > %(archived)s"
    " AND drawn(ol_w_id + 100 * ol_o_id + ol_number, 0, 999) < %(dead)s * 1000",
    "DELETE FROM order_line WHERE ol_o_id <= %(archived)s",
    "DELETE FROM orders WHERE o_id <= %(archived)s",
)


def load(cluster: Cluster, sizes: Sizes, *, dbname: str = "postgres", processes: int = 1) -> None:
    """Make and fill the tables in a running server's database, with as many sessions as `processes`, and VACUUM them."""
    with cluster.connect(dbname) as conn:
        conn.execute(SCHEMA.read_text())
    # The large ones first, so that no session is left with one of them at the end
    names = sorted(_ROWS, key=("order_line", "stock", "customer").__contains__, reverse=True)
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(lambda name: _fill(cluster, dbname, name, sizes), names))
    with cluster.connect(dbname) as conn:
        for statement in _FOREIGN_KEYS:
            conn.execute(statement)
        conn.execute("VACUUM (FREEZE, ANALYZE)")


def _fill(cluster: Cluster, dbname: str, table: str, sizes: Sizes) -> None:
    """Fill one table and make its indexes. It is truncated before, so that with wal_level = minimal its rows go unlogged."""
    with cluster.connect(dbname) as conn:
        with conn.transaction():
            conn.execute(f"TRUNCATE {table}")
            _client_side(conn, f"INSERT INTO {table} {_ROWS[table]}", sizes)
        for statement in _INDEXES[table]:
            conn.execute(statement)


def age(cluster: Cluster, sizes: Sizes, *, dbname: str = "postgres") -> None:
    """Leave dead rows in the loaded tables: the share `sizes.dead` of the largest ones is updated, old orders are deleted."""
    with cluster.connect(dbname) as conn:
        conn.execute("SET session_replication_role = replica")  # the foreign keys hold, without asking for each row
        for statement in _AGING:
            _client_side(conn, statement, sizes)


def _client_side(conn: psycopg.Connection, statement: str, sizes: Sizes) -> None:
    """Run a statement with the sizes as constants in its text, as the planner needs to see them."""
    psycopg.ClientCursor(conn).execute(statement, {**sizes.variables(), "dead": sizes.dead})


def database_bytes(cluster: Cluster, *, dbname: str = "postgres") -> int:
    """Return the size of all nine tables with their indexes."""
    tables = ", ".join(f"'{table}'" for table in (*SMALL_TABLES, *LARGE_TABLES))
    [(size,)] = cluster.sql(f"SELECT sum(pg_total_relation_size(name::regclass))::bigint FROM unnest(ARRAY[{tables}]) name",
                            dbname=dbname)  # fmt: skip
    return size
