//! The header of a qcow2 image: sizes, offsets of tables, and names of other files of the image.

use crate::damage::{Qcow2Error, unsupported, wrong};

const MAGIC: [u8; 4] = *b"QFI\xfb";
/// Maximum size of the first cluster, which contains the header, the extensions and the backing
/// file's name.
pub const HEADER_BYTES_MAX: usize = 2 << 20;
/// The limits of QEMU.
const NAME_BYTES_MAX: usize = 1023;
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
pub(crate) const L1_ENTRIES_MAX: u32 = 4 << 20;
const EXTENSIONS_MAX: usize = 64;

const VERSION_2_BYTES: usize = 72;
const VERSION_3_BYTES: usize = 104;

const EXTENSION_END: u32 = 0;
const EXTENSION_BACKING_FORMAT: u32 = 0xe279_2aca;
const EXTENSION_DATA_FILE: u32 = 0x4441_5441;

// Bits of the incompatible features.
const DIRTY: u64 = 1;
const CORRUPT: u64 = 2;
const DATA_FILE: u64 = 4;
const COMPRESSION_TYPE: u64 = 8;
const EXTENDED_L2: u64 = 16;

/// The backing file of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing {
    /// The name in the header.
    pub name: Vec<u8>,
    /// `raw`, `qcow2`, ...; absent in old images.
    pub format: Option<Vec<u8>>,
}

/// The compression of clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// The raw Deflate format.
    Deflate,
    /// The Zstandard format.
    Zstd,
}

/// The validated values of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The version of the format: 2 or 3.
    pub version: u32,
    /// Size of the disk that a machine sees.
    pub virtual_bytes: u64,
    /// The cluster size is 2 to this power.
    pub cluster_bits: u32,
    /// The backing file, which has the clusters that are not allocated in this image.
    pub backing: Option<Backing>,
    /// The name of the external data file, if there is one.
    pub data_file: Option<Vec<u8>>,
    /// Whether the data is encrypted.
    pub encrypted: bool,
    /// The compression of compressed clusters.
    pub compression: Compression,
    /// Whether the entries of L2 tables have 128 bits.
    pub extended_l2: bool,
    /// Whether QEMU has marked the image as corrupt.
    pub corrupt: bool,
    /// The number of entries in the L1 table.
    pub l1_entries: u32,
    /// The offset of the L1 table.
    pub l1_offset: u64,
}

