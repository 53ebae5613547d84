//! Numbers that are never used twice, without a write for each of them: the upper bits are the
//! number of times that the store was opened.

use crate::keys::ExtentId;

/// The number of bits of the counter in an epoch: at a million numbers a second they last for 200
/// days. A store can be opened a million times.
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

/// Returns the first number of an epoch.
pub(crate) fn first_of(epoch: u64) -> u64 {
    epoch << COUNTER_BITS
}

/// Returns whether an epoch has at most a million numbers left.
pub(crate) fn is_almost_used_up(number: u64) -> bool {
    number_in_epoch(number) >= (1 << COUNTER_BITS) - (1 << 20)
}

impl ExtentId {
    /// Returns the extent with a number in an epoch, if both are small enough.
    pub(crate) fn new(epoch: u64, number: u64) -> Option<ExtentId> {
        let id = ExtentId(first_of(epoch.min(EPOCH_MAX)) | number_in_epoch(number));
        (epoch_of(id.0) == epoch && number_in_epoch(id.0) == number).then_some(id)
    }
}
