//! The names of a disk's files in an image: positions in the backing chain, each with the path at
//! the time of the recording. The format is described in docs/formats/boot.md.

/// Maximum number of files in one backing chain.
pub const DISK_FILES_MAX: usize = 64;
const PATH_BYTES_MAX: usize = 4095;

/// Returns the name of the file at this position of a chain.
pub fn disk_name(position: usize, path: &[u8]) -> Vec<u8> {
    [position.to_string().as_bytes(), path].concat()
}

/// Returns a file's position in the chain, and its path when it was recorded; `None` for an invalid
/// name.
pub fn parse_disk_name(name: &[u8]) -> Option<(usize, &[u8])> {
    let (digits, path) = name.split_at(name.iter().position(|b| *b == b'/')?);
    let position: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let is_plain = position < DISK_FILES_MAX && position.to_string().as_bytes() == digits;
    let is_path = path.len() > 1 && path.len() <= PATH_BYTES_MAX && !path.contains(&0);
    (is_plain && is_path).then_some((position, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disks_file_is_named_by_its_position_and_path() {
        assert_eq!(parse_disk_name(&disk_name(12, b"/srv/a b")), Some((12, &b"/srv/a b"[..])));
        for name in [
            &b""[..],
            b"0",
            b"/srv",
            b"00/srv",
            b"+1/srv",
            b"64/srv",
            b"1/",
            b"1/a\0b",
            b"99999999999999999999/a",
        ] {
            assert_eq!(parse_disk_name(name), None, "{name:?}");
        }
    }
}
