//! Ranges of keys.

use std::borrow::Cow;
use std::ops::Bound;

use crate::KEY_BYTES_MAX;

/// The range of keys that a scan visits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange<'a> {
    start: Bound<&'a [u8]>,
    end: Bound<Cow<'a, [u8]>>,
}

impl<'a> KeyRange<'a> {
    /// Returns the range of all keys.
    pub fn all() -> KeyRange<'a> {
        KeyRange { start: Bound::Unbounded, end: Bound::Unbounded }
    }

    /// Returns the range between two bounds. It is empty if `start` is after `end`.
    pub fn between(start: Bound<&'a [u8]>, end: Bound<&'a [u8]>) -> KeyRange<'a> {
        KeyRange { start, end: end.map(Cow::Borrowed) }
    }

    /// Returns the range of all keys that begin with `prefix`, including `prefix` itself.
    pub fn prefix(prefix: &'a [u8]) -> KeyRange<'a> {
        // The first key after all keys with the prefix: the last byte that is not 0xFF, plus one.
        let end = match prefix.iter().rposition(|byte| *byte != u8::MAX) {
            Some(last) => {
                let mut end = prefix[..=last].to_vec();
                end[last] += 1;
                Bound::Excluded(Cow::Owned(end))
            }
            None => Bound::Unbounded,
        };
        KeyRange { start: Bound::Included(prefix), end }
    }

    /// Returns the part of the range after `key`. A scan that ended with `key` continues with it.
    pub fn after(self, key: &'a [u8]) -> KeyRange<'a> {
        let is_before = match self.start {
            Bound::Included(start) => key < start,
            Bound::Excluded(start) => key <= start,
            Bound::Unbounded => false,
        };
        match is_before {
            true => self,
            false => KeyRange { start: Bound::Excluded(key), ..self },
        }
    }

    /// Returns bounds that are no longer than [`KEY_BYTES_MAX`]: the engine panics for longer ones.
    pub(crate) fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        // The keys before a longer bound are the keys up to its first KEY_BYTES_MAX bytes.
        let start = match self.start {
            Bound::Included(start) | Bound::Excluded(start) if start.len() > KEY_BYTES_MAX => {
                Bound::Excluded(&start[..KEY_BYTES_MAX])
            }
            start => start,
        };
        let end = match self.end.as_ref().map(|end| &**end) {
            Bound::Included(end) | Bound::Excluded(end) if end.len() > KEY_BYTES_MAX => {
                Bound::Included(&end[..KEY_BYTES_MAX])
            }
            end => end,
        };
        (start, end)
    }

    /// Returns whether no key can be in the range. The maps of the stores panic for some of these
    /// ranges.
    pub(crate) fn is_empty(&self) -> bool {
        match self.bounds() {
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(start), Bound::Included(end)) => start > end,
            (
                Bound::Included(start) | Bound::Excluded(start),
                Bound::Included(end) | Bound::Excluded(end),
            ) => start >= end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_first_key_without_it() {
        let end = |prefix| KeyRange::prefix(prefix).end;
        assert_eq!(end(b"ab"), Bound::Excluded(Cow::Borrowed(&b"ac"[..])));
        assert_eq!(end(&[1, 255, 255]), Bound::Excluded(Cow::Borrowed(&[2][..])));
        assert_eq!(end(&[255, 255]), Bound::Unbounded);
        assert_eq!(end(b""), Bound::Unbounded);
    }

    #[test]
    fn a_key_before_the_range_does_not_extend_it() {
        assert_eq!(KeyRange::prefix(b"b").after(b"a"), KeyRange::prefix(b"b"));
        assert_eq!(KeyRange::prefix(b"b").after(b"bc").start, Bound::Excluded(&b"bc"[..]));
        assert!(KeyRange::prefix(b"b").after(b"c").is_empty());
    }
}
