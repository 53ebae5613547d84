//! Chooses the store for a key by rendezvous hashing: adding or removing a store moves only the
//! keys that this store gets or had. Pure functions on values, no I/O.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Returns the index in `stores` of the store for `key`. The chosen store does not depend on the
/// order of the list. `stores` must not be empty.
pub fn choose_store(key: &[u8], stores: &[u128]) -> usize {
    let weight = |store: u128| {
        let seed = xxh3_64_with_seed(&store.to_le_bytes(), 0);
        // Of equal weights the larger number is used, so that the order of the list has no
        // influence.
        (xxh3_64_with_seed(key, seed), store)
    };
    (0..stores.len()).max_by_key(|index| weight(stores[*index])).expect("a mount has a store")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORES: [u128; 4] = [11, 22, 33, 44];

    fn keys() -> impl Iterator<Item = Vec<u8>> {
        (0..4000).map(|i| format!("checkpoint.{i}").into_bytes())
    }

    #[test]
    fn each_store_gets_an_equal_share_in_any_order() {
        let mut shares = [0; 4];
        let reversed: Vec<u128> = STORES.iter().rev().copied().collect();
        for key in keys() {
            let store = choose_store(&key, &STORES);
            shares[store] += 1;
            assert_eq!(reversed[choose_store(&key, &reversed)], STORES[store]);
        }
        assert!(shares.iter().all(|share| (900..1100).contains(share)), "{shares:?}");
    }

    #[test]
    fn removing_a_store_moves_only_its_own_keys() {
        for key in keys() {
            let before = STORES[choose_store(&key, &STORES)];
            let after = STORES[choose_store(&key, &STORES[..3])];
            assert!(after == before || before == 44);
        }
    }
}
