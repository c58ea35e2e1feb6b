\echo Use "CREATE EXTENSION test_dead_tids" to load this file. \quit

-- Simulates a vacuum that collects the dead items of a made-up table in as many rounds as it takes, and compares the
-- store with these after each. An error names the round and the block; nothing but the arguments
-- decides what happens.
CREATE FUNCTION test_dead_tids(
	seed bigint,
	nblocks bigint,                     -- of the table, from 0 to 4294967295
	memory bigint,                      -- bytes
	nmembers integer,
	pattern text,                       -- which items of a page are dead; the names are in test_dead_tids.c
	page_gap bigint DEFAULT 0,          -- at most this many blocks without dead items between two with some, as a rule
	scan_gap bigint DEFAULT 0,          -- at most this many blocks skipped between two scanned ones
	read_ahead integer DEFAULT 32,      -- at most this many blocks of a member are asked for and not yet added
	range_blocks bigint DEFAULT 1024,   -- at most this many blocks are claimed at once; 0: a member takes all that are left
	in_shared_memory boolean DEFAULT false,
	growth_may_fail boolean DEFAULT false,  -- of shared memory: half of the times that more is asked for
	OUT rounds bigint,
	OUT pages bigint,                   -- with dead items
	OUT items bigint,
	OUT peak_bytes bigint,
	OUT drained bigint,                 -- times that room was refused until the blocks read ahead were added
	OUT used_up bigint)                 -- times that it was still refused then, and more could not be had
AS 'MODULE_PATHNAME' LANGUAGE C STRICT;

CREATE FUNCTION test_dead_tids_shared_size(nblocks bigint, memory bigint, nmembers integer) RETURNS bigint
AS 'MODULE_PATHNAME' LANGUAGE C STRICT;
