# needs: python3
cat > p.py <<'X'
import os, sys, shutil, tempfile, subprocess, json, pickle, multiprocessing, threading, stat, fcntl, select, io, signal, glob, pathlib, zipfile, tarfile, csv, errno, array
os.chdir(sys.argv[1])
with open("t", "w") as f:
    f.write("text\n" * 1000)
with open("t", "a") as f:
    f.write("end"); print(f.tell())
with open("t", "r+") as f:
    print(f.readline()); f.seek(10); f.write("X"); f.seek(0, 2); print(f.tell())
with open("b", "wb+", buffering=0) as f:
    f.write(b"abc"); f.seek(1); print(f.read(1)); f.truncate(2); print(os.fstat(f.fileno()).st_size)
with open("b", "xb") if not os.path.exists("b") else io.BytesIO() as f: pass
try:
    open("b", "x")
except FileExistsError as e: print(e.errno)
try:
    open("nope")
except FileNotFoundError as e: print(e.errno, e.filename)
try:
    open(".", "w")
except IsADirectoryError as e: print(e.errno)
os.makedirs("d/e/f"); print(sorted((e.name, e.is_dir(), e.is_file(), e.is_symlink()) for e in os.scandir(".")))
print(sorted(os.listdir("d"))); print([(r, sorted(d), sorted(f)) for r, d, f in os.walk("d")])
shutil.copy("t", "d/t2"); shutil.copytree("d", "dd"); shutil.move("dd", "de"); print(sorted(glob.glob("**/*", recursive=True)))
shutil.rmtree("de"); print(os.path.exists("de"), os.path.getsize("d/t2"), os.path.realpath("d").split("/")[-1])
with tempfile.NamedTemporaryFile(dir=".") as f:
    f.write(b"x"); f.flush(); print(os.path.exists(f.name))
with tempfile.TemporaryDirectory(dir=".") as d: pathlib.Path(d, "x").write_text("y")
fd, name = tempfile.mkstemp(dir="."); os.write(fd, b"tmp"); os.close(fd); os.rename(name, "mk"); print(open("mk").read())
out = open("sub", "w"); out.write("before\n"); out.flush()
subprocess.run(["echo", "child"], stdout=out); subprocess.run("echo shell; echo err >&2", shell=True, stdout=out, stderr=out)
subprocess.Popen(["cat", "t"], stdout=out, close_fds=True).wait(); out.write("after\n"); out.close(); print(len(open("sub").read()), open("sub").read()[:40])
print(subprocess.check_output(["cat"], stdin=open("sub"))[:10]); print(subprocess.check_output(["ls"], cwd="d"))
print(subprocess.run(["cat", "d/t2"], capture_output=True).stdout[:5])
fd = os.open("pos", os.O_RDWR | os.O_CREAT, 0o640)
os.write(fd, b"0123456789"); print(os.lseek(fd, 3, 0), os.read(fd, 2), os.lseek(fd, 0, 1)); print(os.pread(fd, 3, 7), os.pwrite(fd, b"AB", 20), os.fstat(fd).st_size)
print(os.writev(fd, [b"x", b"yy", b""]), os.lseek(fd, 0, 1), os.preadv(fd, [bytearray(4), bytearray(3)], 18)); 
e = os.dup(fd); os.lseek(e, 1, 0); print(os.read(fd, 1)); print(fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)); fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND); os.lseek(fd, 0, 0); os.write(e, b"app"); print(os.fstat(fd).st_size, os.lseek(fd, 0, 1))
pid = os.fork()
if pid == 0:
    os.lseek(fd, 2, 0); os.write(fd, b"child"); os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])); print(os.lseek(fd, 0, 1), os.fstat(fd).st_size); print(os.pread(fd, 100, 0)); os.ftruncate(fd, 5); os.fsync(fd); print(os.pread(fd, 100, 0)); os.close(fd); print(os.fstat(e).st_size); os.close(e)
try: os.fstat(e)
except OSError as x: print(x.errno)
def work(n):
    with open("mp.%d" % n, "w") as f: f.write(str(n) * 100)
    return n * n
with multiprocessing.Pool(3) as p: print(p.map(work, range(6)))
log = open("log", "a", buffering=1)
def threaded(n):
    for i in range(200): os.write(log.fileno(), b"%d %d\n" % (n, i))
ts = [threading.Thread(target=threaded, args=(i,)) for i in range(4)]
[t.start() for t in ts]; [t.join() for t in ts]; log.close(); print(len(open("log").readlines())); os.unlink("log")
w = open("shared", "wb", buffering=0)
def proc(n):
    for i in range(100): w.write(b"%d-%03d\n" % (n, i))
ps = [multiprocessing.Process(target=proc, args=(i,)) for i in range(3)]
[p.start() for p in ps]; [p.join() for p in ps]; w.write(b"last\n"); w.close(); ls = open("shared").readlines(); print(len(ls), len(set(ls)), all(len(l) == 6 for l in ls[:-1])); os.unlink("shared")
json.dump({"a": [1, 2]}, open("j", "w")); print(json.load(open("j"))); pickle.dump(list(range(100)), open("pk", "wb")); print(sum(pickle.load(open("pk", "rb"))))
with zipfile.ZipFile("z.zip", "w", zipfile.ZIP_DEFLATED) as z: z.write("t"); z.write("sub")
with zipfile.ZipFile("z.zip") as z: print(z.namelist(), z.testzip()); z.extractall("unz")
with tarfile.open("x.tar.gz", "w:gz") as z: z.add("d")
with tarfile.open("x.tar.gz") as z: print(sorted(z.getnames())); z.extractall("unt")
os.unlink("x.tar.gz"); os.unlink("z.zip")
os.symlink("t", "ln"); print(os.readlink("ln"), os.path.islink("ln"), os.lstat("ln").st_size, os.stat("ln").st_size); os.chmod("t", 0o600); print(oct(os.stat("t").st_mode)); os.utime("t", (1, 2)); print(os.stat("t").st_mtime)
d = os.open("d", os.O_RDONLY | os.O_DIRECTORY); print(sorted(os.listdir(d)), os.stat("t2", dir_fd=d).st_size); h = os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=d); os.close(h); os.rename("new", "newer", src_dir_fd=d, dst_dir_fd=d); os.unlink("newer", dir_fd=d); os.fchdir(d); print(sorted(os.listdir(".")), os.getcwd().split("/")[-1]); os.chdir(".."); os.close(d)
f = open("un", "w+"); os.unlink("un"); f.write("gone"); f.flush(); f.seek(0); print(f.read(), os.path.exists("un")); f.close()
print(select.select([], [open("t", "a")], [], 0)[1] != [])
os.replace("mk", "j"); print(os.path.exists("mk"), open("j").read()); os.truncate("j", 1); print(open("j").read())
print(os.access("t", os.R_OK), os.access("t", os.X_OK), os.path.isdir("d"), os.path.samefile("t", "ln"), os.get_inheritable(0))
import csv; csv.writer(open("c.csv", "w")).writerow([1, "a b"]); print(open("c.csv").read())
fd = os.open("lowest", os.O_CREAT | os.O_RDWR); print(fd); os.set_inheritable(fd, True); os.write(fd, b"inherited "); os.execvp("bash", ["bash", "-c", "echo by exec >&%d; cat lowest; pwd | sed 's/.*[/]//' > /dev/null" % fd])
X
python3 p.py "$D"
