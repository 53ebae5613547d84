//! The bytes of an index file, validated once and then used in place. Pure: no I/O, no clock, no
//! lock. The format is described in docs/formats/index.md. No value in the bytes is trusted.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use quell_vfs::{Attributes, Kind, NodeId, Time, check_name};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::format::{self, Field, Section};

/// The reason why bytes are not a valid index, and the position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexDamage {
    /// A section's title, `header` or `file`.
    pub section: &'static str,
    /// Offset of the byte within the section.
    pub at: u64,
    /// A description of the damage.
    pub what: String,
}

impl fmt::Display for IndexDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: {}", self.section, self.at, self.what)
    }
}

impl std::error::Error for IndexDamage {}

fn damage<T>(section: &'static str, at: usize, what: impl Into<String>) -> Result<T, IndexDamage> {
    Err(IndexDamage { section, at: at as u64, what: what.into() })
}

/// Identifies one state of one tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Generation(pub u128);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The number of an entry: one name in the tree.
pub type EntryId = u32;

/// The root of the tree.
pub const ROOT: EntryId = 0;

/// A path that could not be read when the index was built.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The path relative to the root.
    pub path: Vec<u8>,
    /// The error number.
    pub errno: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Column {
    width: usize,
    base: i64,
    start: usize,
}

/// A complete index.
pub struct Image {
    bytes: Cow<'static, [u8]>,
    sections: [Range<usize>; Section::ALL.len()],
    columns: [Column; Section::ALL.len()],
    entries: u32,
    directories: u32,
    flags: u64,
    block_granule: u64,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("generation", &self.generation())
            .field("entries", &self.entries)
            .finish()
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Returns the value of the generation field: a hash of all bytes after the header checksum.
pub(crate) fn generation_of(bytes: &[u8]) -> Generation {
    Generation(xxhash_rust::xxh3::xxh3_128(&bytes[format::HEADER_CHECKED_FROM..]))
}

/// Returns the checksum of the preamble without the checksum field.
pub(crate) fn header_checksum(bytes: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&bytes[..format::HEADER_CHECKSUM_AT]);
    let end = format::preamble_bytes(u32_at(bytes, 8)).unwrap_or(format::PREAMBLE_BYTES);
    hash.update(&bytes[format::HEADER_CHECKED_FROM..end]);
    hash.digest()
}

impl Image {
    /// Validates the bytes of an index file, and takes ownership of them.
    pub fn parse(bytes: Vec<u8>) -> Result<Image, IndexDamage> {
        let mut image = Image::parse_preamble(bytes.into())?;
        image.check_sections()?;
        image.check_names()?;
        image.check_classes()?;
        image.check_dirs()?;
        image.check_extras()?;
        image.check_problems()?;
        Ok(image)
    }

    /// Returns an index from bytes that `parse` has validated before, in this process or another
    /// one, and that cannot have changed since. Only the header and the section table are checked
    /// again: an index of bytes that were not validated can panic.
    pub fn of_validated(bytes: &'static [u8]) -> Result<Image, IndexDamage> {
        let mut image = Image::parse_preamble(bytes.into())?;
        image.find_sections();
        Ok(image)
    }

    /// Returns whether a file that begins with these bytes has the magic number of an index.
    pub fn is_index(begin: &[u8]) -> bool {
        begin.starts_with(&format::MAGIC)
    }

