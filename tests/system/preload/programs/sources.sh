# needs: gcc make git
# A project that is compiled, tracked by git and executed in the directory.
cd "$D"
printf '#include <stdio.h>\n#include "m.h"\nint main(int c, char **v) { printf("%%s %%d\\n", c > 1 ? v[1] : "none", twice(21)); return 4; }\n' > main.c
echo 'int twice(int);' > m.h; printf '#include "m.h"\nint twice(int a) { return 2 * a; }\n' > m.c
printf 'prog: main.o m.o\n\t$(CC) -o $@ main.o m.o\nmain.o m.o: m.h\nclean:\n\trm -f *.o prog\n' > Makefile
make -s CC=gcc 2>&1; ./prog arg; echo "status $?"; touch -d '2030-01-01' m.h; { make -sq CC=gcc; echo "stale $?"; make -s -j2 CC=gcc; } 2> /dev/null; ls; PATH=$D:$PATH; prog path; echo "status $?"
printf '#!/bin/sh\necho script "$0" "$@" | sed "s|.*/||"\n' > script; chmod +x script; ./script a b; script c; printf 'echo no header $1\n' > plain; chmod +x plain; ./plain x; env ./script via env
gcc -shared -fPIC -o libm2.so m.c && gcc -o linked main.c -L. -lm2 && LD_LIBRARY_PATH=. true; ar rc lib.a m.o; ranlib lib.a; nm lib.a | grep -c twice; gcc -pipe -g -O2 -c m.c -o o.o && strip o.o; make -s clean; rm -f linked libm2.so lib.a o.o
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_AUTHOR_DATE='2020-01-01 00:00:00 +0000' GIT_COMMITTER_DATE='2020-01-01 00:00:00 +0000'
git init -q -b main . 2>&1; git add main.c m.h m.c Makefile 2>&1; git commit -qm one 2>&1; echo '/* more */' >> m.c; git diff --stat; git commit -qam two 2>&1; git log --format='%h %s'; git status --short; git checkout -q HEAD~1 2>&1; tail -n 1 m.c; git checkout -q main 2>&1; git branch b; git gc -q 2>&1; git fsck 2>&1; git clone -q . clone 2>&1; git -C clone log --oneline; git -C clone fsck 2>&1; git stash -q 2>&1; git rev-parse HEAD
rm -rf clone .git
