CREATE TABLE public.test_index_am_entries (index oid, tid tid);
CREATE INDEX ON public.test_index_am_entries (index, tid);

CREATE FUNCTION test_index_am_handler(internal) RETURNS index_am_handler
LANGUAGE C STRICT AS 'MODULE_PATHNAME';

CREATE ACCESS METHOD in_a_table TYPE INDEX HANDLER test_index_am_handler;

CREATE OPERATOR CLASS int4_in_a_table DEFAULT FOR TYPE int4 USING in_a_table AS OPERATOR 1 = (int4, int4);
