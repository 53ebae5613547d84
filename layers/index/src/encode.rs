//! Encodes a tree as the bytes of an index file. Pure and deterministic: the same tree gives the
//! same bytes. The format is described in docs/formats/index.md.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use quell_posix::Stat;
use quell_vfs::{Error, ErrorKind, FileIdentity, Kind, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::format::{self, Field, Section};
use crate::image::{generation_of, header_checksum};
use crate::tree::{Listing, Special, Tree};

/// The location of one entry's record and specials in the tree.
#[derive(Clone, Copy)]
struct EntryPosition {
    listing: u32,
    child: u32,
}

/// The entries of a tree in the order of the index, and values that depend on all of them.
struct Order<'a> {
    tree: &'a Tree,
    /// The location of each entry except the root.
    locations: Vec<EntryPosition>,
    /// (first child, entry) for each directory.
    dirs: Vec<(u32, u32)>,
    /// The first entry of each hard-linked file.
    first_names: HashMap<FileIdentity, u32>,
    longest_path: u64,
}

impl<'a> Order<'a> {
    fn new(tree: &'a Tree) -> Result<Order<'a>> {
        let total: u64 = 1 + tree.listings.iter().map(|l| u64::from(l.len())).sum::<u64>();
        if total > format::ENTRIES_MAX {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "index more than 4 billion entries of",
                &tree.root_path,
            ));
        }
        let mut order = Order {
            tree,
            locations: Vec::with_capacity(total as usize - 1),
            dirs: Vec::with_capacity(tree.listings.len()),
            first_names: HashMap::new(),
            longest_path: 0,
        };
        // Breadth first: the directories found so far, each with its listing, entry and path
        // length.
        let mut found: Vec<(Option<u32>, u32, u64)> = vec![(listing_of(&tree.root_specials), 0, 0)];
        let mut next = 0;
        while let Some(&(listing, entry, path_bytes)) = found.get(next) {
            next += 1;
            order.dirs.push((order.locations.len() as u32 + 1, entry));
            let Some(number) = listing else { continue };
            let listing = &tree.listings[number as usize];
            let prefix = if path_bytes == 0 { 0 } else { path_bytes + 1 };
            for child in 0..listing.len() {
                let record = listing.record(child);
                order.locations.push(EntryPosition { listing: number, child });
                let entry = order.locations.len() as u32;
                let path_bytes = prefix + listing.name(child).len() as u64;
                order.longest_path = order.longest_path.max(path_bytes);
                if record.kind() == Some(Kind::Dir) {
                    let listing = listing.specials(child).find_map(|s| match s {
                        Special::Listing(number) => Some(*number),
                        _ => None,
                    });
                    found.push((listing, entry, path_bytes));
                } else if record.nlink > 1 {
                    order.first_names.entry(record.identity()).or_insert(entry);
                }
            }
        }
        Ok(order)
    }

    fn entries(&self) -> u32 {
        self.locations.len() as u32 + 1
    }

    fn listing(&self, location: EntryPosition) -> &'a Listing {
        &self.tree.listings[location.listing as usize]
    }

    fn name(&self, entry: u32) -> &'a [u8] {
        match entry {
            0 => b"",
            _ => {
                let location = self.locations[entry as usize - 1];
                self.listing(location).name(location.child)
            }
        }
    }

    /// Returns the entry that identifies the node: the lowest of its names.
    fn node_of(&self, entry: u32) -> u32 {
        let record = self.own_record(entry);
        match record.nlink > 1 && record.kind() != Some(Kind::Dir) {
            true => self.first_names[&record.identity()],
            false => entry,
        }
    }

    fn own_record(&self, entry: u32) -> &'a Stat {
        match entry {
            0 => &self.tree.root,
            _ => {
                let location = self.locations[entry as usize - 1];
                self.listing(location).record(location.child)
            }
        }
    }

    /// Returns the node's record. It is the same for all names of one file, even if the file
    /// changed between two stats.
    fn record(&self, entry: u32) -> &'a Stat {
        self.own_record(self.node_of(entry))
    }

    fn specials(&self, entry: u32) -> Box<dyn Iterator<Item = &'a Special> + 'a> {
        match entry {
            0 => Box::new(self.tree.root_specials.iter()),
            _ => {
                let location = self.locations[entry as usize - 1];
                Box::new(self.listing(location).specials(location.child))
            }
        }
    }
}

