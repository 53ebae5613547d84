# needs: bash
# Redirections, here-documents, pipelines, background jobs and shared descriptors.
cd "$D"
echo one > a; echo two >> a; cat < a; printf 'no newline' >> a; cat a; echo
cat > here <<X
line \$HOME
second $((1 + 1))
X
cat here; wc -c here a
exec 3<> both; echo first >&3; echo second >&3; cat both; exec 3>&-
exec 4< here; read -r x <&4; read -r y <&4; echo "$x|$y"; exec 4<&-
x=$(< here); echo "$x"
echo $(cat a here | tr a-z A-Z | sort | head -2)
( echo in1; echo in2 >&2 ) > sub 2> suberr; cat sub suberr
{ echo p1; (echo p2; sh -c 'echo p3'); echo p4; } > shared; cat shared
{ echo q1 >&5; (echo q2 >&5); bash -c 'echo q3 >&5'; /bin/echo q4 >&5; echo q5 >&5; } 5> shared5; cat shared5
for i in 1 2 3 4 5; do (echo "bg $i" >> log) & done; wait; sort log -o log; cat log
seq 1 20000 > numbers; sort -rn numbers | head -3; tail -1 numbers; wc -l < numbers
while read -r l; do echo "<$l>"; done < here
[ -e a ] && [ -f a ] && [ -s a ] && [ ! -d a ] && [ -d . ] && [ -r a ] && [ -w a ] && [ ! -x a ] && echo tests
set -C; echo over > a || echo "noclobber"; set +C
echo > empty; : > empty; wc -c empty
mkdir -p d/e/f; cd d/e; pwd; echo deep > f/x; cd ..; pwd; ls -R; cd ../..; echo "${PWD##*/}" | wc -c >/dev/null
cd "$D"; echo *; echo d/*/*/x; rm -r d; ls
cat missing; echo "status $?"; cat < missing; echo "status $?"; echo x > nodir/x; echo "status $?"
mv a b; ln -s b c; cat c; readlink c; cp b e; cmp b e && echo same; rm c
trap 'echo bye >> bye' EXIT
exec 6> closing; echo data >&6; exec 6>&1; echo to stdout >&6; exec 6>&-; cat closing
exec > everything; echo now in the file; ls; date +%Y >/dev/null
