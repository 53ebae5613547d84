//! Random numbers that identify stores, views and verifications.

pub(crate) fn random_number() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let half = || u128::from(RandomState::new().hash_one(std::process::id()));
    half() << 64 | half()
}
