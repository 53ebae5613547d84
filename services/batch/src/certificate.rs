//! The certificate of a batch: the statement of the client about its changes, with which the
//! trusted process verifies them (BatchFS, section II-F).

use std::hash::Hasher;

use quell_vfs::Result;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::batch::BatchRecord;
use crate::entry::damaged;

/// The first bytes of a certificate, with the version of the format.
const MAGIC: [u8; 16] = *b"QUELL PROOF 2\0\0\0";

/// The form in which a batch submits its changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProofForm {
    /// Tables with the entries as the batch leaves them, and a certificate that also states the
    /// entries of the snapshot which the batch has changed.
    #[default]
    Certificate,
    /// The operation log, from which the trusted process makes these entries.
    Log,
}

/// A certificate. It does not grow with the number of new entries, because the files
/// that it names have the sorted changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// The random number of the store.
    pub store: u128,
    /// The number of the batch.
    pub batch: u64,
    /// The hash of the snapshot's tables ([`snapshot_hash`]).
    pub snapshot: u64,
    /// The number of inode numbers from the first one of the batch to the largest one in the
    /// changes.
    pub inodes_used: u64,
    /// The form of the changes.
    pub form: ProofForm,
    /// The tables, or the files of the log, in the ascending order of their keys.
    pub tables: Vec<CertifiedTable>,
    /// The directories of the snapshot that were changed, in the order of their numbers. Empty for
    /// a log, because its operations are executed on the snapshot.
    pub dirs: Vec<CertifiedDir>,
}

/// A table of a batch, or a file of its log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertifiedTable {
    /// The number of its file.
    pub number: u64,
    /// The number of entries, or of operations.
    pub entries: u64,
    /// The checksum of its footer.
    pub checksum: u64,
}

/// A directory of the snapshot that a batch has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertifiedDir {
    /// The inode number.
    pub dir: u64,
    /// The number of its changed names, including the empty one for its own inode.
    pub changes: u64,
    /// The hash of the entries that the snapshot has at these names ([`PreImage`]).
    pub pre_image: u64,
}

/// The hash of the entries of the snapshot that a batch has changed, in one directory.
#[derive(Default)]
pub(crate) struct PreImage {
    hash: Xxh3,
    changes: u64,
}

impl PreImage {
    /// Adds the next name, and the value that the snapshot has for it.
    pub(crate) fn add(&mut self, name: &[u8], before: Option<&[u8]>) {
        self.changes += 1;
        self.hash.write_u64(name.len() as u64);
        self.hash.update(name);
        self.hash.write_u64(before.map_or(u64::MAX, |value| value.len() as u64));
        self.hash.update(before.unwrap_or_default());
    }

    /// Returns the statement about the directory.
    pub(crate) fn finish(&self, dir: u64) -> CertifiedDir {
        CertifiedDir { dir, changes: self.changes, pre_image: self.hash.digest() }
    }
}

/// Returns the hash of the tables of a batch's snapshot.
pub(crate) fn snapshot_hash(record: &BatchRecord) -> u64 {
    let mut hash = Xxh3::new();
    for table in &record.snapshot {
        hash.write_u64(table.number);
        hash.write_u64(table.checksum);
    }
    hash.digest()
}

impl Certificate {
    /// Encodes the certificate (docs/formats/batch.md).
    pub fn encode(&self) -> Vec<u8> {
        let body = postcard::to_stdvec(self).expect("a certificate has no value that postcard refuses");
        [&MAGIC[..], &xxh3_64(&body).to_le_bytes(), &body].concat()
    }

    /// Decodes a certificate.
    ///
    /// # Errors
    /// `Damaged` if the bytes are not an encoded certificate.
    pub fn decode(bytes: &[u8]) -> Result<Certificate> {
        let broken = || damaged("a certificate");
        let rest = bytes.strip_prefix(&MAGIC).ok_or_else(broken)?;
        let (checksum, body) = rest.split_first_chunk::<8>().ok_or_else(broken)?;
        if xxh3_64(body) != u64::from_le_bytes(*checksum) {
            return Err(broken());
        }
        match postcard::take_from_bytes::<Certificate>(body) {
            // Numbers have several encodings, of which only the shortest is accepted.
            Ok((certificate, [])) if certificate.encode() == bytes => Ok(certificate),
            _ => Err(broken()),
        }
    }
}
