//! The processors and the memory that this process may use. Boot images get the requested amount of
//! memory, and never more than is available on the machine and in the control groups of this
//! process. A refusal is better than swapping or the OOM killer.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use quell_boot::BootImage;
use quell_index::Image;

use crate::display::shown;
use crate::failure::Failure;
use crate::mount_table::{self, MountTableEntry};

/// The limit without `--budget`, in MiB, unless half of the available memory is less.
const DEFAULT_MIB: u64 = 1024;

/// Returns the number of processors that this process may use, for work that does no I/O.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The memory that is left for boot images, and the reason for the limit.
#[derive(Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    bytes: u64,
    /// The memory for images that are read in ranges.
    ranges_bytes: u64,
    reason: String,
}

impl MemoryBudget {
    /// Returns the limit for all boot images together. `requested_mib`: the limit that the user
    /// gave, in MiB.
    pub fn new(requested_mib: Option<u64>) -> MemoryBudget {
        MemoryBudget::within(requested_mib, available().as_ref())
    }

    fn within(requested_mib: Option<u64>, available: Option<&Available>) -> MemoryBudget {
        let mib = |bytes: u64| bytes >> 20;
        let wanted = requested_mib.unwrap_or(DEFAULT_MIB) << 20;
        match (requested_mib, available) {
            (Some(_), Some(Available { bytes, scope })) if *bytes < wanted => MemoryBudget {
                bytes: *bytes,
                ranges_bytes: 0,
                reason: format!("no more are available {scope}"),
            },
            (None, Some(Available { bytes, scope })) if bytes / 2 < wanted => {
                let reason =
                    format!("half of the {} MiB available {scope}; --budget raises the limit", mib(*bytes));
                MemoryBudget { bytes: bytes / 2, ranges_bytes: 0, reason }
            }
            (Some(_), _) => {
                MemoryBudget { bytes: wanted, ranges_bytes: 0, reason: "of the limit of --budget".into() }
            }
            (None, _) => MemoryBudget {
                bytes: wanted,
                ranges_bytes: 0,
                reason: format!("of the limit of {DEFAULT_MIB} MiB; --budget raises it"),
            },
        }
    }

    /// Reserves memory for an image: `served_bytes` as long as it is served, `temporary_bytes` only
    /// while it is decoded.
    pub fn reserve(&mut self, image: &Path, served_bytes: u64, temporary_bytes: u64) -> Result<(), Failure> {
        self.check(image, "", served_bytes + temporary_bytes)?;
        self.bytes -= served_bytes;
        Ok(())
    }

    /// Reserves memory for an image that does not fit the limit, and is read in ranges. This memory
    /// is needed in any case and may exceed the limit, but it is subtracted from the limit of the
    /// other images. All such images together must fit the available memory.
    pub fn reserve_ranges(&mut self, image: &Path, bytes: u64) -> Result<(), Failure> {
        self.reserve_ranges_within(image, bytes, available().as_ref())
    }

    fn reserve_ranges_within(
        &mut self,
        image: &Path,
        bytes: u64,
        available: Option<&Available>,
    ) -> Result<(), Failure> {
        // The frames of earlier images are allocated when programs read them.
        let all_bytes = self.ranges_bytes.saturating_add(bytes);
        if let Some(available) = available.filter(|available| available.bytes < all_bytes) {
            return Err(Failure::cannot(format!(
                "{} and the boot images before it that are read in ranges take {} MiB of memory, and {} MiB are available {}: run it where more is available",
                shown(image),
                all_bytes.div_ceil(1 << 20),
                available.bytes >> 20,
                available.scope
            )));
        }
        self.ranges_bytes = all_bytes;
        self.bytes = self.bytes.saturating_sub(bytes);
        Ok(())
    }

    /// Checks that the minimum size of an image fits, before the rest of it is read.
    pub fn check_minimum(&self, image: &Path, bytes: u64) -> Result<(), Failure> {
        self.check(image, "at least ", bytes)
    }

