//! The transfers of clients: uploads of transactions and drafts, extents that no transaction refers
//! to yet, and long replies. The size of the transfers is bounded, for each client and for all
//! clients together.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use quell_threads::lock;
use quell_vfs::{Error, ErrorKind};
use quell_wire::Failure;
use quell_wire::blob::{DATA_BYTES_MAX, OPERATIONS_MAX, Reply, TransferId, UPLOAD_BYTES_MAX, WrittenExtent};

use crate::content::NewExtent;
use crate::extent_upload::ExtentUpload;
use crate::store::OpenStore;

/// The transfers of one client.
#[derive(Default)]
pub(crate) struct ClientTransfers {
    uploads: HashMap<TransferId, Vec<u8>>,
    /// The extents, except those to which a request is adding a part.
    extents: HashMap<TransferId, ExtentUpload>,
    replies: HashMap<TransferId, Arc<Vec<u8>>>,
    bytes: u64,
    has_ended: bool,
}

impl ClientTransfers {
    /// Returns the bytes of an upload.
    pub(crate) fn uploaded(&self, upload: TransferId) -> Option<&[u8]> {
        self.uploads.get(&upload).map(Vec::as_slice)
    }
}

/// The transfers of all clients.
pub(crate) struct Transfers {
    store: OpenStore,
    client_bytes_max: u64,
    total_bytes_max: u64,
    bytes: AtomicU64,
}

pub(crate) fn invalid(reason: &'static str) -> Reply {
    failed(ErrorKind::InvalidInput, reason)
}

pub(crate) fn busy(reason: &'static str) -> Reply {
    failed(ErrorKind::Busy, reason)
}

fn failed(kind: ErrorKind, reason: &'static str) -> Reply {
    let error = Error::new(kind, "execute", "request");
    Reply::Failed(Failure::new(&Error { source: Some(reason.into()), ..error }))
}

fn too_much() -> Reply {
    busy("the uploads of the clients need too much memory; repeat the request later")
}

impl Transfers {
    /// Returns the transfers of a store, which has no clients yet. `client_bytes_max` and
    /// `total_bytes_max` limit the bytes of one client and of all clients.
    pub(crate) fn new(store: OpenStore, client_bytes_max: u64, total_bytes_max: u64) -> Transfers {
        Transfers { store, client_bytes_max, total_bytes_max, bytes: AtomicU64::new(0) }
    }

    /// Returns the bytes of the transfers of all clients.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Ends all transfers of a client. Does not block.
    pub(crate) fn end(&self, of: &Mutex<ClientTransfers>) {
        let ended = ClientTransfers { has_ended: true, ..ClientTransfers::default() };
        let ended = std::mem::replace(&mut *lock(of), ended);
        self.bytes.fetch_sub(ended.bytes, Ordering::Relaxed);
        ended.extents.into_values().for_each(|upload| self.store.abandon_extent(upload.extent));
    }

