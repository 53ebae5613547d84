//! The copy of the certificate and of the tables of a batch of another user, before they are
//! verified. Each file is read only once, because the user can change it at any time.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use quell_batch_service::{BatchRecord, BatchState, Certificate, TableFiles};
use quell_vfs::{Error, ErrorKind, Result};
use rustix::fs::{SeekFrom, seek};

use crate::access_list::FileAccess;
use crate::incoming::{open_batch_dir, open_file, refused};
use crate::store_dir::{
    BatchDir, CERTIFICATE, CERTIFICATE_BYTES_MAX, INCOMING, StoreDir, remove_if_present, write_certificate,
};

/// The largest number of tables of a batch.
const TABLES_MAX: usize = 4096;
/// The largest total size of the tables of a batch, in bytes.
const TABLES_BYTES_MAX: u64 = 1 << 40;
/// The size of the buffer with which a table is copied.
const COPY_BYTES: usize = 1 << 20;
/// The smallest hole of a file, in bytes.
const HOLE_BYTES: usize = 4096;

/// Returns whether the files of a batch must be copied before they are verified, because its user
/// can still change them. A batch that was submitted for a later commit has been copied already.
pub(crate) fn needs_copy(store: &StoreDir, record: &BatchRecord) -> bool {
    let is_foreign = record.caller.uid != rustix::process::geteuid().as_raw();
    let is_in_incoming = matches!(record.state, BatchState::Open | BatchState::Refused { .. });
    store.is_shared() && is_foreign && is_in_incoming
}

