-- Order-Status: what became of a customer's last order; three in five customers are known by their last name.
\set w random(1, :warehouses)
\set d random(1, 10)
\set name (random(0, 255) | random(0, :names - 1)) % :names
\set c (random(0, :customer_a) | random(1, :customers)) % :customers + 1
\set by_name random(1, 100) <= 60
BEGIN;
\if :by_name
SELECT c_id AS c
FROM (
    SELECT c_id, row_number() OVER (ORDER BY c_first, c_id) AS place, count(*) OVER () AS namesakes
    FROM customer
    WHERE c_w_id = :w AND c_d_id = :d AND c_last = last_name(:name)
) known
WHERE place = (namesakes + 1) / 2 \gset
\endif
SELECT c_first, c_last, c_balance FROM customer WHERE c_w_id = :w AND c_d_id = :d AND c_id = :c;
SELECT o_id, o_entry_d, o_carrier_id, ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d
FROM (
    SELECT o_id, o_entry_d, o_carrier_id FROM orders
    WHERE o_w_id = :w AND o_d_id = :d AND o_c_id = :c
    ORDER BY o_id DESC LIMIT 1
) latest
JOIN order_line ON ol_w_id = :w AND ol_d_id = :d AND ol_o_id = o_id;
COMMIT;
