//! The stores of a log mount as a file system, and what this node and process are for it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use quell_backing::{PosixDir, WritableDir, WritableFile};
use quell_fs::{Error, ErrorKind, Result, errno};
use quell_log::{Choices, Holder, Host, LogFs, Role, Root, Scratch, StoreMap, Stores};

/// Log directories of a container that is made here: what PLFS has by default.
const DIRECTORIES: u32 = 32;

/// Opens the stores as one file system, and those that are added to them from then on.
pub fn open_log(stores: &[impl AsRef<Path>], choices: Choices) -> Result<LogFs> {
    Ok(LogFs::new(open_stores(stores)?.reaching(Box::new(open_added)), choices))
}

/// The same for who is mounted at `mountpoint`, a path without links: a store that this would show or hide is not opened.
pub fn open_log_at(stores: &[impl AsRef<Path>], choices: Choices, mountpoint: &Path) -> Result<LogFs> {
    let mountpoint = mountpoint.to_owned();
    let opener = move |path: &[u8]| {
        let named = Path::new(OsStr::from_bytes(path));
        if named.starts_with(&mountpoint) || mountpoint.starts_with(named) {
            let source = format!("the mount point {} would show or hide it", mountpoint.display());
            return Err(Error {
                source: Some(source.into()),
                ..Error::new(ErrorKind::InvalidInput, "open", path)
            });
        }
        open_added(path)
    };
    Ok(LogFs::new(open_stores(stores)?.reaching(Box::new(opener)), choices))
}

/// The directory at a path that a map of stores says, which is somebody else's word: absolute, a name at a time, and no link
/// is followed.
fn open_added(path: &[u8]) -> Result<Arc<dyn WritableDir>> {
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let [b"", way @ .., last] = &names[..] else {
        return Err(Error::new(ErrorKind::InvalidInput, "open", path));
    };
    if way.iter().chain([last]).any(|name| matches!(*name, b"" | b"." | b"..")) {
        return Err(Error::new(ErrorKind::InvalidInput, "open", path));
    }
    let root: Arc<dyn WritableDir> = Arc::new(PosixDir::start(Path::new("/"))?);
    way.iter().try_fold(root, |dir, name| dir.enter_writable(name))?.open_writable_dir(last)
}

/// Opens the stores, making what each of them keeps for itself where it is missing.
pub fn open_stores(stores: &[impl AsRef<Path>]) -> Result<Stores> {
    Stores::open_named(roots(stores)?, this_host()?, DIRECTORIES)
}

/// Opens stores that are there already; nothing is written, so that they may be read-only.
pub fn look_into_stores(stores: &[impl AsRef<Path>]) -> Result<Stores> {
    let roots = roots(stores)?;
    for (root, path) in roots.iter().zip(stores) {
        if !quell_log::is_store(&*root.dir)? {
            let path = path.as_ref().as_os_str().as_encoded_bytes();
            let source = Some("it is no store".into());
            return Err(Error { source, ..Error::new(ErrorKind::NotFound, "open", path) });
        }
    }
    Stores::look(roots, this_host()?, DIRECTORIES)
}

/// Stores that come, go and stay: see `Stores::change`.
pub fn change_stores(stores: &[(impl AsRef<Path>, Role)]) -> Result<Stores> {
    Stores::change(roles(stores)?, this_host()?, DIRECTORIES)
}

/// The map that `change_stores` would make; nothing is written.
pub fn foretell_stores(stores: &[(impl AsRef<Path>, Role)]) -> Result<StoreMap> {
    Stores::foretell(roles(stores)?, &this_host()?)
}

fn roles(stores: &[(impl AsRef<Path>, Role)]) -> Result<Vec<(Root, Role)>> {
    stores.iter().map(|(path, role)| Ok((root(path.as_ref())?, *role))).collect()
}

fn roots(stores: &[impl AsRef<Path>]) -> Result<Vec<Root>> {
    stores.iter().map(|path| root(path.as_ref())).collect()
}

/// The path is kept in the stores' map, without links, for those who look for the others.
fn root(path: &Path) -> Result<Root> {
    let full = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    Ok(Root { dir: Arc::new(PosixDir::open(path)?), path: full.into_os_string().into_encoded_bytes() })
}

