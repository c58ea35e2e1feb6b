-- Payment: a customer pays, three in twenty at another warehouse than their own; three in five are known by their last name.
\set w random(1, :warehouses)
\set d random(1, 10)
\set away random(1, 100) > 85 and :warehouses > 1
\set c_w case when :away then 1 + (:w - 1 + random(1, :warehouses - 1)) % :warehouses else :w end
\set c_d case when :away then random(1, 10) else :d end
\set amount random(100, 500000) / 100.0
\set name (random(0, 255) | random(0, :names - 1)) % :names
\set c (random(0, :customer_a) | random(1, :customers)) % :customers + 1
\set by_name random(1, 100) <= 60
BEGIN;
UPDATE warehouse SET w_ytd = w_ytd + :amount WHERE w_id = :w;
UPDATE district SET d_ytd = d_ytd + :amount WHERE d_w_id = :w AND d_id = :d;
\if :by_name
SELECT c_id AS c
FROM (
    SELECT c_id, row_number() OVER (ORDER BY c_first, c_id) AS place, count(*) OVER () AS namesakes
    FROM customer
    WHERE c_w_id = :c_w AND c_d_id = :c_d AND c_last = last_name(:name)
) known
WHERE place = (namesakes + 1) / 2 \gset
\endif
UPDATE customer
SET c_balance = c_balance - :amount,
    c_ytd_payment = c_ytd_payment + :amount,
    c_payment_cnt = c_payment_cnt + 1,
    c_data = CASE WHEN c_credit = 'BC'
                  THEN left(concat_ws(' ', c_id, c_d_id, c_w_id, :d::int, :w::int, :amount::text, c_data), 500)
                  ELSE c_data END
WHERE c_w_id = :c_w AND c_d_id = :c_d AND c_id = :c
RETURNING c_first, c_last, c_credit, c_balance;
INSERT INTO history VALUES (:c_w, :c_d, :c, :w, :d, now(), :amount, 'payment');
COMMIT;