fn listing_of(specials: &[Special]) -> Option<u32> {
    specials.iter().find_map(|s| match s {
        Special::Listing(number) => Some(*number),
        _ => None,
    })
}

/// Returns the bytes of an index of `tree`.
pub fn encode(tree: &Tree) -> Result<Vec<u8>> {
    let order = Order::new(tree)?;
    let entries = order.entries();
    let granule = best_granule(&order);
    let (names, name_offsets) = string_table((0..entries).map(|e| order.name(e)).collect(), |name, out| {
        out.push(name.len() as u8);
        out.extend_from_slice(name);
    });
    let blobs: BTreeMap<u32, Vec<(Field, Vec<u8>)>> = blobs_of(&order);
    let (blob, blob_offsets) =
        string_table(blobs.values().flatten().map(|(_, bytes)| bytes.as_slice()).collect(), |bytes, out| {
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        });

    let mut flags = if tree.xattrs_skipped { format::FLAG_XATTRS_SKIPPED } else { 0 };
    let mut extras = Vec::new();
    let mut nodes = 0u64;
    let mut dirs_seen = 0usize;
    let mut classes_of = Vec::with_capacity(entries as usize);
    for entry in 0..entries {
        let node = order.node_of(entry);
        let record = order.record(entry);
        let kind = record.kind().expect("the builder keeps only kinds it knows");
        let before = extras.len();
        let mut expected_nlink = 1;
        if kind == Kind::Dir {
            expected_nlink = 2 + child_directories(&order, dirs_seen);
            dirs_seen += 1;
        }
        let mut add = |field: Field, value: u64| extras.push((entry, field as u32, value));
        if record.nlink != expected_nlink {
            add(Field::Nlink, record.nlink.into());
        }
        if node == entry {
            nodes += 1
        } else {
            add(Field::Node, node.into())
        }
        for (field, bytes) in blobs.get(&node).into_iter().flatten() {
            add(*field, blob_offsets[bytes.as_slice()]);
        }
        if matches!(kind, Kind::CharDevice | Kind::BlockDevice) {
            flags |= format::FLAG_DEVICES;
            add(Field::Rdev, record.rdev);
        }
        if record.blocks != format::expected_blocks(kind, record.size_bytes, granule) {
            add(Field::Blocks, record.blocks);
        }
        for special in order.specials(entry) {
            match special {
                Special::Listing(number) => {
                    if let Some(errno) = tree.listings[*number as usize].unknown {
                        add(Field::Unknown, errno.into());
                    }
                }
                Special::Boundary => add(Field::Boundary, 1),
                Special::Xattrs(set) => flags |= xattr_flags(set),
                Special::Target(_) => {}
            }
        }
        for (time, seconds, nanoseconds) in [
            (record.modified, Field::ModifiedSeconds, Field::ModifiedNanoseconds),
            (record.changed, Field::ChangedSeconds, Field::ChangedNanoseconds),
        ] {
            if !format::time_to_column(time).1 {
                add(seconds, time.seconds as u64);
                add(nanoseconds, time.nanoseconds.into());
            }
        }
        let has_extras = extras.len() > before;
        classes_of.push((record.mode, record.uid, record.gid, u32::from(has_extras)));
    }
    extras.sort_unstable();
    let classes: BTreeSet<_> = classes_of.iter().copied().collect();
    let class_numbers: HashMap<_, _> = classes.iter().zip(0i64..).map(|(class, i)| (*class, i)).collect();

    let column = |value: &dyn Fn(u32) -> i64| Body::column((0..entries).map(value).collect());
    let bodies: Vec<(Section, Body)> = vec![
        (Section::Root, Body::plain(tree.root_path.clone())),
        (Section::Dirs, Body::plain(dir_rows(&order))),
        (Section::Names, Body::plain(names)),
        (Section::Name, column(&|e| name_offsets[order.name(e)] as i64)),
        (Section::Class, column(&|e| class_numbers[&classes_of[e as usize]])),
        (Section::Size, column(&|e| order.record(e).size_bytes as i64)),
        (Section::Modified, column(&|e| format::time_to_column(order.record(e).modified).0)),
        (Section::Changed, column(&|e| format::time_to_column(order.record(e).changed).0)),
        (
            Section::Classes,
            Body::plain(
                classes.iter().flat_map(|c| [c.0, c.1, c.2, c.3]).flat_map(u32::to_le_bytes).collect(),
            ),
        ),
        (
            Section::Extras,
            Body::plain(
                extras
                    .iter()
                    .flat_map(|(entry, field, value)| {
                        let key = u64::from(*entry) | u64::from(*field) << 32;
                        [key, *value]
                    })
                    .flat_map(u64::to_le_bytes)
                    .collect(),
            ),
        ),
        (Section::Blob, Body::plain(blob)),
        (Section::Problems, Body::plain(problem_rows(tree))),
        (
            Section::Options,
            Body::plain(tree.options.iter().flat_map(|o| [o.as_bytes(), b"\n"].concat()).collect()),
        ),
        (Section::Inode, column(&|e| order.record(e).inode as i64)),
    ];

    let mut header = vec![0; format::HEADER_BYTES];
    header[..8].copy_from_slice(&format::MAGIC);
    header[8..12].copy_from_slice(&format::VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&(format::PREAMBLE_BYTES as u32).to_le_bytes());
    for (at, value) in [
        (48, u64::from(entries)),
        (56, order.dirs.len() as u64),
        (64, flags),
        (72, order.longest_path),
        (80, granule),
        (88, tree.problems.len() as u64),
        (96, nodes),
    ] {
        header[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    assemble(header, bodies, &tree.root_path)
}

/// The bytes of one section, and the width and base of its row in the section table.
struct Body {
    width: u32,
    base: i64,
    bytes: Vec<u8>,
}

impl Body {
    fn plain(bytes: Vec<u8>) -> Body {
        Body { width: 0, base: 0, bytes }
    }

    /// Encodes values as the narrowest column that can represent them.
    fn column(values: Vec<i64>) -> Body {
        let base = values.iter().copied().min().unwrap_or(0);
        let widest = values.iter().map(|v| v.wrapping_sub(base) as u64).max().unwrap_or(0);
        let width = (64 - widest.leading_zeros()).div_ceil(8);
        let mut bytes = Vec::with_capacity(values.len() * width as usize);
        for value in values {
            bytes.extend_from_slice(&(value.wrapping_sub(base) as u64).to_le_bytes()[..width as usize]);
        }
        Body { width, base, bytes }
    }
}

fn assemble(mut bytes: Vec<u8>, bodies: Vec<(Section, Body)>, subject: &[u8]) -> Result<Vec<u8>> {
    let mut offset = format::PREAMBLE_BYTES as u64;
    for (section, body) in &bodies {
        bytes.extend_from_slice(&(*section as u32).to_le_bytes());
        bytes.extend_from_slice(&body.width.to_le_bytes());
        bytes.extend_from_slice(&body.base.to_le_bytes());
        bytes.extend_from_slice(&offset.to_le_bytes());
        bytes.extend_from_slice(&(body.bytes.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&xxh3_64(&body.bytes).to_le_bytes());
        offset = (offset + body.bytes.len() as u64).next_multiple_of(8);
    }
    if offset > format::FILE_BYTES_MAX {
        return Err(Error::new(ErrorKind::Unsupported, "write an index of more than 64 GiB for", subject));
    }
    bytes.reserve_exact(offset as usize - bytes.len());
    for (_, body) in bodies {
        bytes.extend_from_slice(&body.bytes);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    let length = bytes.len() as u64;
    bytes[40..48].copy_from_slice(&length.to_le_bytes());
    seal(&mut bytes);
    Ok(bytes)
}

/// Returns the length of header and section table, or `None` if `bytes` is shorter.
fn preamble_of(bytes: &[u8]) -> Option<usize> {
    let version = u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?);
    let length = format::preamble_bytes(version).unwrap_or(format::PREAMBLE_BYTES);
    (bytes.len() >= length).then_some(length)
}

/// Corrects every checksum, the generation and the length for modified bytes, so that tests and
/// fuzzers get past them to the other checks. Bytes that are too short for a header are not
/// changed.
#[doc(hidden)]
pub fn reseal(bytes: &mut [u8]) {
    let Some(preamble) = preamble_of(bytes) else { return };
    let length = bytes.len() as u64;
    bytes[40..48].copy_from_slice(&length.to_le_bytes());
    for row in (format::HEADER_BYTES..preamble).step_by(format::SECTION_ROW_BYTES) {
        let number =
            |at: usize| u64::from_le_bytes(bytes[row + at..row + at + 8].try_into().expect("eight bytes"));
        let end = number(16).checked_add(number(24)).filter(|end| *end <= length);
        let Some(end) = end else { continue };
        let checksum = xxh3_64(&bytes[number(16) as usize..end as usize]);
        bytes[row + 32..row + 40].copy_from_slice(&checksum.to_le_bytes());
    }
    seal(bytes);
}

/// Writes the generation and the header's checksum, which depend on all other bytes.
fn seal(bytes: &mut [u8]) {
    let generation = generation_of(bytes);
    bytes[16..32].copy_from_slice(&generation.0.to_le_bytes());
    let checksum = header_checksum(bytes);
    bytes[format::HEADER_CHECKSUM_AT..format::HEADER_CHECKSUM_AT + 8]
        .copy_from_slice(&checksum.to_le_bytes());
}

/// Returns the different strings, sorted and encoded, and the offset of each.
fn string_table(strings: Vec<&[u8]>, write: impl Fn(&[u8], &mut Vec<u8>)) -> (Vec<u8>, HashMap<&[u8], u64>) {
    let mut sorted = strings;
    sorted.sort_unstable();
    sorted.dedup();
    let mut bytes = Vec::new();
    let mut offsets = HashMap::with_capacity(sorted.len());
    for string in sorted {
        offsets.insert(string, bytes.len() as u64);
        write(string, &mut bytes);
    }
    (bytes, offsets)
}

/// Returns the link target and attributes of each node that has any, in the encoding of BLOB.
fn blobs_of(order: &Order<'_>) -> BTreeMap<u32, Vec<(Field, Vec<u8>)>> {
    let mut blobs = BTreeMap::new();
    for entry in 0..order.entries() {
        if order.node_of(entry) != entry {
            continue;
        }
        let mut of_entry = Vec::new();
        for special in order.specials(entry) {
            match special {
                Special::Target(target) => of_entry.push((Field::Target, target.clone())),
                Special::Xattrs(set) => of_entry.push((Field::Xattrs, xattr_bytes(set))),
                Special::Listing(_) | Special::Boundary => {}
            }
        }
        if !of_entry.is_empty() {
            blobs.insert(entry, of_entry);
        }
    }
    blobs
}

fn xattr_bytes(set: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in set {
        bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value);
    }
    bytes
}

fn xattr_flags(set: &[(Vec<u8>, Vec<u8>)]) -> u64 {
    set.iter().fold(format::FLAG_XATTRS, |flags, (name, _)| {
        flags
            | if name.starts_with(b"system.posix_acl_") {
                format::FLAG_ACLS
            } else if name.starts_with(b"user.") {
                0
            } else {
                format::FLAG_PRIVILEGED_XATTRS
            }
    })
}

/// Returns the block granule that gives the correct block count for most sizes; each other size
/// needs a row of EXTRAS.
fn best_granule(order: &Order<'_>) -> u64 {
    let mut candidates = vec![0];
    candidates.extend((9..=20).map(|shift| 1u64 << shift));
    let exceptions = |granule: u64| {
        let wrong = |entry: &u32| {
            let record = order.own_record(*entry);
            let kind = record.kind().expect("the builder keeps only kinds it knows");
            record.blocks != format::expected_blocks(kind, record.size_bytes, granule)
        };
        // For many entries, every seventh is a sufficient sample; a prime step avoids regular
        // patterns.
        (0..order.entries()).step_by(if order.entries() < 10_000 { 1 } else { 7 }).filter(wrong).count()
    };
    candidates.into_iter().min_by_key(|granule| (exceptions(*granule), *granule)).expect("never empty")
}

/// Returns the number of child directories of directory number `d`.
fn child_directories(order: &Order<'_>, d: usize) -> u32 {
    let first = order.dirs[d].0;
    let end = order.dirs.get(d + 1).map_or(order.entries(), |next| next.0);
    let from = order.dirs.partition_point(|(_, entry)| *entry < first);
    let to = order.dirs.partition_point(|(_, entry)| *entry < end);
    (to - from) as u32
}

fn dir_rows(order: &Order<'_>) -> Vec<u8> {
    let last = (order.entries(), u32::MAX);
    order
        .dirs
        .iter()
        .chain([&last])
        .flat_map(|(first, entry)| [*first, *entry])
        .flat_map(u32::to_le_bytes)
        .collect()
}

fn problem_rows(tree: &Tree) -> Vec<u8> {
    let mut bytes = Vec::new();
    for problem in &tree.problems {
        bytes.extend_from_slice(&problem.errno.to_le_bytes());
        bytes.extend_from_slice(&(problem.path.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&problem.path);
    }
    bytes
}