/// Returns whether a file that begins with these bytes has the qcow2 magic number.
pub fn is_qcow2(begin: &[u8]) -> bool {
    begin.starts_with(&MAGIC)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Qcow2Error> {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    field.map(|field| u32::from_be_bytes(*field)).ok_or_else(ended)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, Qcow2Error> {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>());
    field.map(|field| u64::from_be_bytes(*field)).ok_or_else(ended)
}

fn ended() -> Qcow2Error {
    Qcow2Error::Wrong("the file ends in its header".into())
}

impl Header {
    /// Parses a header. `begin` has the file's first `HEADER_BYTES_MAX` bytes, or all bytes of a
    /// shorter file.
    pub fn parse(begin: &[u8]) -> Result<Header, Qcow2Error> {
        if !is_qcow2(begin) {
            return wrong("it does not begin with the qcow2 magic number");
        }
        let version = u32_at(begin, 4)?;
        let (header_bytes, features) = match version {
            2 => (VERSION_2_BYTES, 0),
            3 => (u32_at(begin, 100)? as usize, u64_at(begin, 72)?),
            other => return unsupported(format!("version {other}")),
        };
        if version == 3 && (header_bytes < VERSION_3_BYTES || !header_bytes.is_multiple_of(8)) {
            return wrong(format!("a header of {header_bytes} bytes"));
        }
        let known = DIRTY | CORRUPT | DATA_FILE | COMPRESSION_TYPE | EXTENDED_L2;
        if features & !known != 0 {
            return unsupported(format!(
                "features that this program does not know ({:#x})",
                features & !known
            ));
        }
        let cluster_bits = u32_at(begin, 20)?;
        if !CLUSTER_BITS.contains(&cluster_bits) {
            return wrong(format!("clusters of 2^{cluster_bits} bytes"));
        }
        let cluster = 1usize << cluster_bits;
        let first_cluster = &begin[..begin.len().min(cluster)];
        if header_bytes > first_cluster.len() {
            return Err(ended());
        }
        let extensions = extensions(first_cluster, header_bytes)?;
        let extension =
            |kind: u32| extensions.iter().find(|(k, _)| *k == kind).map(|(_, data)| data.to_vec());
        let compression = match features & COMPRESSION_TYPE != 0 && header_bytes > VERSION_3_BYTES {
            false => 0,
            true => begin[VERSION_3_BYTES],
        };
        let compression = match compression {
            0 => Compression::Deflate,
            1 => Compression::Zstd,
            other => return unsupported(format!("compression of type {other}")),
        };
        let (l1_entries, l1_offset) = (u32_at(begin, 36)?, u64_at(begin, 40)?);
        if l1_entries > L1_ENTRIES_MAX {
            return wrong(format!("an L1 table of {l1_entries} entries"));
        }
        if !l1_offset.is_multiple_of(cluster as u64) {
            return wrong("the L1 table does not begin where a cluster begins");
        }
        let virtual_bytes = u64_at(begin, 24)?;
        if virtual_bytes > i64::MAX as u64 {
            return wrong(format!("a disk of {virtual_bytes} bytes"));
        }
        Ok(Header {
            version,
            virtual_bytes,
            cluster_bits,
            backing: backing(first_cluster, extension(EXTENSION_BACKING_FORMAT))?,
            data_file: if features & DATA_FILE == 0 {
                None
            } else {
                match extension(EXTENSION_DATA_FILE) {
                    Some(name) if named_bytes(&name) => Some(name),
                    _ => return wrong("the external data file is not named"),
                }
            },
            encrypted: u32_at(begin, 32)? != 0,
            compression,
            extended_l2: features & EXTENDED_L2 != 0,
            corrupt: features & CORRUPT != 0,
            l1_entries,
            l1_offset,
        })
    }

    /// Returns the size of a cluster.
    pub fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }
}

fn named_bytes(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(&0)
}

fn backing(first_cluster: &[u8], format: Option<Vec<u8>>) -> Result<Option<Backing>, Qcow2Error> {
    let (offset, length) = (u64_at(first_cluster, 8)?, u32_at(first_cluster, 16)? as usize);
    if offset == 0 || length == 0 {
        return Ok(None);
    }
    if length > NAME_BYTES_MAX {
        return wrong(format!("a backing file's name of {length} bytes"));
    }
    let name = usize::try_from(offset).ok().and_then(|from| first_cluster.get(from..)?.get(..length));
    match name {
        Some(name) if named_bytes(name) => Ok(Some(Backing { name: name.to_vec(), format })),
        Some(_) => wrong("the backing file's name is not a valid name"),
        None => wrong("the backing file's name is not in the first cluster"),
    }
}

/// Returns type and data of each extension up to the end of the list.
fn extensions(first_cluster: &[u8], mut at: usize) -> Result<Vec<(u32, &[u8])>, Qcow2Error> {
    let mut found = Vec::new();
    // The name of the backing file also ends the list.
    let end = match u64_at(first_cluster, 8)? {
        0 => first_cluster.len(),
        name => usize::try_from(name).unwrap_or(usize::MAX).min(first_cluster.len()),
    };
    while at + 8 <= end {
        let (kind, length) = (u32_at(first_cluster, at)?, u32_at(first_cluster, at + 4)? as usize);
        if kind == EXTENSION_END {
            break;
        }
        if found.len() == EXTENSIONS_MAX {
            return wrong("too many extensions of the header");
        }
        let Some(data) = first_cluster.get(at + 8..).and_then(|rest| rest.get(..length)) else {
            return wrong("an extension of the header ends outside the first cluster");
        };
        found.push((kind, data));
        at += 8 + length.next_multiple_of(8);
    }
    Ok(found)
}