    /// Checks the header and section table at the beginning of a file of `length` bytes, before
    /// memory is allocated for the rest: the file has the size in the header, and the sections fill
    /// it without gaps.
    pub fn check_preamble(preamble: &[u8], length: u64) -> Result<(), IndexDamage> {
        if length == 0 {
            return damage("file", 0, "the file is empty");
        }
        if !Image::is_index(preamble) {
            return damage("header", 0, "not an index file (it does not begin with QUELLIDX)");
        }
        if preamble.len() < 16 {
            return damage("header", preamble.len(), "the file ends within the header");
        }
        let version = u32_at(preamble, 8);
        let Some(preamble_bytes) = format::preamble_bytes(version) else {
            let known = format::VERSION;
            return damage(
                "header",
                8,
                format!("format version {version}, but this program reads versions 1 to {known}"),
            );
        };
        if preamble.len() < preamble_bytes || u32_at(preamble, 12) as usize != preamble_bytes {
            return damage("header", 12, format!("the header is not {preamble_bytes} bytes long"));
        }
        if u64_at(preamble, format::HEADER_CHECKSUM_AT) != header_checksum(preamble) {
            return damage("header", format::HEADER_CHECKSUM_AT, "checksum does not match");
        }
        let file_bytes = u64_at(preamble, 40);
        if file_bytes != length {
            return damage(
                "file",
                length as usize,
                format!("the header gives a size of {file_bytes} bytes, the file has {length}"),
            );
        }
        let entries = u64_at(preamble, 48);
        let directories = u64_at(preamble, 56);
        if entries == 0 || entries > format::ENTRIES_MAX || directories == 0 || directories > entries {
            return damage("header", 48, format!("{entries} entries with {directories} directories"));
        }
        let flags = u64_at(preamble, 64);
        if flags & !format::FLAGS_KNOWN != 0 {
            return damage("header", 64, format!("unknown flags {flags:#x}"));
        }
        let block_granule = u64_at(preamble, 80);
        let legal = block_granule == 0
            || (block_granule.is_power_of_two()
                && (512..=format::BLOCK_GRANULE_MAX).contains(&block_granule));
        if !legal {
            return damage("header", 80, format!("block granule of {block_granule} bytes"));
        }
        let mut end_before = u64::from(u32_at(preamble, 12));
        for (i, section) in format::sections(version).iter().copied().enumerate() {
            let row = format::HEADER_BYTES + i * format::SECTION_ROW_BYTES;
            let title = section.title();
            let width = u32_at(preamble, row + 4);
            let (start, bytes) = (u64_at(preamble, row + 16), u64_at(preamble, row + 24));
            if u32_at(preamble, row) != section as u32 || width > 8 {
                return damage("header", row, format!("the row for {title} is missing"));
            }
            let end = start.checked_add(bytes).filter(|end| *end <= length);
            let (Some(end), true) = (end, start == end_before.next_multiple_of(8)) else {
                return damage("header", row + 16, format!("the offset of {title} is wrong"));
            };
            if section.is_column() && bytes != entries * u64::from(width) {
                return damage(title, 0, "not one value for each entry");
            }
            end_before = end;
        }
        if end_before.next_multiple_of(8) != length {
            return damage("file", end_before as usize, "more bytes follow the last section");
        }
        Ok(())
    }

    fn parse_preamble(bytes: Cow<'static, [u8]>) -> Result<Image, IndexDamage> {
        Image::check_preamble(&bytes, bytes.len() as u64)?;
        Ok(Image {
            sections: Default::default(),
            columns: Default::default(),
            entries: u64_at(&bytes, 48) as u32,
            directories: u64_at(&bytes, 56) as u32,
            flags: u64_at(&bytes, 64),
            block_granule: u64_at(&bytes, 80),
            bytes,
        })
    }

    /// Takes the positions of the sections from the section table, which was checked before.
    fn find_sections(&mut self) {
        for (i, section) in format::sections(self.format_version()).iter().copied().enumerate() {
            let row = format::HEADER_BYTES + i * format::SECTION_ROW_BYTES;
            let (start, length) = (u64_at(&self.bytes, row + 16), u64_at(&self.bytes, row + 24));
            let range = start as usize..(start + length) as usize;
            if section.is_column() {
                let width = u32_at(&self.bytes, row + 4) as usize;
                let base = u64_at(&self.bytes, row + 8) as i64;
                self.columns[i] = Column { width, base, start: range.start };
            }
            self.sections[i] = range;
        }
    }

    /// Checks the checksums of the sections.
    fn check_sections(&mut self) -> Result<(), IndexDamage> {
        self.find_sections();
        for (i, section) in format::sections(self.format_version()).iter().copied().enumerate() {
            let row = format::HEADER_BYTES + i * format::SECTION_ROW_BYTES;
            if xxh3_64(&self.bytes[self.sections[i].clone()]) != u64_at(&self.bytes, row + 32) {
                return damage(section.title(), 0, "checksum does not match");
            }
        }
        Ok(())
    }

