# needs: busybox
# A statically linked program with virtual standard streams.
B=$(command -v busybox)
$B echo static > "$D/out"; cat "$D/out"; $B echo again >> "$D/out"; cat "$D/out"
{ echo one; $B echo two; echo three; $B echo four; } > "$D/mixed"; cat "$D/mixed"
seq 1 5000 > "$D/in"; $B wc -l < "$D/in"; $B sort -rn < "$D/in" > "$D/sorted"; head -n 2 "$D/sorted" | tr '\n' ' '; wc -c < "$D/sorted"
{ $B head -c 10 > /dev/null; cat | wc -c; } < "$D/in"
$B sh -c 'echo from busybox sh; echo error >&2; /bin/echo child; exit 3' > "$D/bb" 2> "$D/bberr"; echo "status $?"; cat "$D/bb" "$D/bberr"
$B sh -c 'kill -TERM $$' > "$D/killed"; echo "status $?"
$B sleep 100 > "$D/slept" & p=$!; sleep 0.3; kill -USR1 $p; wait $p 2> /dev/null; echo "status $?"
$B yes | $B head -n 3 > "$D/yes"; cat "$D/yes"; $B cat < "$D/in" | head -n 1
$B dd if=/dev/zero bs=100 count=100 > "$D/zeros" 2> /dev/null; wc -c < "$D/zeros"; $B printf 'a\0\0\0' > "$D/tail"; wc -c < "$D/tail"
printf '#!%s sh\necho script $1\n' "$B" > ./script; chmod +x ./script; ./script arg > "$D/script"; cat "$D/script"; rm ./script
$B does-not-exist > "$D/none" 2> /dev/null; echo "status $?"
# Processes that are created while the program writes store its data.
for mode in '>' '>>'; do
  eval "exec 5$mode \"\$D/lines\""
  $B sh -c 'i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done' >&5 & p=$!
  while kill -0 $p 2> /dev/null; do (:) 2> /dev/null; done; wait $p; exec 5>&-
done
wc -l < "$D/lines"; seq 0 19999 | sed 's/^/line /' > ./expected; cat ./expected ./expected | cmp - "$D/lines"; rm ./expected
