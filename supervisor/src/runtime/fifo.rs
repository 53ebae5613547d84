//! FIFOs, through which a command receives the messages and the output of its children.

use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

use crate::display::shown;
use crate::failure::Failure;
use crate::runtime::directory::runtime_directory;

/// A FIFO in the runtime directory, which another Quell process opens for writing. The FIFO is
/// removed when this value is dropped.
#[derive(Debug)]
pub struct Fifo {
    /// The path in the runtime directory.
    pub path: PathBuf,
    /// The read end, in non-blocking mode.
    pub reader: File,
}

impl Fifo {
    /// Creates a FIFO `PURPOSE-PID`, and opens it for reading. Removes the FIFOs of killed
    /// processes.
    pub fn create(purpose: &str) -> Result<Fifo, Failure> {
        let directory = runtime_directory()?;
        sweep_fifos(&directory);
        let path = directory.join(format!("{purpose}-{}", std::process::id()));
        let failed = |e: rustix::io::Errno| Failure::cannot(format!("{}: {e}", shown(&path)));
        // A killed process with the same process id may have left the FIFO.
        let _ = std::fs::remove_file(&path);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let reader = rustix::fs::open(&path, flags, Mode::empty());
        Ok(Fifo { reader: reader.map_err(failed)?.into(), path: path.clone() })
    }
}

/// Opens the write end. Fails at once if no process has the FIFO open for reading.
pub fn open_fifo(path: &Path) -> Result<File, Failure> {
    let failed = |e: rustix::io::Errno| match e {
        rustix::io::Errno::NXIO => {
            Failure::cannot(format!("{}: the process that read from it has ended", shown(path)))
        }
        e => Failure::cannot(format!("{}: {e}", shown(path))),
    };
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let end = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    // From here on writes block, as programs expect.
    rustix::io::ioctl_fionbio(&end, false).map_err(failed)?;
    Ok(end.into())
}

impl Drop for Fifo {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes the FIFOs of killed processes: their process id does not exist, and no process reads
/// from them.
fn sweep_fifos(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let is_fifo = entry.file_type().is_ok_and(|kind| kind.is_fifo());
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.rsplit_once('-')?.1.parse::<u32>().ok());
        let lives = |pid: u32| Path::new(&format!("/proc/{pid}")).exists();
        if !is_fifo || owner.is_none_or(lives) {
            continue;
        }
        // The FIFO may belong to a process in another PID namespace, for example a container.
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        if matches!(rustix::fs::open(entry.path(), flags, Mode::empty()), Err(rustix::io::Errno::NXIO)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_a_fifo_without_a_reader_fails_at_once() {
        let directory = std::env::temp_dir().join(format!("quell-fifo-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let failure = open_fifo(&path).unwrap_err();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let _reader = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        let end = open_fifo(&path);
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(failure.to_string().contains("has ended"), "{failure}");
        let flags = rustix::fs::fcntl_getfl(end.unwrap()).unwrap();
        assert!(
            !flags.contains(OFlags::NONBLOCK),
            "the writes of a program must block while the pipe is full"
        );
    }
}