    fn check(&self, image: &Path, least: &str, needed: u64) -> Result<(), Failure> {
        if needed <= self.bytes {
            return Ok(());
        }
        Err(Failure::cannot(format!(
            "{} takes {least}{} MiB of memory, and {} MiB are left ({})",
            shown(image),
            needed.div_ceil(1 << 20),
            self.bytes >> 20,
            self.reason
        )))
    }
}

/// Reads an index, unless it is larger than the available memory.
pub fn load_index(file: &File, path: &Path) -> Result<Image, Failure> {
    let _span = tracing::debug_span!("load_index", path = %shown(path)).entered();
    quell_mount_spec::load_index_from(file, path, |bytes| check_available(path, bytes))
}

/// Does the same as `load_index`, for the file at a path.
pub fn load_index_at(path: &Path) -> Result<Image, Failure> {
    quell_mount_spec::load_index(path, |bytes| check_available(path, bytes))
}

/// Reads the boot image at a path, unless it is larger than the available memory. It is not served,
/// so the limit for served images does not apply.
pub fn load_boot_at(path: &Path) -> Result<BootImage, Failure> {
    quell_mount_spec::load_boot(path, |bytes| check_available(path, bytes))
}

/// Checks that `bytes` of memory are available for the file at `path`.
pub fn check_available(path: &Path, bytes: u64) -> Result<(), Failure> {
    check_within(path, bytes, available().as_ref())
}

fn check_within(path: &Path, bytes: u64, available: Option<&Available>) -> Result<(), Failure> {
    match available {
        Some(available) if available.bytes < bytes => Err(Failure::cannot(format!(
            "{} takes {} MiB of memory, and {} MiB are available {}: run it where more is available",
            shown(path),
            bytes.div_ceil(1 << 20),
            available.bytes >> 20,
            available.scope
        ))),
        _ => Ok(()),
    }
}

/// Memory that can be allocated without reclaiming anything but page cache.
#[derive(Debug)]
struct Available {
    bytes: u64,
    /// Where the limit applies, for a message.
    scope: String,
}

/// Returns the minimum of the available memory of the machine and of each control group, or `None`
/// if none of them can be read.
fn available() -> Option<Available> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| field(&text, "MemAvailable:"));
    let machine = machine.map(|kib| Available { bytes: kib << 10, scope: "on this machine".into() });
    let in_group = |group: PathBuf| {
        let bytes = available_in(&group)?;
        Some(Available { bytes, scope: format!("in the control group {}", shown(&group)) })
    };
    groups().into_iter().filter_map(in_group).chain(machine).min_by_key(|available| available.bytes)
}

/// Returns the directories of the control groups that limit this process's memory, including their
/// ancestors.
fn groups() -> Vec<PathBuf> {
    let (Ok(own), Ok(mounts)) = (fs::read_to_string("/proc/self/cgroup"), mount_table::mount_table()) else {
        return Vec::new();
    };
    mounts.iter().flat_map(|mount| groups_on(mount, &own)).collect()
}

/// Returns the control groups in one mount. `own` is the content of /proc/self/cgroup.
fn groups_on(mount: &MountTableEntry, own: &str) -> Vec<PathBuf> {
    let lines = own.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':')
    });
    let of_memory = |names: &str| names.split(',').any(|name| name == "memory");
    let mut lines = lines.filter(|(controllers, _)| match mount.kind.as_str() {
        "cgroup2" => controllers.is_empty(),
        "cgroup" => of_memory(controllers) && of_memory(&mount.options),
        _ => false,
    });
    let below = lines.next().and_then(|(_, path)| Path::new(path).strip_prefix(&mount.root).ok());
    let Some(below) = below else { return Vec::new() };
    let group = mount.point.join(below);
    group.ancestors().take_while(|above| above.starts_with(&mount.point)).map(Path::to_owned).collect()
}

/// Returns the memory that a group may still allocate, or `None` if it has no limit.
fn available_in(group: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    // File names of cgroup version 2, then of version 1, whose `memory.stat` counts descendants in
    // separate fields.
    let limit = [number("memory.max"), number("memory.high")].into_iter().flatten().min();
    let (limit, used, prefix) = match limit {
        Some(limit) => (limit, number("memory.current")?, ""),
        None => (number("memory.limit_in_bytes")?, number("memory.usage_in_bytes")?, "total_"),
    };
    let files = |kind: &str| field(&stat, &format!("{prefix}{kind}_file")).unwrap_or(0);
    let kept = used.saturating_sub(files("inactive") + files("active"));
    Some(limit.saturating_sub(kept))
}

