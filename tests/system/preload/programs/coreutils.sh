cd "$D"
seq 1 1000 > s; head -n 3 s; tail -n 2 s; tail -c 5 s; head -c 10 s; sort -r s -o s2; head -1 s2; sort -n s2 -o s2; cmp s s2; uniq s | wc -l
sed -i 's/^1$/one/' s; head -2 s; sed -n '5,6p' s; awk 'NR<3 {print > "awk.out"} END {print NR}' s; cat awk.out
gzip -k s; gzip -dc s.gz | cmp - s; gunzip -c < s.gz | wc -c; gzip s2; gunzip s2.gz; ls
dd if=/dev/zero of=z bs=1000 count=7 2>/dev/null; dd if=s of=z bs=10 seek=3 count=2 conv=notrunc 2>/dev/null; dd if=z bs=1 skip=25 count=30 2>/dev/null | od -c
dd if=s of=fs bs=512 conv=fsync 2>/dev/null; cmp s fs; dd if=s of=ap oflag=append conv=notrunc bs=100 count=1 2>/dev/null; dd if=s of=ap oflag=append conv=notrunc bs=100 count=1 2>/dev/null; wc -c ap
install -m 750 s inst; stat -c '%a %s %F' inst; install -d -m 700 id; stat -c '%a %F' id
touch t; touch -d '2001-02-03 04:05:06 UTC' t; stat -c %Y t; touch -r t u; stat -c %Y u
chmod 604 t; stat -c %a t; chmod u+x,o-r t; stat -c %a t
ln -s s link; readlink link; stat -c '%N' link | wc -l; test -L link; cat link | head -1; ln -s nowhere dangling; cat dangling; echo $?
ln s hard 2> /dev/null; rm -f hard
mkdir -p x/y/z; rmdir x; echo $?; rmdir x/y/z; rmdir -p x/y; ls
cp -r id id2; cp -a s s-a; cmp s s-a; cp -p t tp; stat -c '%a %Y' tp; cp --reflink=auto s refl; cmp s refl; cp --sparse=always z sp; cmp z sp
truncate -s 100 tr; wc -c tr; truncate -s 10 s-a; wc -c s-a; shred -u tp; ls tp; split -l 300 s part.; ls part.*; cat part.* | cmp - s
tee t1 t2 < s | wc -l; paste t1 t2 | head -2; join t1 t2 2>/dev/null | head -1; comm -12 t1 t2 | wc -l; tac s | head -1; nl s | tail -1; cut -c1 s | sort | uniq -c | head -2
od -An -tx1 -N8 s; md5sum s; sha256sum s | cut -c1-10; base64 s | md5sum; md5sum s > sums; md5sum -c sums; csplit -s s 500; wc -l xx00
mv s moved; mv -n t1 t2; mv moved id/; ls -1 id; mv id renamed; ls renamed
find . -name 't*' | sort; find . -type f -size +1k | sort; find . -newer t -name u; find . -empty | sort; find . -type f -print0 | xargs -0 ls | wc -l
ls -1; ls -lR | awk '/^[-l]/ {print $1, $5, $9} /^d/ {print $1, $9}' ; ls -A | wc -l; du -s --apparent-size renamed >/dev/null; mktemp -p . XXXX | wc -c; rm -f ./????
diff -r renamed id2; cp -r renamed rr; diff -r renamed rr; echo $?; env -i /bin/sh -c 'cat renamed/moved | wc -l; echo envi > envi'; cat envi
nohup sh -c 'echo nohup' > nh 2>/dev/null; cat nh; nice cat nh; timeout 5 cat nh; setsid -w cat nh; stdbuf -oL cat nh; xargs echo < nh; yes | head -1000 > y; wc y
realpath renamed | sed 's/.*\///'; basename "$(pwd)" >/dev/null; test t1 -nt t; echo $?; test renamed -ef ./renamed; echo $?; rm -rf renamed rr; ls | wc -l
cat nh - nh < envi; cat nh nh > nh2; cat nh >> nh; expr 1 + 1 > ex; cat ex; chmod 000 ex; rm -f ex; unlink nh2; sync nh; sync
