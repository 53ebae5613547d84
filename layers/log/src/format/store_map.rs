//! The placement map: lists the stores that belong together, in order, and marks those that are
//! being drained. Pure functions on values, no I/O. The format is described in docs/formats/log.md,
//! Placement.

use xxhash_rust::xxh3::xxh3_64;

use crate::format::damage::LogDamage;
use crate::format::placement::choose_store;

/// The largest size of a map, in bytes.
pub const MAP_BYTES_MAX: usize = 1 << 20;
const PREFIX: &str = "map-";
const TITLE: &[u8] = b"quell log map 1\n";
/// Sixteen digits and a line feed.
pub(crate) const MAP_SUM_BYTES: usize = 17;

/// One store in a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The number in the store's record.
    pub number: u128,
    /// The store is being drained: nothing new is placed there.
    pub is_draining: bool,
    /// The store's path when the map was created, at which running mounts open an added store.
    /// Empty if unknown.
    pub path: Vec<u8>,
}

/// One version of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreMap {
    /// The version; 0 for a single store without a map.
    pub version: u64,
    /// The stores in order. The first one holds the symbolic links and determines which directories
    /// exist.
    pub members: Vec<Member>,
}

impl StoreMap {
    /// Returns the name of the file with this version.
    pub fn file_name(&self) -> Vec<u8> {
        format!("{PREFIX}{:x}", self.version).into_bytes()
    }

    /// Returns the version in a file name, or `None` if it is not the name of a map.
    pub fn version_of(name: &[u8]) -> Option<u64> {
        let hex = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
        let version = u64::from_str_radix(hex, 16).ok()?;
        (format!("{version:x}") == hex && version > 0).then_some(version)
    }

    /// Returns the content of the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = TITLE.to_vec();
        for Member { number, is_draining, path } in &self.members {
            let state = if *is_draining { "draining" } else { "used" };
            bytes.extend(format!("{number:032x} {state} ").into_bytes());
            for byte in path {
                match byte {
                    b'%' | 0x7f | ..0x20 => bytes.extend(format!("%{byte:02x}").into_bytes()),
                    byte => bytes.push(*byte),
                }
            }
            bytes.push(b'\n');
        }
        let sum = xxh3_64(&bytes);
        bytes.extend(format!("{sum:016x}\n").into_bytes());
        bytes
    }

    /// Decodes the content of the file with this version.
    pub fn decode(version: u64, bytes: &[u8]) -> Result<StoreMap, LogDamage> {
        let damage =
            |offset: usize, reason| LogDamage { object: "the placement map", offset: offset as u64, reason };
        if bytes.len() > MAP_BYTES_MAX {
            return Err(damage(MAP_BYTES_MAX, "it is too long"));
        }
        let end = bytes.len().checked_sub(MAP_SUM_BYTES).ok_or_else(|| damage(0, "it is too short"))?;
        let (body, sum) = bytes.split_at(end);
        if format!("{:016x}\n", xxh3_64(body)).as_bytes() != sum {
            return Err(damage(end, "the checksum does not match"));
        }
        let mut rest = body.strip_prefix(TITLE).ok_or_else(|| damage(0, "it is of another version"))?;
        let mut members: Vec<Member> = Vec::new();
        while !rest.is_empty() {
            let offset = body.len() - rest.len();
            let (member, next) = line(rest).ok_or_else(|| damage(offset, "a line has the wrong format"))?;
            if members.iter().any(|other| other.number == member.number) {
                return Err(damage(offset, "a store is named twice"));
            }
            members.push(member);
            rest = next;
        }
        if members.iter().all(|member| member.is_draining) {
            return Err(damage(end, "no store is used"));
        }
        Ok(StoreMap { version, members })
    }

    /// Returns the store with this number, if the map has it.
    pub fn member(&self, number: u128) -> Option<&Member> {
        self.members.iter().find(|member| member.number == number)
    }

    /// Returns the numbers of the stores in which new files are placed.
    pub fn used(&self) -> Vec<u128> {
        let used = self.members.iter().filter(|member| !member.is_draining);
        used.map(|member| member.number).collect()
    }

    /// Returns the number of the store in which the next version is created first
    /// (docs/formats/log.md, "The map").
    pub fn keeper(&self) -> u128 {
        self.used().into_iter().min().expect("no map is without a store that is used")
    }

    /// Returns the number of the home store of `key`.
    pub fn home(&self, key: &[u8]) -> u128 {
        let used = self.used();
        used[choose_store(key, &used)]
    }
}

