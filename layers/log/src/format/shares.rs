//! Divides the logs of a file among readers (Parallel Index Read, section IV-B of the paper).

use std::ops::Range;

/// Returns the indices of the logs, out of `count`, in share `number` of `shares`. Each log is in
/// exactly one share, and the sizes of the shares differ by at most one.
pub fn share_range(count: usize, number: usize, shares: usize) -> Range<usize> {
    let before = |number: usize| (count as u128 * number as u128 / shares.max(1) as u128) as usize;
    before(number)..before(number + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_contain_each_log_once_and_have_nearly_equal_sizes() {
        for count in [0usize, 1, 2, 5, 1024] {
            for shares in [1, 2, 3, 7, 2000] {
                let parts: Vec<_> = (0..shares).map(|number| share_range(count, number, shares)).collect();
                assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert_eq!((parts[0].start, parts[shares - 1].end), (0, count));
                let (least, most) = (count / shares, count.div_ceil(shares));
                assert!(parts.iter().all(|part| (least..=most).contains(&part.len())));
            }
        }
    }
}
