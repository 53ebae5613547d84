//! Frames, without their protection: the fixed fields after the payload, and lists of ids.
//! docs/formats/peer-protocol.md draws the bytes. Pure functions.

/// The largest payload: 1 MiB of data and 64 KiB that describe it.
pub const PAYLOAD_BYTES_MAX: usize = (1 << 20) + (64 << 10);

/// The size of the length field.
pub(super) const LENGTH_BYTES: usize = 4;
/// The size of the fixed fields.
pub(super) const FIELD_BYTES: usize = 24;
/// The size of the authentication tag.
pub(super) const TAG_BYTES: usize = 16;
/// The smallest value of the length field.
pub(super) const LENGTH_MIN: usize = FIELD_BYTES + TAG_BYTES;
/// The largest value of the length field.
pub(super) const LENGTH_MAX: usize = PAYLOAD_BYTES_MAX + LENGTH_MIN;

/// A violation of the protocol, with its description. It ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Violation(pub &'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    Confirm,
    Resume,
    Request,
    Reply,
    Cancel,
    Acknowledge,
    Ping,
    Pong,
    Goodbye,
}

const KINDS: [FrameKind; 9] = [
    FrameKind::Confirm,
    FrameKind::Resume,
    FrameKind::Request,
    FrameKind::Reply,
    FrameKind::Cancel,
    FrameKind::Acknowledge,
    FrameKind::Ping,
    FrameKind::Pong,
    FrameKind::Goodbye,
];

/// The outcome of a request, in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Done,
    Cancelled,
    Stopping,
    Unanswered,
    TooLarge,
}

const STATUSES: [Status; 5] =
    [Status::Done, Status::Cancelled, Status::Stopping, Status::Unanswered, Status::TooLarge];

/// The fixed fields of a frame. Fields that a kind does not have are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fields {
    pub kind: FrameKind,
    pub status: Status,
    pub id: u64,
    pub deadline_ms: u32,
    pub reply_bytes_max: u32,
    /// The length of the payload before its compression, or 0 if it is not compressed.
    pub expanded_bytes: u32,
}

impl Fields {
    pub fn new(kind: FrameKind, id: u64) -> Fields {
        Fields { kind, status: Status::Done, id, deadline_ms: 0, reply_bytes_max: 0, expanded_bytes: 0 }
    }

    pub fn encode(&self) -> [u8; FIELD_BYTES] {
        let mut bytes = [0; FIELD_BYTES];
        bytes[0] = KINDS.iter().position(|kind| *kind == self.kind).expect("all are listed") as u8 + 1;
        bytes[1] = STATUSES.iter().position(|status| *status == self.status).expect("all are listed") as u8;
        bytes[4..12].copy_from_slice(&self.id.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.deadline_ms.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.reply_bytes_max.to_le_bytes());
        bytes[20..].copy_from_slice(&self.expanded_bytes.to_le_bytes());
        bytes
    }

    /// Decodes the fixed fields of a frame with a payload of `payload_bytes`.
    pub fn decode(bytes: &[u8; FIELD_BYTES], payload_bytes: usize) -> Result<Fields, Violation> {
        let kind = usize::from(bytes[0]).checked_sub(1).and_then(|kind| KINDS.get(kind));
        let kind = *kind.ok_or(Violation("unknown type of frame"))?;
        let status = *STATUSES.get(usize::from(bytes[1])).ok_or(Violation("unknown status of a reply"))?;
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let id = u64::from_le_bytes(bytes[4..12].try_into().expect("8 bytes"));
        let fields = Fields {
            kind,
            status,
            id,
            deadline_ms: number(12),
            reply_bytes_max: number(16),
            expanded_bytes: number(20),
        };
        if bytes[2..4] != [0; 2] {
            return Err(Violation("a zero field is not zero"));
        }
        let has_id = matches!(kind, FrameKind::Request | FrameKind::Reply | FrameKind::Cancel);
        if has_id != (id != 0) {
            return Err(Violation("a frame has an id that it must not have, or none"));
        }
        let is_request = kind == FrameKind::Request;
        if !is_request && (fields.deadline_ms != 0 || fields.reply_bytes_max != 0) {
            return Err(Violation("a frame that is not a request has fields of a request"));
        }
        if fields.reply_bytes_max as usize > PAYLOAD_BYTES_MAX {
            return Err(Violation("a request allows a reply that is larger than a frame"));
        }
        if kind != FrameKind::Reply && status != Status::Done {
            return Err(Violation("a frame that is not a reply has a status"));
        }
        if fields.expanded_bytes != 0 {
            if !is_request && kind != FrameKind::Reply {
                return Err(Violation("a frame that is neither a request nor a reply is compressed"));
            }
            if fields.expanded_bytes as usize > PAYLOAD_BYTES_MAX {
                return Err(Violation("a compressed payload is larger than a frame"));
            }
            if payload_bytes >= fields.expanded_bytes as usize {
                return Err(Violation("a compressed payload is not smaller than before"));
            }
        }
        let is_payload_right = match kind {
            FrameKind::Request => true,
            FrameKind::Reply => status == Status::Done || (payload_bytes == 0 && fields.expanded_bytes == 0),
            FrameKind::Resume | FrameKind::Acknowledge => payload_bytes.is_multiple_of(8),
            _ => payload_bytes == 0,
        };
        match is_payload_right {
            true => Ok(fields),
            false => Err(Violation("a payload has the wrong size for its type of frame")),
        }
    }
}