/// Copies the certificate and the tables of a batch of another user to a directory of the owner, in
/// place of an earlier copy. Each file is read once. Without a certificate nothing is copied.
///
/// # Errors
/// `InvalidInput` if a file is not a regular file of the user with one name, is too large, or has
/// holes; `Damaged` if the certificate does not have its format; the errors of files. Then there is
/// no copy.
pub(crate) fn copy_batch(store: &StoreDir, record: &BatchRecord, to: &BatchDir, syncs: bool) -> Result<()> {
    let uid = record.caller.uid;
    let certificate = open_batch_dir(&store.open_dir(INCOMING)?, record.number, uid)
        .and_then(|from| Ok((open_file(&from, &String::from_utf8_lossy(CERTIFICATE), uid)?, from)));
    let ((certificate, size), from) = match certificate {
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    if size > CERTIFICATE_BYTES_MAX as u64 {
        return Err(refused("certificate", "it is too long"));
    }
    let mut bytes = Vec::new();
    let read = File::from(certificate).take(size).read_to_end(&mut bytes);
    read.map_err(|cause| Error::from_io(cause, "read", "certificate"))?;
    let numbers: Vec<u64> = Certificate::decode(&bytes)?.tables.iter().map(|table| table.number).collect();
    if numbers.len() > TABLES_MAX {
        return Err(refused("certificate", "it has too many tables"));
    }
    remove_copy(to)?;
    let copied = copy_tables(&from, uid, &numbers, to, syncs);
    let copied = copied.and_then(|()| write_certificate(&to.files, &bytes, &FileAccess::Mode(0o600)));
    copied.or_else(|error| remove_copy(to).and(Err(error)))
}

fn remove_copy(copy: &BatchDir) -> Result<()> {
    remove_if_present(&copy.files, CERTIFICATE)?;
    copy.tables.list()?.into_iter().try_for_each(|table| copy.tables.remove(table))
}

fn copy_tables(from: &OwnedFd, uid: u32, numbers: &[u64], to: &BatchDir, syncs: bool) -> Result<()> {
    let mut left = TABLES_BYTES_MAX;
    for number in numbers {
        let name = format!("{number:016x}.table");
        let (table, size) = open_file(from, &name, uid)?;
        left = left.checked_sub(size).ok_or_else(|| refused(&name, "the tables are too large"))?;
        let copy = to.tables.create(*number)?;
        copy_table((table, size), &copy, &name)?;
        if syncs {
            to.tables.sync_content(*number, &copy)?;
        }
    }
    if syncs { to.tables.sync() } else { Ok(()) }
}

/// Copies a table of this size. A hole would need no space on the disk of the user, but space for
/// the copy. Many file systems do not report holes (NFS before version 4.2, for example), so a run
/// of zeros is refused as well: a table has no such run, because its blocks are compressed.
fn copy_table((table, size): (OwnedFd, u64), mut copy: &File, name: &str) -> Result<()> {
    let failed = |cause| Error::from_io(cause, "copy", name);
    let hole = match size {
        0 => 0,
        _ => seek(table.as_fd(), SeekFrom::Hole(0)).map_err(|error| failed(error.into()))?,
    };
    if hole < size {
        return Err(refused(name, "it has a hole"));
    }
    let table = File::from(table);
    let mut buffer = vec![0; COPY_BYTES];
    let mut at = 0;
    while at < size {
        let wanted = (size - at).min(COPY_BYTES as u64) as usize;
        match table.read_at(&mut buffer[..wanted], at).map_err(failed)? {
            0 => return Err(refused(name, "it became shorter")),
            found if has_block_of_zeros(&buffer[..found]) => return Err(refused(name, "it has a hole")),
            found => {
                copy.write_all(&buffer[..found]).map_err(failed)?;
                at += found as u64;
            }
        }
    }
    Ok(())
}

fn has_block_of_zeros(bytes: &[u8]) -> bool {
    bytes.chunks_exact(HOLE_BYTES).any(|block| block.iter().all(|byte| *byte == 0))
}

#[cfg(test)]
mod tests {
    use quell_batch_service::TableWriter;

    use super::*;

    fn copy(bytes: &[u8]) -> Result<Vec<u8>> {
        let temp = tempfile::tempdir().unwrap();
        let (from, to) = (temp.path().join("from"), temp.path().join("to"));
        std::fs::write(&from, bytes).unwrap();
        let table = OwnedFd::from(File::open(from).unwrap());
        copy_table((table, bytes.len() as u64), &File::create(&to).unwrap(), "table")?;
        Ok(std::fs::read(to).unwrap())
    }

    #[test]
    fn a_table_with_a_block_of_zeros_is_not_copied() {
        for size in [0, 1, HOLE_BYTES, COPY_BYTES, COPY_BYTES + 1, 2 * COPY_BYTES + 5000] {
            let mut bytes = vec![7; size];
            assert_eq!(copy(&bytes).unwrap(), bytes);
            for block in bytes.chunks_exact_mut(HOLE_BYTES) {
                block[1..].fill(0);
            }
            assert_eq!(copy(&bytes).unwrap(), bytes);
        }
        let mut bytes = vec![7; COPY_BYTES + 2 * HOLE_BYTES];
        for at in [0, COPY_BYTES - HOLE_BYTES, COPY_BYTES + HOLE_BYTES] {
            bytes.fill(7);
            bytes[at..at + HOLE_BYTES].fill(0);
            assert_eq!(copy(&bytes).unwrap_err().kind, ErrorKind::InvalidInput, "{at}");
        }
    }

    #[test]
    fn tables_have_no_block_of_zeros() {
        let mut random = quell_testkit::Random::new(1);
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("table");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let mut table = TableWriter::new(file);
        // Contents that can be compressed only in the part with zeros, which has several lengths.
        for number in 0_u64..300 {
            let zeros = HOLE_BYTES + random.below(3 * HOLE_BYTES);
            let before = random.below(COPY_BYTES / 16 - zeros);
            let mut value = random.bytes(COPY_BYTES / 16);
            value[before..before + zeros].fill(0);
            table.add(&number.to_be_bytes(), &value).unwrap();
        }
        table.finish().unwrap();
        let bytes = std::fs::read(path).unwrap();
        assert!(bytes.len() > 8 << 20);
        assert_eq!(copy(&bytes).unwrap(), bytes);
    }
}
