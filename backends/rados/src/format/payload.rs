//! Batches of a key-value store as the payload of a record.

use quell_kv::{Batch, KEY_BYTES_MAX, VALUE_BYTES_MAX};

use crate::fields::Fields;

/// The size of an operation without its key and value, in bytes.
const OPERATION_BYTES: usize = 6;

/// Returns the bytes of a batch, which must be within the limits of [`Batch`].
pub(crate) fn encode_batch(batch: &Batch) -> Vec<u8> {
    let content = batch.operations().map(|(key, value)| key.len() + value.map_or(0, <[u8]>::len));
    let size = 4 + content.sum::<usize>() + batch.len() * OPERATION_BYTES;
    let mut bytes = Vec::with_capacity(size);
    bytes.extend_from_slice(&(batch.len() as u32).to_le_bytes());
    for (key, value) in batch.operations() {
        bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&value.map_or(0, |value| value.len() as u32 + 1).to_le_bytes());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value.unwrap_or_default());
    }
    bytes
}

/// Returns the payload with these batches.
pub(crate) fn encode_group<'a>(batches: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = (batches.len() as u32).to_le_bytes().to_vec();
    batches.for_each(|batch| bytes.extend_from_slice(batch));
    bytes
}

fn decode_batch(fields: &mut Fields<'_>) -> Option<Batch> {
    let count = fields.u32()? as usize;
    if count > fields.0.len() / OPERATION_BYTES {
        return None;
    }
    let mut batch = Batch::with_capacity(count);
    for _ in 0..count {
        let (key_bytes, value_bytes) = (usize::from(fields.u16()?), fields.u32()? as usize);
        let key = fields.bytes(key_bytes)?;
        if key.is_empty() || key.len() > KEY_BYTES_MAX || value_bytes > VALUE_BYTES_MAX + 1 {
            return None;
        }
        match value_bytes.checked_sub(1) {
            None => batch.delete(key),
            Some(value_bytes) => batch.put(key, fields.bytes(value_bytes)?),
        }
    }
    Some(batch)
}

/// Returns the batches of a payload, or `None` if the bytes are not a valid payload.
pub(crate) fn decode_group(payload: &[u8]) -> Option<Vec<Batch>> {
    let mut fields = Fields(payload);
    let count = fields.u32()? as usize;
    if count > fields.0.len() / 4 {
        return None;
    }
    let batches = (0..count).map(|_| decode_batch(&mut fields)).collect::<Option<Vec<_>>>()?;
    fields.0.is_empty().then_some(batches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_decoded_as_they_were_encoded() {
        let (mut first, second) = (Batch::new(), Batch::new());
        first.put(b"a", b"1");
        first.delete(b"b");
        first.put(b"a", b"");
        let encoded = [encode_batch(&first), encode_batch(&second)];
        let payload = encode_group(encoded.iter().map(Vec::as_slice));
        let decoded = decode_group(&payload).expect("a sound payload");
        let operations: Vec<_> = decoded.iter().map(|batch| batch.operations().collect::<Vec<_>>()).collect();
        assert_eq!(operations, [first.operations().collect::<Vec<_>>(), Vec::new()]);
        for length in 0..payload.len() {
            assert!(decode_group(&payload[..length]).is_none(), "{length}");
        }
    }
}
