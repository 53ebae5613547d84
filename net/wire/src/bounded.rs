//! Lists with a largest number of elements, which is checked while they are decoded, before memory
//! for more elements is allocated.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// Elements for which memory is allocated before they are decoded.
const ALLOCATED_AT_FIRST: usize = 16;

struct AtMost<const MAX: usize, T>(PhantomData<T>);

impl<'de, const MAX: usize, T: Deserialize<'de>> Visitor<'de> for AtMost<MAX, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
        let count = elements.size_hint().unwrap_or(0);
        if count > MAX {
            return Err(A::Error::invalid_length(count, &self));
        }
        let mut list = Vec::with_capacity(count.min(ALLOCATED_AT_FIRST));
        while let Some(element) = elements.next_element()? {
            if list.len() == MAX {
                return Err(A::Error::invalid_length(MAX + 1, &self));
            }
            list.push(element);
        }
        Ok(list)
    }
}

/// Decodes a list of at most `MAX` elements.
pub(crate) fn at_most<'de, const MAX: usize, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(AtMost::<MAX, T>(PhantomData))
}
