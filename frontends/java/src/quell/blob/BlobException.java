package quell.blob;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/** An operation failed. {@link #kind} is the reason, and {@link #errno} the number of errno.h. */
public class BlobException extends IOException {
    private static final long serialVersionUID = 1;

    /** The reason of an error, as in the Rust library. */
    public enum Kind {
        /** ENOENT: there is no blob, or no store, of this name. */
        NOT_FOUND,
        /** EACCES: the key or the user has no right to the operation. */
        PERMISSION_DENIED,
        /** ENAMETOOLONG: a name has more than 1,024 bytes. */
        NAME_TOO_LONG,
        /**
         * EINVAL: an argument is invalid, or a limit is exceeded; also {@link OverflowException}.
         */
        INVALID_INPUT,
        /** EEXIST: there is a blob of this name. */
        EXISTS,
        /** ENOSPC: the disk is full. */
        NO_SPACE,
        /** EDQUOT: the user has no space left. */
        QUOTA,
        /** ENOTCONN: no server answers. A commit may have taken effect. */
        UNAVAILABLE,
        /** ETIMEDOUT: the server does not answer. A commit may have taken effect. */
        TIMED_OUT,
        /** EBUSY: another process has the store open, or the server does not become ready. */
        BUSY,
        /** ECANCELED: {@link ConflictException} or {@link DifferentException}. */
        CONFLICT,
        /** ESTALE: {@link SnapshotTooOldException}. */
        STALE,
        /**
         * EIO: the disk fails, or data does not have its checksum. A commit may have taken effect.
         */
        DAMAGED,
        /** EOPNOTSUPP: the store has no such operation. */
        UNSUPPORTED,
        /** Another error number. */
        OTHER
    }

    /** The kind. */
    private final Kind kind;
    /** The number of errno.h. */
    private final int errno;
    /** Whether the transaction can be repeated. */
    private final boolean isRepeatable;
    /** The index of the operation. */
    private final int operation;

    BlobException(Details details) {
        super(details.message);
        this.kind = kindOf(details.errno);
        this.errno = details.errno;
        this.isRepeatable = details.isRepeatable;
        this.operation = details.operation;
    }

    /**
     * Returns the reason.
     *
     * @return the reason
     */
    public final Kind kind() {
        return kind;
    }

    /**
     * Returns the error number.
     *
     * @return a positive number of errno.h
     */
    public final int errno() {
        return errno;
    }

    /**
     * Returns whether the same transaction can succeed when it is repeated from the beginning.
     *
     * @return true for conflicts and for states that are no longer kept
     */
    public final boolean isRepeatable() {
        return isRepeatable;
    }

    /**
     * Returns the operation of the transaction that failed.
     *
     * @return its index from 0, or -1 if none of them is the reason
     */
    public final int operation() {
        return operation;
    }

    /** The details of an error, as the library returns them. */
    record Details(int errno, String message, boolean isRepeatable, int operation, int cell, byte[] found) {}

    /**
     * Called by the native library: returns the exception for an error. {@code conflicts} has for
     * each conflict the kind (int), start and end (long) of the part that was read, the same of the
     * part that was changed, and the length (int) and the bytes of the name, little endian.
     */
    static BlobException of(
            int errno,
            byte[] message,
            int reason,
            boolean isRepeatable,
            long operation,
            int cell,
            byte[] found,
            byte[] conflicts) {
        String text = new String(message, StandardCharsets.UTF_8);
        Details details = new Details(errno, text, isRepeatable, (int) operation, cell, found);
        return switch (reason) {
            case 1 -> new ConflictException(details, changes(conflicts));
            case 2 -> new SnapshotTooOldException(details);
            case 3 -> new DifferentException(details);
            case 4 -> new OverflowException(details);
            default -> new BlobException(details);
        };
    }

    private static List<Change> changes(byte[] conflicts) {
        ByteBuffer packed = ByteBuffer.wrap(conflicts).order(ByteOrder.LITTLE_ENDIAN);
        List<Change> changes = new ArrayList<>();
        while (packed.hasRemaining()) {
            packed.getInt();
            Change.Range read = range(packed);
            Change.Part part = Change.Part.values()[packed.getInt()];
            Change.Range changed = range(packed);
            byte[] name = new byte[packed.getInt()];
            packed.get(name);
            changes.add(new Change(Names.decode(name), part, read, changed));
        }
        return List.copyOf(changes);
    }

    private static Change.Range range(ByteBuffer packed) {
        return new Change.Range(limited(packed.getLong()), limited(packed.getLong()));
    }

    private static long limited(long unsigned) {
        return unsigned < 0 ? Long.MAX_VALUE : unsigned;
    }

    /** Returns the kind of a number of errno.h on Linux. */
    private static Kind kindOf(int errno) {
        return switch (errno) {
            case 2 -> Kind.NOT_FOUND;
            case 5 -> Kind.DAMAGED;
            case 13 -> Kind.PERMISSION_DENIED;
            case 16 -> Kind.BUSY;
            case 17 -> Kind.EXISTS;
            case 22 -> Kind.INVALID_INPUT;
            case 28 -> Kind.NO_SPACE;
            case 36 -> Kind.NAME_TOO_LONG;
            case 95 -> Kind.UNSUPPORTED;
            case 107 -> Kind.UNAVAILABLE;
            case 110 -> Kind.TIMED_OUT;
            case 116 -> Kind.STALE;
            case 122 -> Kind.QUOTA;
            case 125 -> Kind.CONFLICT;
            default -> Kind.OTHER;
        };
    }
}