    fn check_names(&self) -> Result<(), IndexDamage> {
        // The offsets at which names begin, as one bit per byte: this takes 1/8 of the size of
        // NAMES during the check.
        let names = self.section(Section::Names);
        let mut begins = vec![0u64; names.len() / 64 + 1];
        let mut at = 0;
        let mut before: Option<&[u8]> = None;
        while at < names.len() {
            let end = at + 1 + names[at] as usize;
            let Some(name) = names.get(at + 1..end) else {
                return damage("NAMES", at, "the last name is cut short");
            };
            if at > 0 && check_name(name).is_err() {
                return damage("NAMES", at, "not a legal name");
            }
            if at == 0 && !name.is_empty() {
                return damage("NAMES", at, "the root's empty name is missing");
            }
            if before.is_some_and(|before| before >= name) {
                return damage("NAMES", at, "names are not sorted");
            }
            before = Some(name);
            begins[at / 64] |= 1 << (at % 64);
            at = end;
        }
        for entry in 0..self.entries {
            let value = self.column(Section::Name, entry);
            let good = usize::try_from(value)
                .is_ok_and(|v| v < names.len() && begins[v / 64] & (1 << (v % 64)) != 0);
            if !good || (value == 0) != (entry == ROOT) {
                return damage("NAME", entry as usize, format!("entry {entry} has no name"));
            }
        }
        Ok(())
    }

    fn check_classes(&self) -> Result<(), IndexDamage> {
        let classes = self.section(Section::Classes);
        if !classes.len().is_multiple_of(format::CLASS_ROW_BYTES) {
            return damage("CLASSES", classes.len(), "the last row is cut short");
        }
        for (i, row) in classes.chunks_exact(format::CLASS_ROW_BYTES).enumerate() {
            let mode = u32_at(row, 0);
            if Kind::from_mode(mode).is_none() || mode > 0o177_777 || u32_at(row, 12) > 1 {
                return damage("CLASSES", i * format::CLASS_ROW_BYTES, format!("mode {mode:#o}"));
            }
        }
        let rows = (classes.len() / format::CLASS_ROW_BYTES) as i64;
        for entry in 0..self.entries {
            if !(0..rows).contains(&self.column(Section::Class, entry)) {
                return damage("CLASS", entry as usize, format!("entry {entry} has no class"));
            }
        }
        Ok(())
    }

    fn check_dirs(&self) -> Result<(), IndexDamage> {
        let rows = self.section(Section::Dirs);
        if rows.len() as u64 != (u64::from(self.directories) + 1) * format::DIR_ROW_BYTES as u64 {
            return damage("DIRS", rows.len(), "not one row for each directory");
        }
        let mut next_child = 1;
        for d in 0..self.directories {
            let (first, entry) = self.dir_row(d);
            let at = d as usize * format::DIR_ROW_BYTES;
            let (end, next_entry) = self.dir_row(d + 1);
            if first != next_child
                || end < first
                || end > self.entries
                || first <= entry
                || next_entry <= entry
            {
                return damage("DIRS", at, format!("directory {d} has children {first} to {end}"));
            }
            if self.kind(entry) != Kind::Dir {
                return damage("DIRS", at, format!("entry {entry} is no directory"));
            }
            for child in (first + 1)..end {
                if self.name(child - 1) >= self.name(child) {
                    return damage("NAME", child as usize, format!("directory {d} is not sorted"));
                }
            }
            next_child = end;
        }
        if self.dir_row(0).1 != ROOT || self.dir_row(self.directories) != (self.entries, u32::MAX) {
            return damage("DIRS", 0, "the first or the last row is wrong");
        }
        let found = (0..self.entries).filter(|e| self.kind(*e) == Kind::Dir).count();
        if found != self.directories as usize {
            return damage("DIRS", 0, format!("{found} entries are directories, not {}", self.directories));
        }
        Ok(())
    }

