//! The filter of a table: a Bloom filter, which shows for most keys without an entry that the table
//! does not have them.

use xxhash_rust::xxh3::xxh3_64;

/// Bits for each entry. With [`PROBES`] probes, about 1 % of the missing keys pass.
const BITS_PER_ENTRY: usize = 10;
/// The number of bits that each key sets.
const PROBES: u64 = 6;

/// Returns the hash of a key for a filter.
pub(super) fn hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// Returns the filter of the keys with these hashes.
pub(super) fn build(hashes: &[u64]) -> Vec<u8> {
    let mut bytes = vec![0; (hashes.len() * BITS_PER_ENTRY).div_ceil(8)];
    let bits = bytes.len() as u64 * 8;
    for &hash in hashes {
        for bit in probes(hash, bits) {
            bytes[(bit / 8) as usize] |= 1 << (bit % 8);
        }
    }
    bytes
}

/// Returns whether a key with this hash may have an entry. Without a filter, every key may.
pub(super) fn may_contain(filter: &[u8], hash: u64) -> bool {
    let bits = filter.len() as u64 * 8;
    bits == 0 || probes(hash, bits).all(|bit| filter[(bit / 8) as usize] & 1 << (bit % 8) != 0)
}

/// Returns the bits of a hash (double hashing).
fn probes(hash: u64, bits: u64) -> impl Iterator<Item = u64> {
    let step = hash.rotate_left(32) | 1;
    (0..PROBES).map(move |probe| {
        let mixed = hash.wrapping_add(step.wrapping_mul(probe));
        // The upper half of a product is a number below `bits`.
        ((u128::from(mixed) * u128::from(bits)) >> 64) as u64
    })
}
