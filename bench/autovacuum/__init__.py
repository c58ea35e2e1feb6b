"""Autovacuum by PostgreSQL and by pg_cyclone's engine, beside a load and alone. See __main__.py."""