/// Returns the number after `name`, in lines of names and numbers.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(char::is_whitespace))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn available(mib: u64) -> Available {
        Available { bytes: mib * MIB, scope: "here".into() }
    }

    #[test]
    fn the_budget_is_at_most_the_available_memory() {
        let bytes = |requested, there: Option<u64>| {
            MemoryBudget::within(requested, there.map(available).as_ref()).bytes / MIB
        };
        assert_eq!(bytes(None, None), 1024);
        assert_eq!(bytes(None, Some(100_000)), 1024);
        assert_eq!(bytes(None, Some(1000)), 500);
        assert_eq!(bytes(Some(700), Some(1000)), 700);
        assert_eq!(bytes(Some(7000), Some(1000)), 1000);
        assert_eq!(bytes(Some(7000), None), 7000);
        let reason = MemoryBudget::within(None, Some(&available(1000))).reason;
        assert_eq!(reason, "half of the 1000 MiB available here; --budget raises the limit");
    }

    #[test]
    fn images_in_ranges_share_the_budget_and_the_available_memory() {
        let image = Path::new("a.boot");
        let mut budget = MemoryBudget::within(Some(150), Some(&available(1000)));
        budget.reserve_ranges_within(image, 64 * MIB, Some(&available(1000))).unwrap();
        // An image that would fit alone no longer fits.
        let refusal = budget.reserve(image, 90 * MIB, 10 * MIB).unwrap_err().to_string();
        assert!(refusal.contains("86 MiB are left"), "{refusal}");
        budget.reserve(image, 80 * MIB, 0).unwrap();
        budget.reserve_ranges_within(image, 64 * MIB, Some(&available(1000))).unwrap();
        assert_eq!(budget.bytes, 0);
        let third = |budget: &mut MemoryBudget, mib| {
            budget.reserve_ranges_within(image, 64 * MIB, Some(&available(mib)))
        };
        assert!(third(&mut budget, 191).is_err(), "three images take 192 MiB");
        third(&mut budget, 192).unwrap();
    }

    /// Corrects the checksum of the header, whose field is at `at`, in its first `header_bytes`
    /// bytes.
    fn seal(bytes: &mut [u8], at: usize, header_bytes: usize) {
        let checked = [&bytes[..at], &bytes[at + 8..header_bytes]].concat();
        let checksum = xxhash_rust::xxh3::xxh3_64(&checked);
        bytes[at..at + 8].copy_from_slice(&checksum.to_le_bytes());
    }

    #[test]
    fn a_sparse_file_with_a_valid_header_is_refused_before_memory_is_allocated() {
        use quell_index::format;

        const LENGTH: u64 = 60 << 30;
        let directory = tempfile::tempdir().unwrap();
        let sparse = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            fs::write(&path, bytes).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(LENGTH).unwrap();
            path
        };
        let little = available(1024);
        let refusal = "takes 61440 MiB of memory, and 1024 MiB are available here";

        fs::create_dir(directory.path().join("tree")).unwrap();
        let root = std::sync::Arc::new(quell_posix::PosixDir::open(&directory.path().join("tree")).unwrap());
        let options = quell_index::BuildOptions::default();
        let tree =
            quell_index::build(root, b"/tree", &options, 1, None, &quell_index::BuildProgress::default());
        let mut index = quell_index::encode(&tree.unwrap()).unwrap();
        let added = LENGTH - index.len() as u64;
        let mut add = |at: usize| {
            let number = u64::from_le_bytes(index[at..at + 8].try_into().unwrap());
            index[at..at + 8].copy_from_slice(&(number + added).to_le_bytes());
        };
        // The file is larger: its last section but one is larger, and its last section begins
        // later.
        let last = format::PREAMBLE_BYTES - format::SECTION_ROW_BYTES;
        [40, last - format::SECTION_ROW_BYTES + 24, last + 16].into_iter().for_each(&mut add);
        seal(&mut index, format::HEADER_CHECKSUM_AT, format::PREAMBLE_BYTES);
        let path = sparse("index", &index);
        let loaded = quell_mount_spec::load_index(&path, |bytes| check_within(&path, bytes, Some(&little)));
        let message = loaded.map(drop).unwrap_err().to_string();
        assert!(message.contains(refusal), "{message}");

        let mut packer = quell_boot::Packer::default();
        let mut recording = quell_boot::Recording::new();
        packer.add(b"file", 4096, quell_vfs::Time { seconds: 1, nanoseconds: 0 }, None);
        recording.add(0, 0..1);
        let mut boot = packer.pack(quell_boot::ImageKind::Tree(7), &recording, &mut Zeros, 1).unwrap();
        boot[16..24].copy_from_slice(&LENGTH.to_le_bytes());
        seal(&mut boot, 24, quell_boot::HEADER_BYTES);
        let path = sparse("boot", &boot);
        let loaded = quell_mount_spec::load_boot(&path, |bytes| check_within(&path, bytes, Some(&little)));
        let message = loaded.map(drop).unwrap_err().to_string();
        assert!(message.contains(refusal), "{message}");
    }

    struct Zeros;

    impl quell_boot::ReadBlock for Zeros {
        fn read(
            &mut self,
            _: &quell_boot::Recorded,
            _: &mut [u8; quell_boot::BLOCK_BYTES],
        ) -> quell_vfs::Result<bool> {
            Ok(true)
        }
    }

    #[test]
    fn control_groups_are_found_below_their_mount_points() {
        let groups = |line: &[u8], own: &str| groups_on(&mount_table::parse_mount_table(line)[0], own);
        let second = b"41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        let expected = ["/sys/fs/cgroup/job/step", "/sys/fs/cgroup/job", "/sys/fs/cgroup"];
        assert_eq!(groups(second, "0::/job/step\n"), paths(&expected));
        let first = b"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        let own = "5:devices:/other\n4:cpu,memory:/a\n0::/\n";
        assert_eq!(groups(first, own), paths(&["/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"]));
        // A container in which only its own group is mounted, as root.
        let shown = b"41 31 0:38 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(groups(shown, "0::/docker/1/x\n"), paths(&["/sys/fs/cgroup/x", "/sys/fs/cgroup"]));
        assert_eq!(groups(shown, "0::/elsewhere\n"), paths(&[]));
        assert_eq!(groups(b"1 2 0:3 / /proc rw - proc proc rw", own), paths(&[]));
    }

    #[test]
    fn the_page_cache_counts_as_available() {
        let group = |files: &[(&str, &str)]| {
            let directory = tempfile::tempdir().unwrap();
            for (name, text) in files {
                fs::write(directory.path().join(name), text).unwrap();
            }
            available_in(directory.path())
        };
        let stat = ("memory.stat", "anon 5\ninactive_file 30\nactive_file 10\nfile 60\n");
        assert_eq!(group(&[("memory.max", "100\n"), ("memory.current", "70\n"), stat]), Some(70));
        let high = ("memory.high", "90\n");
        assert_eq!(group(&[("memory.max", "max\n"), high, ("memory.current", "70\n"), stat]), Some(60));
        assert_eq!(group(&[("memory.max", "max\n"), ("memory.current", "70\n"), stat]), None);
        let stat = ("memory.stat", "inactive_file 1\ntotal_inactive_file 30\ntotal_active_file 10\n");
        let used = ("memory.usage_in_bytes", "70\n");
        assert_eq!(group(&[("memory.limit_in_bytes", "100\n"), used, stat]), Some(70));
        assert_eq!(group(&[("memory.limit_in_bytes", "20\n"), used, stat]), Some(0));
        assert_eq!(group(&[]), None);
    }

    #[test]
    fn the_available_memory_of_this_machine_is_known() {
        assert!(super::available().is_some_and(|available| available.bytes > 0));
    }
}
