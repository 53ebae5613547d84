//! The encoding of all messages: the format of the `postcard` library, which is little endian, with
//! integers of variable length.

use quell_vfs::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Returns the bytes of a message.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_allocvec(message).expect("a vector has room for every message")
}

/// Writes a message to the beginning of `into` and returns the number of bytes written.
///
/// # Errors
///
/// `InvalidInput` if the message is longer than `into`.
pub fn encode_into<T: Serialize>(message: &T, into: &mut [u8]) -> Result<usize> {
    match postcard::to_slice(message, into) {
        Ok(written) => Ok(written.len()),
        Err(cause) => Err(Error {
            source: Some(cause.into()),
            ..Error::new(ErrorKind::InvalidInput, "encode a message", "")
        }),
    }
}

/// Reads a message, which must end at the end of `bytes`.
///
/// # Errors
///
/// `Damaged` if `bytes` is not exactly one message.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    match decode_first(bytes)? {
        (message, []) => Ok(message),
        (_, rest) => Err(damaged(format!("{} bytes follow the message", rest.len()).into())),
    }
}

/// Reads a message at the beginning of `bytes`, and returns it with the bytes after it.
///
/// # Errors
///
/// `Damaged` if `bytes` does not begin with a message.
pub fn decode_first<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8])> {
    postcard::take_from_bytes(bytes).map_err(|cause| damaged(cause.into()))
}

fn damaged(cause: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error { source: Some(cause), ..Error::new(ErrorKind::Damaged, "decode a message", "") }
}
