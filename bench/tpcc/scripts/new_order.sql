-- New-Order: a customer orders 5 to 15 items. One order in a hundred is rolled back, as if it named an item that is not sold.
\set w random(1, :warehouses)
\set d random(1, 10)
\set c (random(0, :customer_a) | random(1, :customers)) % :customers + 1
\set lines random(5, 15)
\set seed random(1, 1000000000000)
\set unused_item random(1, 100)
BEGIN;
SELECT w_tax, c_discount, c_last, c_credit
FROM warehouse JOIN customer ON c_w_id = w_id
WHERE w_id = :w AND c_d_id = :d AND c_id = :c;
UPDATE district SET d_next_o_id = d_next_o_id + 1
WHERE d_w_id = :w AND d_id = :d
RETURNING d_tax, d_next_o_id - 1 AS order_id \gset
INSERT INTO orders
SELECT :w::int, :d::int, :order_id::int, :c::int, now(), NULL, count(*), bool_and(supply_w_id = :w)::int
FROM order_lines(:seed, :lines, :w, :warehouses, :items, :item_a);
INSERT INTO new_order VALUES (:w, :d, :order_id);
-- The stock is locked in the order of its key, so that orders never wait for each other in a circle.
WITH line AS MATERIALIZED (
    SELECT row_number() OVER (ORDER BY supply_w_id, i_id) AS number, i_id, supply_w_id, quantity, quantity * i_price AS amount
    FROM order_lines(:seed, :lines, :w, :warehouses, :items, :item_a) JOIN item USING (i_id)
), locked AS MATERIALIZED (
    SELECT s_w_id, s_i_id FROM line JOIN stock ON s_w_id = supply_w_id AND s_i_id = i_id
    ORDER BY s_w_id, s_i_id FOR NO KEY UPDATE OF stock
), taken AS (
    UPDATE stock
    SET s_quantity = s_quantity - quantity + CASE WHEN s_quantity >= quantity + 10 THEN 0 ELSE 91 END,
        s_ytd = s_ytd + quantity,
        s_order_cnt = s_order_cnt + 1,
        s_remote_cnt = s_remote_cnt + (supply_w_id <> :w)::int
    FROM locked JOIN line ON supply_w_id = s_w_id AND i_id = s_i_id
    WHERE stock.s_w_id = locked.s_w_id AND stock.s_i_id = locked.s_i_id
    RETURNING number, i_id, supply_w_id, quantity, amount,
              (ARRAY[s_dist_01, s_dist_02, s_dist_03, s_dist_04, s_dist_05, s_dist_06, s_dist_07, s_dist_08, s_dist_09,
                     s_dist_10])[:d] AS dist_info
)
INSERT INTO order_line
SELECT :w::int, :d::int, :order_id::int, number, i_id, supply_w_id, NULL, quantity, amount, dist_info FROM taken;
\if :unused_item = 1
ROLLBACK;
\else
COMMIT;
\endif
