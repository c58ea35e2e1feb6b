-- until each transaction of others in this database that was under way has ended, since it may still see what was deleted
CREATE PROCEDURE wait_for_snapshots() LANGUAGE plpgsql AS $$
DECLARE
    older text[];
BEGIN
    SELECT array_agg(virtualxid) INTO older FROM pg_locks
    WHERE locktype = 'virtualxid' AND pid <> pg_backend_pid()
      AND pid NOT IN (SELECT pid FROM pg_stat_activity WHERE datname <> current_database());
    FOR i IN 1..6000 LOOP
        EXIT WHEN NOT EXISTS (SELECT FROM pg_locks WHERE virtualxid = ANY (older));
        PERFORM pg_sleep(0.01);
    END LOOP;
END
$$;