    fn check_extras(&self) -> Result<(), IndexDamage> {
        let rows = self.section(Section::Extras);
        if !rows.len().is_multiple_of(format::EXTRA_ROW_BYTES) {
            return damage("EXTRAS", rows.len(), "the last row is cut short");
        }
        let mut before = None;
        let mut with_extras = 0u64;
        for (i, row) in rows.chunks_exact(format::EXTRA_ROW_BYTES).enumerate() {
            let at = i * format::EXTRA_ROW_BYTES;
            let (entry, number, value) = (u32_at(row, 0), u32_at(row, 4), u64_at(row, 8));
            let Some(field) = Field::from_number(number) else {
                return damage("EXTRAS", at, format!("unknown field {number}"));
            };
            if entry >= self.entries
                || !self.has_extras(entry)
                || before.is_some_and(|b| b >= (entry, number))
            {
                return damage("EXTRAS", at, format!("a row for entry {entry} is not in order"));
            }
            if before.is_none_or(|(e, _)| e != entry) {
                with_extras += 1;
            }
            before = Some((entry, number));
            if let Err(what) = self.check_extra(entry, field, value) {
                return damage("EXTRAS", at, what);
            }
        }
        let marked = (0..self.entries).filter(|e| self.has_extras(*e)).count() as u64;
        if marked != with_extras {
            return damage("EXTRAS", 0, format!("{marked} entries are marked, {with_extras} have rows"));
        }
        for entry in 0..self.entries {
            if self.kind(entry) == Kind::Symlink && self.extra(self.node_of(entry), Field::Target).is_none() {
                return damage("EXTRAS", 0, format!("the link {entry} has no target"));
            }
        }
        Ok(())
    }

    fn check_extra(&self, entry: EntryId, field: Field, value: u64) -> Result<(), String> {
        let kind = self.kind(entry);
        let good = match field {
            Field::Target => {
                let length = self.blob(value).map_or(0, <[u8]>::len);
                kind == Kind::Symlink
                    && (1..=format::TARGET_BYTES_MAX).contains(&length)
                    && self.blob(value).is_some_and(|t| !t.contains(&0))
            }
            Field::Xattrs => self.blob(value).is_some_and(|set| XattrSet { rest: set }.check()),
            Field::Node => {
                // The lowest entry has no NODE field itself.
                value < u64::from(entry)
                    && kind != Kind::Dir
                    && self.kind(value as EntryId) == kind
                    && self.extra(value as EntryId, Field::Node).is_none()
            }
            Field::Nlink => value <= u64::from(u32::MAX),
            Field::Rdev => matches!(kind, Kind::CharDevice | Kind::BlockDevice),
            Field::Unknown | Field::Boundary => {
                kind == Kind::Dir && self.children(entry).is_some_and(|c| c.is_empty())
            }
            Field::ModifiedNanoseconds | Field::ChangedNanoseconds => value < 1_000_000_000,
            Field::Blocks | Field::ModifiedSeconds | Field::ChangedSeconds => true,
        };
        if good { Ok(()) } else { Err(format!("entry {entry}: {field:?} cannot be {value}")) }
    }

    fn check_problems(&self) -> Result<(), IndexDamage> {
        let mut rest = self.section(Section::Problems);
        let whole = rest.len();
        let mut found = 0;
        while !rest.is_empty() {
            let at = whole - rest.len();
            match split_problem(rest) {
                Some((_, after)) => rest = after,
                None => return damage("PROBLEMS", at, "the last row is cut short"),
            }
            found += 1;
        }
        if found != self.problem_count() {
            return damage(
                "PROBLEMS",
                0,
                format!("{found} rows, but the header says {}", self.problem_count()),
            );
        }
        Ok(())
    }

    fn section(&self, section: Section) -> &[u8] {
        &self.bytes[self.sections[section as usize - 1].clone()]
    }

