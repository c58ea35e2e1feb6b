-- TPC-C's nine tables without keys and indexes, which load.py adds when the rows are there, and the functions that loader and
-- scripts share. All is random but reproducible: what looks random is a hash, so that every run gets the same rows.

CREATE TABLE warehouse (
    w_id int, w_name varchar(10), w_street_1 varchar(20), w_street_2 varchar(20), w_city varchar(20), w_state char(2),
    w_zip char(9), w_tax numeric(4, 4), w_ytd numeric(12, 2)
);

CREATE TABLE district (
    d_w_id int, d_id int, d_name varchar(10), d_street_1 varchar(20), d_street_2 varchar(20), d_city varchar(20),
    d_state char(2), d_zip char(9), d_tax numeric(4, 4), d_ytd numeric(12, 2), d_next_o_id int
);

CREATE TABLE item (i_id int, i_im_id int, i_name varchar(24), i_price numeric(5, 2), i_data varchar(50));

CREATE TABLE stock (
    s_w_id int, s_i_id int, s_quantity int, s_dist_01 char(24), s_dist_02 char(24), s_dist_03 char(24), s_dist_04 char(24),
    s_dist_05 char(24), s_dist_06 char(24), s_dist_07 char(24), s_dist_08 char(24), s_dist_09 char(24), s_dist_10 char(24),
    s_ytd int, s_order_cnt int, s_remote_cnt int, s_data varchar(50)
);

CREATE TABLE customer (
    c_w_id int, c_d_id int, c_id int, c_first varchar(16), c_middle char(2), c_last varchar(16), c_street_1 varchar(20),
    c_street_2 varchar(20), c_city varchar(20), c_state char(2), c_zip char(9), c_phone char(16), c_since timestamptz,
    c_credit char(2), c_credit_lim numeric(12, 2), c_discount numeric(4, 4), c_balance numeric(12, 2),
    c_ytd_payment numeric(12, 2), c_payment_cnt int, c_delivery_cnt int, c_data varchar(500)
);

CREATE TABLE history (
    h_c_w_id int, h_c_d_id int, h_c_id int, h_w_id int, h_d_id int, h_date timestamptz, h_amount numeric(6, 2),
    h_data varchar(24)
);

CREATE TABLE orders (
    o_w_id int, o_d_id int, o_id int, o_c_id int, o_entry_d timestamptz, o_carrier_id int, o_ol_cnt int, o_all_local int
);

CREATE TABLE new_order (no_w_id int, no_d_id int, no_o_id int);

CREATE TABLE order_line (
    ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int, ol_supply_w_id int, ol_delivery_d timestamptz,
    ol_quantity int, ol_amount numeric(6, 2), ol_dist_info char(24)
);

-- A number from low to high that depends on the key alone.
CREATE FUNCTION drawn(key bigint, low int, high int) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN low + (hashint8(key)::bigint & 2147483647) % (high - low + 1);

-- A text from shortest to longest characters that depends on the key alone.
CREATE FUNCTION drawn_text(key bigint, shortest int, longest int) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN left(repeat(md5(key::text), 16), drawn(key, shortest, longest));

-- The specification's non-uniform random number NURand(a, 1, high) with C = 0, drawn for the key.
CREATE FUNCTION nurand(key bigint, a int, high int) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (drawn(key, 0, a) | drawn(key + 4611686018427387904, 1, high)) % high + 1;

-- A customer's last name by its number, 0 to 999.
CREATE FUNCTION last_name(number int) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (ARRAY['BAR', 'OUGHT', 'ABLE', 'PRI', 'PRES', 'ESE', 'ANTI', 'CALLY', 'ATION', 'EING'])[number / 100 + 1]
    || (ARRAY['BAR', 'OUGHT', 'ABLE', 'PRI', 'PRES', 'ESE', 'ANTI', 'CALLY', 'ATION', 'EING'])[number / 10 % 10 + 1]
    || (ARRAY['BAR', 'OUGHT', 'ABLE', 'PRI', 'PRES', 'ESE', 'ANTI', 'CALLY', 'ATION', 'EING'])[number % 10 + 1];

-- What a New-Order transaction orders: up to `lines` different items, one in a hundred from another warehouse.
-- The constant 15 tells the planner how few they are.
CREATE FUNCTION order_lines(seed bigint, lines int, home int, warehouses int, items int, a int)
RETURNS TABLE (i_id int, supply_w_id int, quantity int) LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT DISTINCT ON (1)
           nurand(seed + 4 * line, a, items),
           CASE WHEN warehouses > 1 AND drawn(seed + 4 * line + 1, 1, 100) = 1
                THEN 1 + (home - 1 + drawn(seed + 4 * line + 2, 1, warehouses - 1)) % warehouses
                ELSE home END,
           drawn(seed + 4 * line + 3, 1, 10)
    FROM generate_series(1, 15) line
    WHERE line <= lines;
END;
