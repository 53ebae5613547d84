//! The bytes of a segment and of the status page, as docs/formats/local-channel.md draws them.

/// The number of requests of one client that can be unanswered at a time.
pub const SLOTS: usize = 16;

/// The largest request and the largest reply, in bytes: 512 KiB of data and 16 KiB.
pub const PAYLOAD_BYTES_MAX: usize = 528 << 10;

/// The size of the header, of the status page, and the alignment of slots.
pub(super) const PAGE_BYTES: usize = 4096;
/// The offset of `pending` in a segment.
pub(super) const PENDING: usize = 0;
/// The offset of `watched` in a segment.
pub(super) const WATCHED: usize = 64;
/// The offset of the first counter in a segment.
const COUNTERS: usize = 128;
/// The number of counters of a client.
pub const COUNTERS_OF_CLIENT: usize = 4;
/// The offset of `awake` in the status page.
pub(super) const AWAKE: usize = 0;
/// The offset of `version` in the status page.
pub(super) const VERSION: usize = 64;
/// The offset of `clients` in the status page.
pub(super) const CLIENTS: usize = 128;

const PAYLOAD_OFFSET: usize = 64;
const SLOT_BYTES: usize = PAGE_BYTES + PAYLOAD_BYTES_MAX;
/// The size of a segment.
pub(super) const SEGMENT_BYTES: usize = PAGE_BYTES + SLOTS * SLOT_BYTES;

const _: () = assert!(SEGMENT_BYTES == 8_720_384 && SLOT_BYTES == 544_768 && PAYLOAD_BYTES_MAX == 540_672);

/// The slot has a request. A slot without any request yet has the state 0.
pub(super) const REQUESTED: u32 = 1;
/// The slot has a request, and the client sleeps until the reply.
pub(super) const AWAITED: u32 = 2;
/// The slot has a reply, which the client may have read already.
pub(super) const REPLIED: u32 = 3;

/// Returns the offset of a counter in a segment.
pub(super) const fn counter(number: usize) -> usize {
    assert!(number < COUNTERS_OF_CLIENT);
    COUNTERS + 8 * number
}

/// Returns the offset of a slot.
const fn slot(slot: usize) -> usize {
    assert!(slot < SLOTS);
    PAGE_BYTES + slot * SLOT_BYTES
}

/// Returns the offset of the state of a slot.
pub(super) const fn state(number: usize) -> usize {
    slot(number)
}

/// Returns the offset of the length of a slot's request.
pub(super) const fn request_bytes(number: usize) -> usize {
    slot(number) + 4
}

/// Returns the offset of the length of a slot's reply.
pub(super) const fn reply_bytes(number: usize) -> usize {
    slot(number) + 8
}

/// Returns the offset of the processor on which a slot's request was made.
pub(super) const fn processor(number: usize) -> usize {
    slot(number) + 12
}

/// Returns the offset of the payload of a slot.
pub(super) const fn payload(number: usize) -> usize {
    slot(number) + PAYLOAD_OFFSET
}