    fn column(&self, section: Section, entry: EntryId) -> i64 {
        let Column { width, base, start } = self.columns[section as usize - 1];
        if width == 0 {
            return base;
        }
        let at = start + entry as usize * width;
        // Reads eight bytes at once if the file has them, and masks the width.
        let value = match self.bytes.get(at..at + 8) {
            Some(eight) => {
                u64::from_le_bytes(eight.try_into().expect("eight bytes")) & (u64::MAX >> (64 - 8 * width))
            }
            None => {
                let mut last = [0; 8];
                last[..width].copy_from_slice(&self.bytes[at..at + width]);
                u64::from_le_bytes(last)
            }
        };
        base.wrapping_add(value as i64)
    }

    fn class(&self, entry: EntryId) -> &[u8] {
        let row = self.column(Section::Class, entry) as usize * format::CLASS_ROW_BYTES;
        &self.section(Section::Classes)[row..row + format::CLASS_ROW_BYTES]
    }

    fn has_extras(&self, entry: EntryId) -> bool {
        u32_at(self.class(entry), 12) != 0
    }

    fn dir_row(&self, directory: u32) -> (u32, EntryId) {
        let rows = self.section(Section::Dirs);
        let at = directory as usize * format::DIR_ROW_BYTES;
        (u32_at(rows, at), u32_at(rows, at + 4))
    }

    /// Returns the first number in `0..count` for which `before` is false. `before` must be true
    /// for all smaller numbers and false for all larger ones.
    fn first_not(count: u32, mut before: impl FnMut(u32) -> bool) -> u32 {
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            if before(middle) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Returns a field of EXTRAS, which most entries do not have.
    pub fn extra(&self, entry: EntryId, field: Field) -> Option<u64> {
        if !self.has_extras(entry) {
            return None;
        }
        let rows = self.section(Section::Extras);
        let key = |i: u32| {
            let at = i as usize * format::EXTRA_ROW_BYTES;
            (u32_at(rows, at), u32_at(rows, at + 4))
        };
        let count = (rows.len() / format::EXTRA_ROW_BYTES) as u32;
        let i = Image::first_not(count, |i| key(i) < (entry, field as u32));
        (i < count && key(i) == (entry, field as u32))
            .then(|| u64_at(rows, i as usize * format::EXTRA_ROW_BYTES + 8))
    }

    fn blob(&self, offset: u64) -> Option<&[u8]> {
        let blob = self.section(Section::Blob);
        let at = usize::try_from(offset).ok()?;
        let length = u32::from_le_bytes(blob.get(at..at.checked_add(4)?)?.try_into().ok()?) as usize;
        blob.get(at + 4..(at + 4).checked_add(length)?)
    }

    /// Returns the version of the format.
    pub fn format_version(&self) -> u32 {
        u32_at(&self.bytes, 8)
    }

    /// Returns the file system's inode number of the entry; `None` in files of version 1, which do
    /// not have it.
    pub fn inode(&self, entry: EntryId) -> Option<u64> {
        (self.format_version() > 1).then(|| self.column(Section::Inode, entry) as u64)
    }

    /// Returns whether the inode numbers are persistent. Inode number 1 is the root of a separate
    /// file system, and also of file systems that assign inode numbers on demand (such as sshfs).
    pub fn has_persistent_inodes(&self) -> bool {
        self.inode(ROOT).is_some_and(|number| number > 1)
    }

    /// Returns the generation of the tree.
    pub fn generation(&self) -> Generation {
        Generation(u128::from_le_bytes(self.bytes[16..32].try_into().expect("sixteen bytes")))
    }

    /// Returns the number of all entries, including the root.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Returns the number of directories.
    pub fn directories(&self) -> u32 {
        self.directories
    }

    /// Returns the number of entries minus the additional names of hard-linked files.
    pub fn nodes(&self) -> u64 {
        u64_at(&self.bytes, 96)
    }

    /// Returns the size of the index file.
    pub fn file_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the size of each section, for `quell show`.
    pub fn section_bytes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        format::sections(self.format_version()).iter().map(|s| (s.title(), self.section(*s).len() as u64))
    }

