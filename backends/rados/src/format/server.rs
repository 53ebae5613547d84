//! The record of the server of a store.

use std::time::Duration;

use crate::fields::{Fault, Fields, checksum};

const MAGIC: &[u8; 8] = b"QUELLRS1";
/// The size of a record, in bytes. All records have the same size, so that a full pool accepts the
/// next one.
pub(crate) const RECORD_BYTES: usize = 48 + ADDRESS_BYTES_MAX + 8;
/// The largest length of the address of a server, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 256;

/// The state of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerState {
    /// The server opens the store, and does not yet serve clients.
    Starting,
    /// The server serves clients.
    Serving,
    /// The server has ended, and answers no more requests.
    Ended,
}

/// The server of a store, as it describes itself with each renewal of its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRecord {
    /// The number of the server: larger than the numbers of all earlier servers.
    pub term: u64,
    /// The number of the renewal in this term.
    pub renewal: u64,
    /// A random number of the process.
    pub owner: [u8; 16],
    /// The duration of the lease: the server answers no request later than this after the beginning
    /// of its last renewal. Less than 2^32 ms.
    pub lease: Duration,
    /// The state.
    pub state: ServerState,
    /// Whether the server encrypts connections by TCP.
    pub is_encrypted: bool,
    /// The host and port at which clients connect; empty if the server accepts no connections by
    /// TCP.
    pub address: String,
}

impl ServerRecord {
    /// Returns the value of the guard of the object.
    pub(crate) fn guard(&self) -> [u8; 16] {
        let mut guard = [0; 16];
        guard[..8].copy_from_slice(&self.term.to_le_bytes());
        guard[8..].copy_from_slice(&self.renewal.to_le_bytes());
        guard
    }

    /// Returns the bytes of the record. The address has at most [`ADDRESS_BYTES_MAX`] bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RECORD_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.guard());
        bytes.extend_from_slice(&self.owner);
        let lease_ms = u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&lease_ms.to_le_bytes());
        bytes.push(match self.state {
            ServerState::Starting => 0,
            ServerState::Serving => 1,
            ServerState::Ended => 2,
        });
        bytes.push(u8::from(self.is_encrypted));
        let address = self.address.as_bytes();
        bytes.extend_from_slice(&(address.len() as u16).to_le_bytes());
        bytes.extend_from_slice(address);
        bytes.resize(RECORD_BYTES - 8, 0);
        let sum = checksum(&bytes, &[]);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<ServerRecord, Fault> {
        let fault = |offset, reason| Fault { offset, reason };
        if !bytes.starts_with(MAGIC) {
            return Err(fault(0, "not the record of a server"));
        }
        if bytes.len() != RECORD_BYTES {
            return Err(fault(bytes.len() as u64, "the record has another size"));
        }
        let (content, sum) = bytes.split_at(RECORD_BYTES - 8);
        if checksum(content, &[]).to_le_bytes() != sum {
            return Err(fault(content.len() as u64, "the checksum of the record differs"));
        }
        let mut fields = Fields(&content[MAGIC.len()..]);
        let mut parse = || {
            let (term, renewal, owner) = (fields.u64()?, fields.u64()?, fields.array()?);
            let lease = Duration::from_millis(fields.u32()?.into());
            let [state, encryption] = fields.array()?;
            let length = fields.u16()?;
            let address = fields.bytes(usize::from(length))?;
            let state = match state {
                0 => ServerState::Starting,
                1 => ServerState::Serving,
                2 => ServerState::Ended,
                _ => return None,
            };
            let address = std::str::from_utf8(address).ok()?.to_owned();
            let is_encrypted = encryption == 1;
            let is_rest_zero = encryption <= 1 && fields.0.iter().all(|byte| *byte == 0);
            is_rest_zero.then_some(ServerRecord { term, renewal, owner, lease, state, is_encrypted, address })
        };
        parse().ok_or_else(|| fault(44, "the state, the protection or the address is not valid"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_decoded_as_it_was_encoded() {
        let record = ServerRecord {
            term: 3,
            renewal: 9,
            owner: [4; 16],
            lease: Duration::from_millis(1500),
            state: ServerState::Serving,
            is_encrypted: true,
            address: "node7:7420".into(),
        };
        let bytes = record.encode();
        assert_eq!(bytes.len(), RECORD_BYTES);
        assert_eq!(ServerRecord::decode(&bytes), Ok(record.clone()));
        let longest = ServerRecord { address: "a".repeat(ADDRESS_BYTES_MAX), ..record };
        assert_eq!(longest.encode().len(), RECORD_BYTES);
        assert_eq!(ServerRecord::decode(&longest.encode()), Ok(longest));
    }

    #[test]
    fn a_changed_record_is_refused() {
        let record = ServerRecord {
            term: 1,
            renewal: 0,
            owner: [4; 16],
            lease: Duration::from_secs(1),
            state: ServerState::Starting,
            is_encrypted: false,
            address: String::new(),
        };
        let bytes = record.encode();
        for offset in 0..bytes.len() {
            for change in [1, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[offset] ^= change;
                ServerRecord::decode(&changed).expect_err("changed");
                // With a checksum that agrees, it is another record or an error.
                let (content, sum) = changed.split_at_mut(RECORD_BYTES - 8);
                sum.copy_from_slice(&checksum(content, &[]).to_le_bytes());
                if let Ok(other) = ServerRecord::decode(&changed) {
                    assert_eq!(other.encode(), changed);
                }
            }
            ServerRecord::decode(&bytes[..offset]).expect_err("too short");
        }
    }
}
