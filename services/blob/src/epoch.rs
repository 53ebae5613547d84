//! Numbers that are never used twice, without a write for each number: the upper bits are the
//! number of times that the store was opened.

use crate::keys::ExtentId;

/// The number of bits of the counter in an epoch: enough for 200 days at a million numbers per
/// second. The other bits are enough for a million openings of a store.
const COUNTER_BITS: u32 = 44;
/// The largest epoch.
pub(crate) const EPOCH_MAX: u64 = (1 << (64 - COUNTER_BITS)) - 1;

/// Returns the epoch of a number.
pub(crate) fn epoch_of(number: u64) -> u64 {
    number >> COUNTER_BITS
}

/// Returns a number without its epoch.
pub(crate) fn number_in_epoch(number: u64) -> u64 {
    number & ((1 << COUNTER_BITS) - 1)
}

/// Returns the number of an epoch whose counter is 0.
pub(crate) fn first_of(epoch: u64) -> u64 {
    epoch << COUNTER_BITS
}

/// Returns whether at most 2^20 numbers of an epoch are left.
pub(crate) fn is_almost_used_up(number: u64) -> bool {
    number_in_epoch(number) >= (1 << COUNTER_BITS) - (1 << 20)
}

impl ExtentId {
    /// Returns the extent with a number in an epoch, or `None` if the epoch or the number has too
    /// many bits.
    pub(crate) fn new(epoch: u64, number: u64) -> Option<ExtentId> {
        let id = ExtentId(first_of(epoch.min(EPOCH_MAX)) | number_in_epoch(number));
        (epoch_of(id.0) == epoch && number_in_epoch(id.0) == number).then_some(id)
    }
}
