# needs: ex
# vim as ex, with and without a swap file, and sed.
cd "$D"; seq 1 50 > f
ex -s -N -u NONE -i NONE -c '%s/5/five/' -c '2d' -c wq f < /dev/null; wc f; sed -n '1,6p' f
ex -s -N -u NONE -i NONE -n -c '1i|inserted' -c 'w! g' -c 'q!' f < /dev/null; head -n 2 f; ls
ex -s -N -u NONE -i NONE -c 'set backup backupcopy=no' -c 'normal Goend' -c wq f < /dev/null; tail -n 1 f; ls -A
sed -i.orig -e 's/five/V/' f; diff f f.orig | wc -l; sed -n -e '/V/w found' f; wc -l < found
