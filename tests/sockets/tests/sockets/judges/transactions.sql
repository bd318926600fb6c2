\set aid random(1, 100000)
\set delta random(-5000, 5000)
begin;
update pgbench_accounts set abalance = abalance + :delta where aid = :aid;
select abalance from pgbench_accounts where aid = :aid;
insert into pgbench_history (tid, bid, aid, delta, mtime) values (1, 1, :aid, :delta, current_timestamp);
end;
\set done :done + 1
\if :done = 250
select pg_advisory_lock_shared(7);
\endif