/// Parses the first line of `bytes`, and returns it with the remaining bytes.
fn line(bytes: &[u8]) -> Option<(Member, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let mut words = bytes[..end].splitn(3, |byte| *byte == b' ');
    let (number, state, path) = (words.next()?, words.next()?, words.next()?);
    let is_number = number.len() == 32 && number.iter().all(u8::is_ascii_hexdigit);
    let number = std::str::from_utf8(number).ok().filter(|_| is_number)?;
    let is_draining = match state {
        b"used" => false,
        b"draining" => true,
        _ => return None,
    };
    let mut plain = Vec::new();
    let mut path = path.iter();
    while let Some(byte) = path.next() {
        plain.push(match byte {
            b'%' => {
                let digits = [*path.next()?, *path.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => *byte,
        });
    }
    let number = u128::from_str_radix(number, 16).ok()?;
    Some((Member { number, is_draining, path: plain }, &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> StoreMap {
        let member = |number, is_draining, path: &[u8]| Member { number, is_draining, path: path.to_vec() };
        StoreMap {
            version: 0x1f,
            members: vec![
                member(7 << 100, false, b"/scratch/a"),
                member(5, true, b"/with a space/100%\n\xff"),
                member(6, false, b""),
            ],
        }
    }

    #[test]
    fn a_map_round_trips_and_any_changed_byte_is_detected() {
        let bytes = map().encode();
        assert_eq!(StoreMap::decode(0x1f, &bytes), Ok(map()));
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert!(StoreMap::decode(0x1f, &wrong).is_err(), "byte {at}");
            assert!(StoreMap::decode(0x1f, &bytes[..at]).is_err());
        }
        assert_eq!(map().file_name(), b"map-1f");
        for (name, version) in
            [(&b"map-1f"[..], Some(0x1f)), (b"map-01", None), (b"map-0", None), (b"new", None)]
        {
            assert_eq!(StoreMap::version_of(name), version);
        }
    }

    #[test]
    fn impossible_maps_are_refused_even_with_a_valid_checksum() {
        let twice = StoreMap { version: 1, members: [map().members, map().members].concat() };
        let mut drained = map();
        drained.members.iter_mut().for_each(|member| member.is_draining = true);
        let none = StoreMap { version: 1, members: Vec::new() };
        for wrong in [twice, drained, none] {
            assert!(StoreMap::decode(1, &wrong.encode()).is_err());
        }
        for wrong in ["1 used /a\n", "00000000000000000000000000000001 gone /a\n", "x"] {
            let mut bytes = [TITLE, wrong.as_bytes()].concat();
            bytes.extend(format!("{:016x}\n", xxh3_64(&bytes)).into_bytes());
            assert!(StoreMap::decode(1, &bytes).is_err(), "{wrong}");
        }
    }

    /// Each row has the stores in use, and names with their home. The homes must never change,
    /// because they determine the stores of existing files.
    #[test]
    fn a_name_keeps_its_store_after_other_changes() {
        let table = "\
            1 2 3 | a=3 b=1 checkpoint.0=2 rank-17.bin=1
            3 1 2 | a=3 b=1 checkpoint.0=2 rank-17.bin=1
            1 2   | a=2 b=1 checkpoint.0=2 rank-17.bin=1
            1 3   | a=3 b=1 checkpoint.0=3 rank-17.bin=1";
        for row in table.lines() {
            let (stores, names) = row.split_once('|').unwrap();
            let member = |number: &str| Member {
                number: number.parse().unwrap(),
                is_draining: false,
                path: Vec::new(),
            };
            let map = StoreMap { version: 1, members: stores.split_whitespace().map(member).collect() };
            for (name, store) in names.split_whitespace().map(|pair| pair.split_once('=').unwrap()) {
                let home = map.home(name.as_bytes()).to_string();
                assert_eq!(store, home, "{row}: {name}");
            }
        }
    }
}