    /// Adds to the number of bytes of a client. Returns false, and adds nothing, if a limit would
    /// be exceeded.
    fn keep(&self, of: &mut ClientTransfers, bytes: u64) -> bool {
        if of.bytes + bytes > self.client_bytes_max {
            return false;
        }
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.total_bytes_max {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        of.bytes += bytes;
        true
    }

    fn forget(&self, of: &mut ClientTransfers, bytes: u64) {
        of.bytes -= bytes;
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Keeps a long reply, unless a limit would be exceeded.
    pub(crate) fn keep_reply(
        &self,
        of: &Mutex<ClientTransfers>,
        number: TransferId,
        encoded: Vec<u8>,
    ) -> bool {
        let mut of = lock(of);
        let is_kept = self.keep(&mut of, encoded.len() as u64);
        if is_kept {
            of.replies.insert(number, Arc::new(encoded));
        }
        is_kept
    }

    /// Ends an upload, and returns its bytes.
    pub(crate) fn take_upload(&self, of: &Mutex<ClientTransfers>, upload: TransferId) -> Option<Vec<u8>> {
        let mut of = lock(of);
        let bytes = of.uploads.remove(&upload)?;
        self.forget(&mut of, bytes.len() as u64);
        Some(bytes)
    }

    /// Adds a part to an upload.
    pub(crate) fn upload(
        &self,
        of: &Mutex<ClientTransfers>,
        upload: TransferId,
        offset: u64,
        data: &[u8],
    ) -> Reply {
        if data.len() > DATA_BYTES_MAX {
            return invalid("a part of an upload has more than 1 MiB");
        }
        if offset == 0 {
            self.take_upload(of, upload);
        }
        let mut of = lock(of);
        let length = match of.uploads.get(&upload) {
            Some(bytes) => bytes.len(),
            None if offset == 0 => 0,
            None => return Reply::Unknown,
        };
        if length as u64 != offset || length + data.len() > UPLOAD_BYTES_MAX {
            return invalid("a part of an upload is not the next one, or the upload is too long");
        }
        if !self.keep(&mut of, data.len() as u64) {
            return too_much();
        }
        of.uploads.entry(upload).or_default().extend_from_slice(data);
        Reply::Done
    }

    /// Adds a part to an extent, and writes it if the storage writes extents in parts. A part that
    /// fails ends the extent.
    pub(crate) fn write_extent(
        &self,
        of: &Mutex<ClientTransfers>,
        upload: TransferId,
        offset: u64,
        data: &[u8],
    ) -> Reply {
        if data.len() > DATA_BYTES_MAX {
            return invalid("a part of an extent has more than 1 MiB");
        }
        if offset == 0 {
            self.abandon(of, upload);
        }
        let mut locked = lock(of);
        let begun = match locked.extents.remove(&upload) {
            None if offset == 0 => None,
            None => return Reply::Unknown,
            Some(begun) if begun.extent.length_bytes == offset => Some(begun),
            Some(begun) => {
                locked.extents.insert(upload, begun);
                return invalid("a part of an extent is not the next one");
            }
        };
        let is_one_more = begun.is_none() && locked.extents.len() >= OPERATIONS_MAX;
        if is_one_more || !self.keep(&mut locked, data.len() as u64) {
            locked.extents.extend(begun.map(|begun| (upload, begun)));
            return too_much();
        }
        drop(locked);
        let mut extent = begun.unwrap_or_else(|| self.store.begin_extent());
        let appended = extent.append(data);
        let mut locked = lock(of);
        match appended {
            Ok(()) if !locked.has_ended && !locked.extents.contains_key(&upload) => {
                locked.extents.insert(upload, extent);
                Reply::Done
            }
            // Meanwhile the client has ended, or has begun the extent again.
            Ok(()) => {
                self.drop_extent(&mut locked, extent.extent, offset + data.len() as u64);
                Reply::Unknown
            }
            Err(error) => {
                self.drop_extent(&mut locked, extent.extent, offset + data.len() as u64);
                Reply::Failed(Failure::new(&error))
            }
        }
    }

    /// Passes an extent that was taken from the client to the store for removal, and subtracts its
    /// bytes.
    fn drop_extent(&self, of: &mut ClientTransfers, extent: NewExtent, bytes: u64) {
        // The end of the client has subtracted the bytes already.
        if !of.has_ended {
            self.forget(of, bytes);
        }
        self.store.abandon_extent(extent);
    }

    /// Ends extents whose transaction is to be committed now, and returns them with the positions
    /// of their operations. If the call fails, none of the extents exists any more.
    pub(crate) fn take_extents(
        &self,
        of: &Mutex<ClientTransfers>,
        written: &[WrittenExtent],
    ) -> Result<Vec<(u32, NewExtent)>, Reply> {
        let mut taken = Vec::with_capacity(written.len());
        let mut locked = lock(of);
        for WrittenExtent { upload, .. } in written {
            if let Some(extent) = locked.extents.remove(upload) {
                self.forget(&mut locked, extent.extent.length_bytes);
                taken.push(extent);
            }
        }
        drop(locked);
        let extents: Vec<_> =
            written.iter().zip(&taken).map(|(written, taken)| (written.operation, taken.extent)).collect();
        let are_equal = |(written, taken): (&WrittenExtent, &ExtentUpload)| {
            written.length_bytes == taken.extent.length_bytes
        };
        let finished = match taken.len() == written.len() {
            false => Err(Reply::Unknown),
            true if !written.iter().zip(&taken).all(are_equal) => {
                Err(invalid("an extent has another length than its transaction states"))
            }
            true => taken
                .into_iter()
                .try_for_each(|extent| self.store.finish_extent(extent))
                .map_err(|error| Reply::Failed(Failure::new(&error))),
        };
        if finished.is_err() {
            extents.iter().for_each(|(_, extent)| self.store.abandon_extent(*extent));
        }
        finished.map(|()| extents)
    }

    fn abandon(&self, of: &Mutex<ClientTransfers>, upload: TransferId) {
        let mut of = lock(of);
        if let Some(extent) = of.extents.remove(&upload) {
            self.drop_extent(&mut of, extent.extent, extent.extent.length_bytes);
        }
    }

    /// Ends an upload, an extent or a long reply.
    pub(crate) fn discard(&self, of: &Mutex<ClientTransfers>, number: TransferId) -> Reply {
        self.take_upload(of, number);
        self.abandon(of, number);
        let mut of = lock(of);
        if let Some(bytes) = of.replies.remove(&number) {
            self.forget(&mut of, bytes.len() as u64);
        }
        Reply::Done
    }

    /// Returns a part of a long reply.
    pub(crate) fn fetch(of: &Mutex<ClientTransfers>, reply: TransferId, offset: u64) -> Reply {
        let Some(bytes) = lock(of).replies.get(&reply).cloned() else { return Reply::Unknown };
        match usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)) {
            Some(rest) => Reply::Data(rest[..rest.len().min(DATA_BYTES_MAX)].to_vec()),
            None => invalid("a part of a reply begins after its end"),
        }
    }
}
