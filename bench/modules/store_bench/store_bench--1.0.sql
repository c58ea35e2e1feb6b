\echo Use "CREATE EXTENSION store_bench" to load this file. \quit

-- Fills the server's TidStore and the dead-TID store with the dead items of a made-up table, checks that both say the same
-- of each item, and then looks up every item of the table in both, as the vacuum of an index that has them in this order
-- would, round after round. Returns a row for each round and way to look up. An error is raised if the stores differ.
CREATE FUNCTION store_bench(
	nblocks bigint,              -- of the table
	page_items integer,          -- on each page, from 1 to what a page can have
	pattern text,                -- which of them are dead; the names are in store_bench.c
	lookup_order text,           -- 'table', 'random', or 'keys': sorted by a key that has 1000 values and changes by row
	batch integer,               -- items looked up at a time, as many as an index page has
	rounds integer,
	in_shared_memory boolean,    -- as if there were workers
	OUT round integer,           -- from 1
	OUT way text,                -- 'core', 'ours, one by one' or 'ours, in batches'
	OUT nanoseconds float8,      -- a look-up
	OUT dead_items bigint,
	OUT used_bytes bigint,       -- as VERBOSE reports it; NULL for core, which does not tell
	OUT allocated_bytes bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME' LANGUAGE C STRICT;