    /// Returns whether a flag of docs/formats/index.md is set.
    pub fn has_flag(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// Returns the length of the longest path below the root, in bytes.
    pub fn longest_path_bytes(&self) -> u64 {
        u64_at(&self.bytes, 72)
    }

    /// Returns the absolute path of the tree as it was indexed.
    pub fn root_path(&self) -> &[u8] {
        self.section(Section::Root)
    }

    /// Returns the lines of the OPTIONS section.
    pub fn option_lines(&self) -> impl Iterator<Item = &[u8]> {
        self.section(Section::Options).split(|b| *b == b'\n').filter(|line| !line.is_empty())
    }

    /// Returns the number of paths that could not be read.
    pub fn problem_count(&self) -> u64 {
        u64_at(&self.bytes, 88)
    }

    /// Returns the paths that could not be read when the index was built.
    pub fn problems(&self) -> impl Iterator<Item = Problem> {
        let mut rest = self.section(Section::Problems);
        std::iter::from_fn(move || {
            let (problem, after) = split_problem(rest)?;
            rest = after;
            Some(problem)
        })
    }

    /// Returns the last component of the entry's path; empty for the root.
    pub fn name(&self, entry: EntryId) -> &[u8] {
        let names = self.section(Section::Names);
        let at = self.column(Section::Name, entry) as usize;
        &names[at + 1..at + 1 + names[at] as usize]
    }

    /// Returns the kind of an entry.
    pub fn kind(&self, entry: EntryId) -> Kind {
        Kind::from_mode(u32_at(self.class(entry), 0)).expect("checked when the image was parsed")
    }

    /// Returns the entry that identifies the node: the lowest of its names.
    pub fn node_of(&self, entry: EntryId) -> EntryId {
        self.extra(entry, Field::Node).map_or(entry, |node| node as EntryId)
    }

    /// Returns the different combinations of mode, user and group in the index.
    pub fn classes(&self) -> impl Iterator<Item = (u32, u32, u32)> {
        let rows = self.section(Section::Classes).chunks_exact(format::CLASS_ROW_BYTES);
        rows.map(|row| (u32_at(row, 0), u32_at(row, 4), u32_at(row, 8)))
    }

    fn directory_number(&self, entry: EntryId) -> Option<u32> {
        let d = Image::first_not(self.directories, |d| self.dir_row(d).1 < entry);
        (d < self.directories && self.dir_row(d).1 == entry).then_some(d)
    }

    /// Returns the children of a directory; `None` for an entry that is not a directory.
    pub fn children(&self, entry: EntryId) -> Option<Range<EntryId>> {
        let d = self.directory_number(entry)?;
        Some(self.dir_row(d).0..self.dir_row(d + 1).0)
    }

    /// Returns the child of a directory with this name.
    pub fn lookup(&self, directory: EntryId, name: &[u8]) -> Option<EntryId> {
        let children = self.children(directory)?;
        let i = Image::first_not(children.len() as u32, |i| self.name(children.start + i) < name);
        let entry = children.start + i;
        (entry < children.end && self.name(entry) == name).then_some(entry)
    }

    /// Returns the directory that contains this entry; the root is its own parent.
    pub fn parent(&self, entry: EntryId) -> EntryId {
        if entry == ROOT {
            return ROOT;
        }
        // The last directory whose children begin at or before this entry: empty directories with
        // the same first child come before the one that contains the entry.
        let d = Image::first_not(self.directories, |d| self.dir_row(d).0 <= entry);
        self.dir_row(d - 1).1
    }

    /// Returns the path from the root, without a leading slash.
    pub fn path(&self, entry: EntryId) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = entry;
        while at != ROOT {
            names.push(self.name(at));
            at = self.parent(at);
        }
        names.reverse();
        names.join(&b'/')
    }

    fn time(&self, entry: EntryId, column: Section, seconds: Field, nanoseconds: Field) -> Time {
        match self.extra(entry, seconds) {
            Some(exact) => Time {
                seconds: exact as i64,
                nanoseconds: self.extra(entry, nanoseconds).unwrap_or(0) as u32,
            },
            None => format::time_from_column(self.column(column, entry)),
        }
    }

