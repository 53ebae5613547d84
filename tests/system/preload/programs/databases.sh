# needs: sqlite3
# SQLite, with a rollback journal.
cd "$D"
sqlite3 t.db 'create table t (a integer primary key, b text); insert into t (b) values ("one"), ("two"); select * from t; pragma journal_mode;'
sqlite3 t.db 'begin; with recursive n(i) as (select 1 union all select i + 1 from n where i < 5000) insert into t (b) select "row " || i from n; commit; select count(*), sum(a) from t; pragma integrity_check;'
sqlite3 t.db 'begin; delete from t; rollback; select count(*) from t; update t set b = "x" where a % 2; delete from t where a > 4000; vacuum; pragma integrity_check; create index i on t (b);'
sqlite3 t.db 'select count(*) from t where b = "x"; pragma page_count;' '.dump' | tail -n 3
(sqlite3 -cmd '.timeout 20000' t.db 'insert into t (b) values ("p1")' & sqlite3 -cmd '.timeout 20000' t.db 'insert into t (b) values ("p2")'; wait); sqlite3 t.db 'select b from t where b like "p_" order by b; pragma integrity_check'
sqlite3 t.db '.backup copy.db'; sqlite3 copy.db 'select count(*) from t'; ls; rm t.db copy.db