/// This process on this node.
fn this_host() -> Result<Host> {
    let pid = std::process::id();
    let node = node_name()?;
    let start =
        start_of(pid).ok_or_else(|| Error::new(ErrorKind::Os(errno::EIO), "read", "/proc/self/stat"))?;
    let own_node = node.clone();
    Ok(Host {
        holder: Holder { pid, start, node },
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        random: Box::new(random),
        // Numbers of processes are used again, but never with the same start.
        is_gone: Box::new(move |holder| {
            holder.node == own_node && start_of(holder.pid) != Some(holder.start)
        }),
        scratch: Scratch::new(scratch_file),
    })
}

/// A file of this process alone, where the system keeps temporary ones: nobody finds it, and it is gone with the process.
fn scratch_file() -> Result<Box<dyn WritableFile>> {
    let dir = PosixDir::open(&std::env::temp_dir())?;
    let name = format!("quell-index-{:016x}", random());
    let file = dir.create_file(name.as_bytes(), 0o600)?;
    dir.remove(name.as_bytes())?;
    Ok(file)
}

/// The boot and the name of the node: after a restart it is another one, and so is one with the same name elsewhere.
fn node_name() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let boot = std::fs::read_to_string(path).map_err(|cause| Error::from_io(cause, "read", path))?;
    let name = rustix::system::uname();
    Ok(format!("{}.{}", boot.trim().replace('-', ""), name.nodename().to_string_lossy()))
}

/// When the process began, in clock ticks after the node did. `None` for one that is gone, also if nobody has asked yet how
/// it ended.
fn start_of(pid: u32) -> Option<u64> {
    start_in(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn start_in(stat: &str) -> Option<u64> {
    // The second field is a name in parentheses, of any characters. Behind it the first is the state, the eighteenth the
    // number of threads, the twentieth the start.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().take(20).collect();
    // Of a process whose first thread has ended the others may be at work.
    let has_ended = matches!(fields.first()?, &"Z" | &"X") && matches!(fields.get(17)?, &"0" | &"1");
    if has_ended { None } else { fields.get(19)?.parse().ok() }
}

/// From the kernel, which has always enough of it once it has begun.
fn random() -> u64 {
    let mut bytes = [0; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(bytes.len()), "the kernel gives up to 256 bytes at once");
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_file_is_found_by_nobody_else() {
        let file = scratch_file().unwrap();
        file.write_at(b"beyond memory", 5).unwrap();
        let mut bytes = [0; 20];
        assert_eq!(file.read_at(&mut bytes, 5).unwrap(), 13);
        assert_eq!(file.stat().unwrap().nlink, 0);
    }

    #[test]
    fn a_process_that_nobody_has_asked_for_its_end_is_gone() {
        let stat = |state, threads| {
            format!("7 (a) b) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 4711 0 0 0")
        };
        assert_eq!(start_in(&stat("S", 1)), Some(4711));
        assert_eq!(start_in(&stat("Z", 3)), Some(4711));
        assert_eq!(start_in(&stat("Z", 1)), None);
        assert_eq!(start_in("7 (a) S"), None);
    }

    #[test]
    fn a_path_that_a_map_says_is_followed_by_plain_names_alone() {
        let scene = tempfile::tempdir().unwrap();
        let real = scene.path().canonicalize().unwrap();
        std::fs::create_dir_all(real.join("way/store")).unwrap();
        std::os::unix::fs::symlink("way", real.join("link")).unwrap();
        let open = |path: &Path| open_added(path.as_os_str().as_bytes());
        assert!(open(&real.join("way/store")).is_ok());
        for wrong in
            ["link/store", "way/../way/store", "way/./store", "way//store", "way/store/", "none", "link"]
        {
            assert!(open(&real.join(wrong)).is_err(), "{wrong}");
        }
        for wrong in ["", "/", "way/store", "."] {
            assert!(open(Path::new(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn this_process_is_there_and_one_with_another_start_is_gone() {
        let host = this_host().unwrap();
        assert!(!(host.is_gone)(&host.holder));
        assert!((host.is_gone)(&Holder { start: host.holder.start + 1, ..host.holder.clone() }));
        assert!(!(host.is_gone)(&Holder { start: 1, node: "elsewhere".into(), ..host.holder.clone() }));
        assert_ne!((host.random)(), (host.random)());
    }
}
