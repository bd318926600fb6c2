create table numbers (id int primary key, word text);
insert into numbers select n, repeat(md5(n::text), 20) from generate_series(1, 20000) n;
select count(*), sum(length(word)) from numbers;
select md5(string_agg(word, '' order by id)) = md5((select string_agg(repeat(md5(n::text), 20), '' order by n) from generate_series(1, 20000) n)) from numbers;
create table copied (id int, word text);
copy copied from stdin;
1	one
2	two
\.
select * from copied order by id;
begin; delete from numbers; savepoint here; drop table copied; rollback to here; select count(*) from copied; rollback;
select count(*) from numbers;
begin; declare cursor_of_all cursor for select id from numbers order by id; fetch 2 from cursor_of_all; move 19000 in cursor_of_all; fetch 1 from cursor_of_all; commit;
prepare adds(int, int) as select $1 + $2; execute adds(40, 2);
select length(repeat('x', 5000000));
\o /dev/null
select repeat('x', 5000000);
copy numbers to stdout;
\o
select 1/0;
set statement_timeout = 1; select pg_sleep(1000); reset statement_timeout;
