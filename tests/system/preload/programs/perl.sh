# needs: perl
# Perl: files, directories, in-place editing, child processes and locks.
cd "$D"
perl -e 'open F, ">", "f" or die; print F "line $_\n" for 1..100; close F; open F, "+<", "f"; seek F, 5, 0; print F "X"; seek F, 0, 2; print tell(F), "\n"; truncate F, 50; close F; print -s "f", "\n"; open F, ">>", "f"; print F "end\n"; close F; open F, "f"; my @l = <F>; print scalar(@l), $l[-1];'
perl -i.bak -pe 's/line/LINE/' f; head -n 2 f f.bak
perl -e 'mkdir "d"; opendir D, "."; print join(" ", sort grep !/^\./, readdir D), "\n"; closedir D; rename "f.bak", "d/g"; unlink "f"; print -d "d", -e "f" ? "yes" : "no", "\n"; print join(" ", (stat "d/g")[7]), "\n"; chmod 0600, "d/g"; utime 1, 2, "d/g"; symlink "d/g", "l"; print readlink("l"), "\n"'
perl -e '$| = 1; open STDOUT, ">", "out"; print "parent\n"; system("echo system"); if (!fork) { print "child\n"; exit 3 } wait; print $? >> 8, "\n"; exec "echo", "exec"'; cat out
perl -MFile::Copy -MFile::Path=make_path,remove_tree -MFile::Find -MFile::Temp -e 'copy("out", "copy"); move("copy", "moved"); make_path("x/y/z"); find(sub { $n++ }, "."); print "$n\n"; remove_tree("x"); my $t = File::Temp->new(DIR => "."); print $t "tmp"; $t->flush; print -s $t->filename, "\n"; print -e "x" ? 1 : 0, "\n"'
perl -e 'open P, "-|", "cat moved"; print while <P>; close P; open P, "|-", "cat > piped"; print P "to a pipe\n"; close P; print `cat piped`'
perl -MFcntl=:flock -e 'open F, ">", "locked"; flock F, LOCK_EX or die $!; print F "x"; flock F, LOCK_UN; close F; print -s "locked", "\n"; sysopen F, "locked", O_RDWR; syswrite F, "abc"; sysseek F, 1, 0; sysread F, $b, 10; print "$b\n"'
