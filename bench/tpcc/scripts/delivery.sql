-- Delivery: in each district of a warehouse the oldest order that waits is delivered, and its customer charged. An order that
-- another Delivery is at is left to it, and the next one taken.
\set w random(1, :warehouses)
\set carrier random(1, 10)
WITH oldest AS MATERIALIZED (
    SELECT d, no_o_id
    FROM generate_series(1, 10) d,
         LATERAL (SELECT no_o_id FROM new_order WHERE no_w_id = :w AND no_d_id = d
                  ORDER BY no_o_id LIMIT 1 FOR UPDATE SKIP LOCKED) waiting
), taken AS (
    DELETE FROM new_order USING oldest WHERE new_order.no_w_id = :w AND no_d_id = d AND new_order.no_o_id = oldest.no_o_id
), delivered AS (
    UPDATE orders SET o_carrier_id = :carrier FROM oldest WHERE o_w_id = :w AND o_d_id = d AND o_id = no_o_id
    RETURNING o_d_id, o_c_id
), lines AS (
    UPDATE order_line SET ol_delivery_d = now() FROM oldest WHERE ol_w_id = :w AND ol_d_id = d AND ol_o_id = no_o_id
    RETURNING ol_d_id, ol_amount
), charges AS MATERIALIZED (
    SELECT o_d_id, o_c_id, sum(ol_amount) AS amount
    FROM delivered JOIN lines ON ol_d_id = o_d_id
    GROUP BY o_d_id, o_c_id
    ORDER BY o_d_id, o_c_id
)
UPDATE customer SET c_balance = c_balance + amount, c_delivery_cnt = c_delivery_cnt + 1
FROM charges
WHERE c_w_id = :w AND c_d_id = o_d_id AND c_id = o_c_id;
