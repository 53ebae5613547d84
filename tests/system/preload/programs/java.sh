# needs: java javac
# Java: files by streams, channels and NIO, and child processes.
cat > T.java <<'X'
import java.io.*; import java.nio.*; import java.nio.channels.*; import java.nio.file.*; import java.util.*; import java.util.stream.*;
public class T { public static void main(String[] a) throws Exception { Path d = Paths.get(a[0]);
Files.writeString(d.resolve("f"), "text\n".repeat(100)); Files.writeString(d.resolve("f"), "end", StandardOpenOption.APPEND); System.out.println(Files.size(d.resolve("f")) + " " + Files.readAllLines(d.resolve("f")).size());
try (RandomAccessFile r = new RandomAccessFile(d.resolve("r").toFile(), "rw")) { r.writeUTF("hello"); r.seek(100); r.writeInt(7); r.seek(0); System.out.println(r.readUTF() + r.length()); r.setLength(50); r.getFD().sync(); }
try (FileChannel c = FileChannel.open(d.resolve("c"), StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) { c.write(ByteBuffer.wrap("channel".getBytes()), 3); System.out.println(c.size()); try (FileLock l = c.lock()) { System.out.println(l.isValid()); } ByteBuffer b = ByteBuffer.allocate(4); c.read(b, 5); System.out.println(new String(b.array())); try (FileChannel t = FileChannel.open(d.resolve("t"), StandardOpenOption.CREATE, StandardOpenOption.WRITE)) { System.out.println(c.transferTo(0, 10, t)); } System.out.println(c.map(FileChannel.MapMode.READ_ONLY, 0, 10).get(4)); }
Files.createDirectories(d.resolve("x/y")); Files.move(d.resolve("c"), d.resolve("x/c")); Files.copy(d.resolve("f"), d.resolve("x/y/f")); try (Stream<Path> s = Files.walk(d)) { System.out.println(s.map(p -> d.relativize(p).toString()).sorted().collect(Collectors.toList())); } Files.delete(d.resolve("r")); System.out.println(new File(d.toFile(), "x").isDirectory());
Process p = new ProcessBuilder("cat", "f").directory(d.toFile()).redirectOutput(d.resolve("o").toFile()).start(); System.out.println(p.waitFor() + " " + Files.size(d.resolve("o")));
Thread[] ts = new Thread[4]; for (int i = 0; i < 4; i++) { int n = i; ts[i] = new Thread(() -> { try (PrintWriter w = new PrintWriter(new FileWriter(d.resolve("th" + n).toFile()))) { for (int k = 0; k < 1000; k++) w.println(k); } catch (IOException e) { System.out.println(e); } }); ts[i].start(); } for (Thread t : ts) t.join(); System.out.println(Files.lines(d.resolve("th3")).count()); } }
X
javac T.java && java -Xshare:auto T "$D"
