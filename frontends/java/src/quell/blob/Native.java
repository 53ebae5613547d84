package quell.blob;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URISyntaxException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.CodeSource;

/**
 * The functions of libquellblob_java.so, which call the functions of quell_blob.h. Handles are
 * pointers. Each function throws {@link BlobException} for an error of the library. Callers have
 * checked that ranges of arrays and buffers are valid.
 */
final class Native {
    /** The file that is loaded, if this property is set. */
    private static final String PROPERTY = "quell.blob.library";
    private static final String NAME = "quellblob_java";

    /** The kinds of handles that can be read. */
    static final int STORE = 0, SNAPSHOT = 1, TRANSACTION = 2;
    /** The entry of an append in the results that a commit asks for. */
    static final int APPENDED = -1;

    static {
        load();
    }

    private Native() {}

    private static void load() {
        String given = System.getProperty(PROPERTY);
        if (given != null) {
            System.load(Path.of(given).toAbsolutePath().toString());
            return;
        }
        Path beside = besideTheClasses(System.mapLibraryName(NAME));
        if (beside != null && Files.exists(beside)) {
            System.load(beside.toString());
        } else {
            System.loadLibrary(NAME);
        }
    }

    /** Returns the path of a file in the directory of the jar, or null if there is no jar. */
    private static Path besideTheClasses(String file) {
        CodeSource source = Native.class.getProtectionDomain().getCodeSource();
        if (source == null || !"file".equals(source.getLocation().getProtocol())) {
            return null;
        }
        try {
            return Path.of(source.getLocation().toURI()).toRealPath().resolveSibling(file);
        } catch (URISyntaxException error) {
            throw new IllegalArgumentException(error);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static native long open(byte[] location, int inFlightMax, boolean mustExist) throws BlobException;

    static native void close(long store) throws BlobException;

    static native void drain(long store) throws BlobException;

    static native void collect(long store) throws BlobException;

    static native void create(long store, byte[] name) throws BlobException;

    static native void delete(long store, byte[] name) throws BlobException;

    static native void rename(long store, byte[] name, byte[] to) throws BlobException;

    static native void resize(long store, byte[] name, long sizeBytes) throws BlobException;

    /** Data of the next functions is in {@code array}, or in {@code direct} if that is not null. */
    static native void write(
            long store, byte[] name, long offset, byte[] array, ByteBuffer direct, int start, int length)
            throws BlobException;

    static native long append(long store, byte[] name, byte[] array, ByteBuffer direct, int start, int length)
            throws BlobException;

    /** Returns the numbers before the transform, or null if {@code returnsBefore} is false. */
    static native byte[] apply(
            long store,
            byte[] name,
            long offset,
            int kind,
            int type,
            int overflow,
            int count,
            byte[] operands,
            byte[] expected,
            boolean returnsBefore,
            int beforeBytes)
            throws BlobException;

    static native int read(
            int kind, long handle, byte[] name, long offset, byte[] array, ByteBuffer direct, int start, int length)
            throws BlobException;

    /** Returns the size in bytes, and the time in nanoseconds. */
    static native long[] stat(int kind, long handle, byte[] name) throws BlobException;

    /**
     * Returns for each name its length (int), size (long), time (long), and bytes, little endian.
     */
    static native byte[] list(int kind, long handle, byte[] prefix, byte[] after, long limit) throws BlobException;

    static native long version(int kind, long handle) throws BlobException;

    static native long beginSnapshot(long store) throws BlobException;

    /** Returns a position, or -1. */
    static native long nextData(long snapshot, byte[] name, long offset) throws BlobException;

    static native void closeSnapshot(long snapshot);

    static native long begin(long store, boolean isBatch) throws BlobException;

    static native void addCreate(long transaction, byte[] name, boolean mayExist) throws BlobException;

    static native void addDelete(long transaction, byte[] name) throws BlobException;

    static native void addRename(long transaction, byte[] name, byte[] to) throws BlobException;

    static native void addAttributes(long transaction, byte[] name, int mode, int uid, int gid)
            throws BlobException;

    static native void addModified(long transaction, byte[] name, long modifiedNs) throws BlobException;

    static native void addResize(long transaction, byte[] name, long sizeBytes) throws BlobException;

    static native void addWrite(
            long transaction, byte[] name, long offset, byte[] array, ByteBuffer direct, int start, int length)
            throws BlobException;

    static native void addAppend(long transaction, byte[] name, byte[] array, ByteBuffer direct, int start, int length)
            throws BlobException;

    static native void addApply(
            long transaction,
            byte[] name,
            long offset,
            int kind,
            int type,
            int overflow,
            int count,
            byte[] operands,
            byte[] expected,
            boolean returnsBefore)
            throws BlobException;

    /**
     * Commits. {@code wanted} has an entry for each operation: {@link #APPENDED}, or the length of
     * the numbers before a transform, or 0. Returns the version (long), and for each entry that is
     * not 0 the offset (long) or the numbers, little endian.
     */
    static native byte[] commit(long transaction, int[] wanted) throws BlobException;

    static native void submit(long transaction, int[] wanted, Pending<?> pending) throws BlobException;

    /** Reads into {@code direct}, or into memory of the library if that is null. */
    static native void submitRead(
            long store, byte[] name, long offset, ByteBuffer direct, int start, int length, Pending<?> pending)
            throws BlobException;

    static native void closeTransaction(long transaction);
}