/// Returns the value of a length field, if it is in bounds.
pub(super) fn decode_length(bytes: [u8; LENGTH_BYTES]) -> Result<usize, Violation> {
    let length = u32::from_le_bytes(bytes) as usize;
    match (LENGTH_MIN..=LENGTH_MAX).contains(&length) {
        true => Ok(length),
        false => Err(Violation("the length of a frame is out of bounds")),
    }
}

pub(super) fn encode_length(payload_bytes: usize) -> [u8; LENGTH_BYTES] {
    debug_assert!(payload_bytes <= PAYLOAD_BYTES_MAX);
    ((payload_bytes + LENGTH_MIN) as u32).to_le_bytes()
}

pub(super) fn encode_ids(ids: &[u64]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// Decodes a list of ids; a rest of less than 8 bytes was refused with the fixed fields.
pub(super) fn decode_ids(payload: &[u8]) -> impl Iterator<Item = u64> + '_ {
    payload.chunks_exact(8).map(|id| u64::from_le_bytes(id.try_into().expect("8 bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_format_is_encoded() {
        let fields = Fields { deadline_ms: 250, reply_bytes_max: 4096, ..Fields::new(FrameKind::Request, 7) };
        let bytes = [3, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0xfa, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0];
        assert_eq!(fields.encode(), bytes);
        assert_eq!(encode_length(5), [0x2d, 0, 0, 0]);
        assert_eq!(Fields::decode(&bytes, 5), Ok(fields));
    }

    #[test]
    fn a_length_out_of_bounds_is_refused() {
        assert!(decode_length((LENGTH_MIN as u32 - 1).to_le_bytes()).is_err());
        assert_eq!(decode_length((LENGTH_MIN as u32).to_le_bytes()), Ok(LENGTH_MIN));
        assert_eq!(decode_length((LENGTH_MAX as u32).to_le_bytes()), Ok(LENGTH_MAX));
        assert!(decode_length((LENGTH_MAX as u32 + 1).to_le_bytes()).is_err());
        assert!(decode_length([0xff; 4]).is_err());
    }

    #[test]
    fn fields_that_a_type_does_not_have_are_refused() {
        let request = Fields { deadline_ms: 1, ..Fields::new(FrameKind::Request, 1) };
        for at in [2, 3] {
            let mut bytes = request.encode();
            bytes[at] = 1;
            assert!(Fields::decode(&bytes, 0).is_err(), "{at}");
        }
        assert!(Fields::decode(&Fields::new(FrameKind::Request, 0).encode(), 0).is_err());
        assert!(Fields::decode(&Fields::new(FrameKind::Ping, 1).encode(), 0).is_err());
        assert!(Fields::decode(&Fields::new(FrameKind::Ping, 0).encode(), 1).is_err());
        assert!(Fields::decode(&Fields::new(FrameKind::Acknowledge, 0).encode(), 9).is_err());
        let ids = Fields { expanded_bytes: 64, ..Fields::new(FrameKind::Acknowledge, 0) };
        assert!(Fields::decode(&ids.encode(), 8).is_err());
        let cancelled = Fields { status: Status::Cancelled, ..Fields::new(FrameKind::Reply, 1) };
        assert!(Fields::decode(&cancelled.encode(), 0).is_ok());
        assert!(Fields::decode(&cancelled.encode(), 1).is_err());
        let cancelled = Fields { expanded_bytes: 1, ..cancelled };
        assert!(Fields::decode(&cancelled.encode(), 0).is_err());
    }

    #[test]
    fn the_length_before_compression_is_bounded() {
        let decode = |kind, expanded_bytes, payload_bytes| {
            let fields = Fields { expanded_bytes, ..Fields::new(kind, 1) };
            let decoded = Fields::decode(&fields.encode(), payload_bytes);
            assert!(decoded.is_err() || decoded == Ok(fields));
            decoded.is_ok()
        };
        for kind in [FrameKind::Request, FrameKind::Reply] {
            assert!(decode(kind, 11, 10) && decode(kind, PAYLOAD_BYTES_MAX as u32, 0));
            assert!(!decode(kind, 10, 10) && !decode(kind, 9, 10));
            assert!(!decode(kind, PAYLOAD_BYTES_MAX as u32 + 1, 10) && !decode(kind, u32::MAX, 10));
        }
    }
}
