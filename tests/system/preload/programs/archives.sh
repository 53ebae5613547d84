# needs: tar gzip rsync
# tar and rsync into and out of the directory.
mkdir -p src/a/b; seq 1 5000 > src/a/n; echo x > src/a/b/x; ln -s n src/a/l; chmod 750 src/a/b; touch -d '2020-01-02 03:04:05 UTC' src/a/n
tar cf "$D/t.tar" -C src .; tar tf "$D/t.tar" | LC_ALL=C sort; mkdir "$D/x"; tar xf "$D/t.tar" -C "$D/x"; diff -r src "$D/x" && echo same
tar czf "$D/t.tgz" -C "$D/x" a; gzip -t "$D/t.tgz" && tar xzOf "$D/t.tgz" a/b/x; tar rf "$D/t.tar" -C src a/n; tar tf "$D/t.tar" | wc -l; rm "$D/t.tgz"
tar cf - -C "$D" x | tar tf - | LC_ALL=C sort; tar df "$D/t.tar" -C "$D/x" && echo compared; rm "$D/t.tar"
rsync -a src/ "$D/r/"; diff -r src "$D/r" && echo same; echo more >> src/a/n; rsync -a --itemize-changes src/ "$D/r/" | cut -d ' ' -f 2; rm src/a/b/x; rsync -a --delete --inplace --no-whole-file src/ "$D/r/"; find "$D/r" | LC_ALL=C sort; rsync -a --append-verify "$D/r/" back/; diff -r src back && echo back; rsync -ac --sparse "$D/r/" "$D/s/"; diff -r "$D/r" "$D/s" && echo third
stat -c '%a %Y' "$D/r/a/n" | cut -c 1-3; stat -c %a "$D/s/a/b"
