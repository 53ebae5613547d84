package quell.blob;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CharsetDecoder;
import java.nio.charset.CoderResult;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * Names as strings: UTF-8, in which each byte that is not part of valid UTF-8 is a character from
 * U+DC80 to U+DCFF (PEP 383). Such a character alone is not valid in UTF-16, so that no two names
 * have the same string.
 */
final class Names {
    private static final char FIRST = '\udc80', LAST = '\udcff', BASE = '\udc00';

    private Names() {}

    static byte[] encode(String name) {
        ByteBuffer bytes = ByteBuffer.allocate(Math.multiplyExact(name.length(), 3));
        int at = 0;
        while (at < name.length()) {
            char next = name.charAt(at);
            if (next >= FIRST && next <= LAST) {
                bytes.put((byte) (next - BASE));
                at++;
                continue;
            }
            int end = at;
            while (end < name.length() && !isByte(name, end)) {
                end++;
            }
            try {
                bytes.put(StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(name, at, end)));
            } catch (CharacterCodingException error) {
                throw new IllegalArgumentException("the name is not valid UTF-16: " + name, error);
            }
            at = end;
        }
        return Arrays.copyOf(bytes.array(), bytes.position());
    }

    /** Returns whether the character stands for a byte and is not the second half of a pair. */
    private static boolean isByte(String name, int at) {
        char c = name.charAt(at);
        return c >= FIRST && c <= LAST && !(at > 0 && Character.isHighSurrogate(name.charAt(at - 1)));
    }

    static String decode(byte[] name) {
        ByteBuffer bytes = ByteBuffer.wrap(name);
        CharBuffer text = CharBuffer.allocate(name.length);
        CharsetDecoder decoder = StandardCharsets.UTF_8.newDecoder();
        while (true) {
            CoderResult result = decoder.decode(bytes, text, true);
            if (!result.isMalformed()) {
                break;
            }
            for (int i = 0; i < result.length(); i++) {
                text.put((char) (BASE + Byte.toUnsignedInt(bytes.get())));
            }
        }
        return text.flip().toString();
    }
}
