-- The extension installs, its engine is on, and VACUUM takes the same options as ever.
SHOW cyclone.enabled;
CREATE TABLE t (id int PRIMARY KEY);
INSERT INTO t SELECT generate_series(1, 1000);
DELETE FROM t WHERE id % 2 = 0;
VACUUM t;
VACUUM (ANALYZE, PARALLEL 2, FREEZE) t;
VACUUM (PARALLEL -1) t;
SELECT count(*), min(id), max(id) FROM t;
DROP TABLE t;
