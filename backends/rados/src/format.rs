//! The bytes of the objects of a log, as docs/formats/rados-log.md draws them. The functions are
//! pure. Every length is compared with its limit before memory is allocated for it.

pub(crate) mod checkpoint;
pub(crate) mod extent;
pub(crate) mod head;
pub(crate) mod log;
pub(crate) mod names;
pub(crate) mod payload;
pub(crate) mod server;

#[cfg(test)]
mod tests {
    use quell_kv::Batch;
    use quell_testkit::Random;

    use super::head::{Checkpoint, Head, LOG_OBJECTS_MAX, LogObject};
    use super::log::{Expected, Guard, Header, encode_record, replay};
    use super::payload::{decode_group, encode_batch, encode_group};
    use super::{checkpoint, names};
    use crate::fields::{Fault, checksum};

    const HEADER: Header = Header { id: [7; 16], epoch: 1, number: 0, sequence: 1 };
    const CHECKPOINT: Checkpoint = Checkpoint { epoch: 3, number: 5, pieces: 2 };

    fn head(random: &mut Random) -> Vec<u8> {
        let mut logs = Vec::new();
        for number in 0..random.below(5) as u64 {
            logs.push(LogObject { epoch: 1 + number / 2, number: number * 3 });
        }
        let checkpoint = random.one_in(2).then_some(CHECKPOINT);
        Head { id: [1; 16], epoch: 9, owner: [2; 16], version: 4, next: 20, checkpoint, sequence: 1, logs }
            .encode()
    }

    fn payload(random: &mut Random) -> Vec<u8> {
        let mut batches = Vec::new();
        for _ in 0..random.below(4) {
            let mut batch = Batch::new();
            for _ in 0..random.below(4) {
                let (key_bytes, value_bytes) = (1 + random.below(20), random.below(100));
                let (key, value) = (random.bytes(key_bytes), random.bytes(value_bytes));
                if random.one_in(4) { batch.delete(&key) } else { batch.put(&key, &value) }
            }
            batches.push(encode_batch(&batch));
        }
        encode_group(batches.iter().map(Vec::as_slice))
    }

    fn log_object(random: &mut Random) -> Vec<u8> {
        let mut bytes = HEADER.encode();
        for sequence in 1..1 + random.below(4) as u64 {
            bytes.extend(encode_record(sequence, 1 + random.below(2) as u64, &payload(random)));
        }
        bytes
    }

    fn piece(random: &mut Random) -> Vec<u8> {
        let mut piece = checkpoint::Piece::new();
        for _ in 0..random.below(5) {
            let (key_bytes, value_bytes) = (1 + random.below(20), random.below(100));
            piece.push(&random.bytes(key_bytes), &random.bytes(value_bytes));
        }
        piece.finish(&[1; 16], &CHECKPOINT, 0)
    }

    /// Passes bytes to all decoders. Their results have no more bytes than the input.
    fn decode(bytes: &[u8]) {
        if let Ok(head) = Head::decode(bytes) {
            assert!(head.logs.len() <= LOG_OBJECTS_MAX && head.logs.len() * 16 < bytes.len());
            assert_eq!(head.encode(), bytes);
        }
        if let Some(guard) = Guard::decode(bytes) {
            assert_eq!(guard.encode(), bytes);
        }
        if let Some(batches) = decode_group(bytes) {
            let operations = batches.iter().flat_map(Batch::operations);
            let size: usize =
                operations.map(|(key, value)| 6 + key.len() + value.map_or(0, <[u8]>::len)).sum();
            assert!(size + 4 * batches.len() < bytes.len());
            let encoded: Vec<_> = batches.iter().map(encode_batch).collect();
            assert_eq!(encode_group(encoded.iter().map(Vec::as_slice)), bytes);
        }
        let mut size = 0;
        let _damage_is_an_error =
            replay(bytes, &HEADER, Expected { sequence: 1, epoch: 0 }, 2, &mut |record| {
                size += record.payload.len();
                Ok::<_, Fault>(())
            });
        let _damage_is_an_error =
            checkpoint::decode_piece(bytes, &[1; 16], &CHECKPOINT, 0, &mut |key, value| {
                size += key.len() + value.len();
                Ok::<_, Fault>(())
            });
        assert!(size <= bytes.len());
        if let Ok(text) = std::str::from_utf8(bytes)
            && let Some(part) = names::parse("a", text)
        {
            let again = match part {
                names::ParsedName::LogObject { epoch, number } => names::log_object("a", epoch, number),
                names::ParsedName::Piece { epoch, number, piece } => names::piece("a", epoch, number, piece),
                names::ParsedName::Extent { number, piece } => names::extent("a", number, piece),
            };
            assert_eq!(again, text);
        }
    }

    /// Changes some bytes, preferably to values that are lengths at a limit.
    fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
        for _ in 0..1 + random.below(3) {
            if bytes.is_empty() {
                return;
            }
            let index = random.below(bytes.len());
            match random.below(6) {
                0 => bytes.truncate(index),
                1 => bytes.insert(index, random.number() as u8),
                2 => bytes[index] = 0xff,
                3 => bytes[index] = 0,
                4 => bytes[index..].iter_mut().take(4).for_each(|byte| *byte = 0xff),
                _ => bytes[index] ^= 1 << random.below(8),
            }
        }
    }

    /// Sets the checksum so that a decoder does not refuse the bytes because of it.
    fn repair_checksum(bytes: &mut [u8], kind: usize) {
        match kind {
            0 if bytes.len() > 8 => {
                let (content, sum) = bytes.split_at_mut(bytes.len() - 8);
                sum.copy_from_slice(&checksum(content, &[]).to_le_bytes());
            }
            // The first record of a log object, as long as the bytes are.
            1 if bytes.len() > 96 => {
                let sum = checksum(&bytes[64..88], &bytes[96..]);
                bytes[88..96].copy_from_slice(&sum.to_le_bytes());
            }
            2 if bytes.len() >= 64 => {
                let sum = checksum(&bytes[..56], &bytes[64..]);
                bytes[56..64].copy_from_slice(&sum.to_le_bytes());
            }
            _ => {}
        }
    }

    #[test]
    fn no_bytes_make_a_decoder_panic() {
        let mut random = Random::new(1);
        for _ in 0..20_000 {
            let length = random.below(200);
            decode(&random.bytes(length));
            let kind = random.below(5);
            let mut bytes = match kind {
                0 => head(&mut random),
                1 => log_object(&mut random),
                2 => piece(&mut random),
                3 => payload(&mut random),
                _ => names::piece("a", random.number(), random.number(), 7).into_bytes(),
            };
            decode(&bytes);
            mutate(&mut bytes, &mut random);
            decode(&bytes);
            repair_checksum(&mut bytes, kind);
            decode(&bytes);
        }
    }
}
