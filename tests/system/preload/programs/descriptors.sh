# needs: bash python3
# Descriptors: closing all, numbers that are reused, small limits, daemons, signals and threads.
cd "$D"
python3 -c 'import os; f = open("a", "w"); f.write("kept"); f.flush(); os.closerange(3, 300); open("b", "w").write("after"); print(open("a").read(), open("b").read())' 2> /dev/null
python3 -c '
import os
fd = os.open("dup", os.O_CREAT | os.O_RDWR)
for n in range(20, 80): os.dup2(fd, n)
os.write(79, b"by 79"); os.close(fd); os.lseek(20, 0, 0); print(os.read(50, 10)); os.closerange(3, 100)
for i in range(300):
    fd = os.open("n%d" % (i % 7), os.O_CREAT | os.O_RDWR); os.write(fd, b"x" * i); os.close(fd)
print(os.open("low", os.O_CREAT | os.O_RDWR), len(os.listdir("/proc/self/fd")) < 30)'
(ulimit -n 40; exec 8> small; echo small >&8; exec 8>&-; cat small; for i in 1 2 3; do cp small small$i; done; ls small*)
python3 -c '
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(0, 256):
            try: os.close(fd)
            except OSError: pass
        os.open("/dev/null", os.O_RDWR); os.dup(0); os.dup(0)
        with open("daemon", "w") as f: f.write("from a daemon")
        open("daemon.done", "w").close()
        os._exit(0)
    os._exit(0)
os.wait()'; while [ ! -e daemon.done ]; do sleep 0.05; done; cat daemon; echo
python3 -c '
import os, signal, threading
log = os.open("signals", os.O_CREAT | os.O_WRONLY | os.O_APPEND); count = 0
def handler(*_):
    global count
    count += 1; os.write(log, b"s")
signal.signal(signal.SIGALRM, handler); signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
f = os.open("main", os.O_CREAT | os.O_WRONLY); total = 0
while count < 30: total += os.write(f, b"m" * 100)
signal.setitimer(signal.ITIMER_REAL, 0); os.fsync(log); os.fsync(f)
print(os.fstat(f).st_size == total, os.fstat(log).st_size == count); os.unlink("main"); os.unlink("signals")'
python3 -c '
import os, threading
stop = False
def work(n):
    fd = os.open("t%d" % n, os.O_CREAT | os.O_RDWR)
    i = 0
    while not stop or i < 50:
        os.pwrite(fd, b"x" * 100, i % 50 * 100); os.pread(fd, 50, 0); os.listdir("."); i += 1
    os.close(fd)
ts = [threading.Thread(target=work, args=(n,)) for n in range(3)]
[t.start() for t in ts]
for i in range(20):
    pid = os.fork()
    if pid == 0:
        with open("child%d" % i, "w") as f: f.write("c" * i)
        os._exit(0)
    os.waitpid(pid, 0)
stop = True
[t.join() for t in ts]'
exec 3> three; (echo sub >&3; exec 3>&-; echo closed >&3) 2> /dev/null; echo main >&3; exec 3>&-; cat three
env -i PATH="$PATH" sh -c 'echo empty environment > envi'; cat envi
python3 -c '
import os
actions = [(os.POSIX_SPAWN_OPEN, 1, "spawned", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o640), (os.POSIX_SPAWN_DUP2, 1, 2)]
for words in (["echo", "spawned"], ["sh", "-c", "echo again; echo error >&2"]):
    print(os.waitstatus_to_exitcode(os.waitpid(os.posix_spawnp(words[0], words, os.environ, file_actions=actions), 0)[1]), open("spawned").read())'
