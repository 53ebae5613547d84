//! The value of an entry, which shares its memory with the store that returned it.

use std::fmt;
use std::ops::Deref;

use fjall::Slice;

/// The bytes of a value. A copy of a value longer than 20 bytes shares its memory with the original
/// and possibly with a cache of the store.
#[derive(Clone, PartialEq, Eq)]
pub struct Value(pub(crate) Slice);

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Value {
        Value(bytes.into())
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