/// A name of a file in a header, as QEMU interprets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named<'a> {
    /// An absolute path.
    Absolute(&'a [u8]),
    /// Relative to the directory of the file that has the header.
    Relative(&'a [u8]),
    /// Not a local file: another protocol, or options as JSON.
    Elsewhere(&'a [u8]),
}

/// Interprets a name. `file:` is the protocol of local files; any other word and `:` before the
/// first `/` is another protocol.
pub fn named(name: &[u8]) -> Named<'_> {
    if let Some(rest) = name.strip_prefix(b"file:") {
        // QEMU uses the rest unchanged.
        return match rest.first() {
            Some(b'/') => Named::Absolute(rest),
            Some(_) => Named::Relative(rest),
            None => Named::Elsewhere(name),
        };
    }
    match name.iter().position(|b| matches!(b, b':' | b'/')) {
        Some(at) if name[at] == b':' => Named::Elsewhere(name),
        _ if name.first() == Some(&b'/') => Named::Absolute(name),
        _ => Named::Relative(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::{Block, write};

    fn image(backing: &[u8]) -> Vec<u8> {
        write(1 << 20, backing, "raw", &[Block { number: 3, content: Some(&[7; 4096]) }]).unwrap()
    }

    #[test]
    fn a_header_is_read_back() {
        let header = Header::parse(&image(b"/srv/base.raw")).unwrap();
        assert_eq!((header.virtual_bytes, header.cluster_bits, header.version), (1 << 20, 12, 3));
        let backing = header.backing.unwrap();
        assert_eq!(
            (&backing.name[..], backing.format.as_deref()),
            (&b"/srv/base.raw"[..], Some(&b"raw"[..]))
        );
    }

    #[test]
    fn hostile_headers_are_refused() {
        let good = image(b"base.raw");
        assert!(matches!(Header::parse(b"QFI"), Err(Qcow2Error::Wrong(_))));
        for cut in [4, 20, 71, 103, 104] {
            assert!(Header::parse(&good[..cut]).is_err(), "cut at {cut}");
        }
        let change = |at: usize, bytes: &[u8]| {
            let mut image = good.clone();
            image[at..at + bytes.len()].copy_from_slice(bytes);
            Header::parse(&image)
        };
        let refused = |at: usize, bytes: &[u8]| assert!(change(at, bytes).is_err(), "{bytes:?} at {at}");
        refused(4, &9u32.to_be_bytes()); // version
        refused(8, &u64::MAX.to_be_bytes()); // offset of the backing file's name
        refused(8, &4090u64.to_be_bytes()); // not completely in the first cluster
        refused(16, &5000u32.to_be_bytes()); // length of the backing file's name
        refused(20, &8u32.to_be_bytes()); // cluster bits
        refused(20, &40u32.to_be_bytes());
        refused(24, &u64::MAX.to_be_bytes()); // size
        refused(36, &u32::MAX.to_be_bytes()); // entries of the L1 table
        refused(40, &1u64.to_be_bytes()); // offset of the L1 table
        refused(72, &(1u64 << 40).to_be_bytes()); // an unknown feature
        refused(72, &4u64.to_be_bytes()); // an external data file without a name
        refused(100, &3u32.to_be_bytes()); // size of the header
        refused(100, &100_000u32.to_be_bytes());
        refused(108, &u32::MAX.to_be_bytes()); // an extension without an end
    }

    #[test]
    fn names_are_interpreted_as_by_qemu() {
        for (name, means) in [
            (&b"base.raw"[..], Named::Relative(b"base.raw")),
            (b"../a:b/base.raw", Named::Relative(b"../a:b/base.raw")),
            (b"/srv/a:b", Named::Absolute(b"/srv/a:b")),
            (b"file:a:b", Named::Relative(b"a:b")),
            (b"file:/a", Named::Absolute(b"/a")),
            (b"nbd:localhost:10809", Named::Elsewhere(b"nbd:localhost:10809")),
            (b"json:{\"driver\":\"raw\"}", Named::Elsewhere(b"json:{\"driver\":\"raw\"}")),
            (b"https://host/base", Named::Elsewhere(b"https://host/base")),
        ] {
            assert_eq!(named(name), means);
        }
    }
}
