# needs: dash
cat > "$D/s.sh" <<'X'
cd "$1"
echo a > f; echo b >> f; cat f
exec 3> g; echo 3 >&3; (echo 4 >&3); sh -c 'echo 5 >&3'; exec 3>&-; cat g
cat <<Y > h
text
Y
cat h; while read l; do echo "[$l]"; done < f
x=$(cat f); echo "$x"
exec < f; read a; read b; echo "$a $b"
for i in 1 2 3; do echo $i >> m & wait; done; cat m
X
dash "$D/s.sh" "$D"