    /// Returns the entry's attributes as stat(2) shows them.
    pub fn attributes(&self, entry: EntryId) -> Attributes {
        let class = self.class(entry);
        let mode = u32_at(class, 0);
        let kind = Kind::from_mode(mode).expect("checked when the image was parsed");
        let size_bytes = self.column(Section::Size, entry) as u64;
        let mut attributes = Attributes {
            node: NodeId(u64::from(entry)),
            kind,
            permissions: mode & 0o7777,
            uid: u32_at(class, 4),
            gid: u32_at(class, 8),
            nlink: 1,
            rdev: 0,
            size_bytes,
            blocks: format::expected_blocks(kind, size_bytes, self.block_granule),
            modified: self.time(entry, Section::Modified, Field::ModifiedSeconds, Field::ModifiedNanoseconds),
            changed: self.time(entry, Section::Changed, Field::ChangedSeconds, Field::ChangedNanoseconds),
        };
        if kind == Kind::Dir {
            attributes.nlink = 2 + self.child_directories(entry);
        }
        if self.has_extras(entry) {
            attributes.node = NodeId(u64::from(self.node_of(entry)));
            attributes.nlink = self.extra(entry, Field::Nlink).map_or(attributes.nlink, |n| n as u32);
            attributes.blocks = self.extra(entry, Field::Blocks).unwrap_or(attributes.blocks);
            attributes.rdev = self.extra(entry, Field::Rdev).unwrap_or(0);
        }
        attributes
    }

    /// Returns the number of child directories. Their rows are consecutive, because entries and
    /// rows have the same order.
    fn child_directories(&self, directory: EntryId) -> u32 {
        let Some(children) = self.children(directory) else { return 0 };
        let first = Image::first_not(self.directories, |d| self.dir_row(d).1 < children.start);
        let end = Image::first_not(self.directories, |d| self.dir_row(d).1 < children.end);
        end - first
    }

    /// Returns a symbolic link's target.
    pub fn link_target(&self, entry: EntryId) -> Option<&[u8]> {
        self.blob(self.extra(self.node_of(entry), Field::Target)?)
    }

    /// Returns the extended attributes of an entry's node, sorted by name.
    pub fn xattrs(&self, entry: EntryId) -> XattrSet<'_> {
        let set = self.extra(self.node_of(entry), Field::Xattrs).and_then(|offset| self.blob(offset));
        XattrSet { rest: set.unwrap_or_default() }
    }
}

fn split_problem(rest: &[u8]) -> Option<(Problem, &[u8])> {
    let errno = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?);
    let length = u32::from_le_bytes(rest.get(4..8)?.try_into().ok()?) as usize;
    let path = rest.get(8..8usize.checked_add(length)?)?;
    Some((Problem { path: path.to_vec(), errno }, &rest[8 + length..]))
}

/// One node's extended attributes, as an iterator of (name, value).
#[derive(Debug, Clone)]
pub struct XattrSet<'a> {
    rest: &'a [u8],
}

impl XattrSet<'_> {
    /// Returns whether the set is complete, sorted, and within the limits.
    fn check(mut self) -> bool {
        if self.rest.is_empty() || self.rest.len() > format::XATTR_SET_BYTES_MAX {
            return false;
        }
        let mut before: Option<&[u8]> = None;
        for (name, value) in self.by_ref() {
            let legal = !name.is_empty()
                && name.len() <= 255
                && !name.contains(&0)
                && value.len() <= format::XATTR_VALUE_BYTES_MAX;
            if !legal || before.is_some_and(|before| before >= name) {
                return false;
            }
            before = Some(name);
        }
        self.rest.is_empty()
    }
}

impl<'a> Iterator for XattrSet<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let name_bytes = u16::from_le_bytes(self.rest.get(..2)?.try_into().ok()?) as usize;
        let value_bytes = u32::from_le_bytes(self.rest.get(2..6)?.try_into().ok()?) as usize;
        let name = self.rest.get(6..6 + name_bytes)?;
        let value = self.rest.get(6 + name_bytes..(6 + name_bytes).checked_add(value_bytes)?)?;
        self.rest = &self.rest[6 + name_bytes + value_bytes..];
        Some((name, value))
    }
}
