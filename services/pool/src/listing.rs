//! Listings of directories. The entries of a directory lie on all members; each member returns its
//! part in the order of the hashes, and the parts are merged.

use std::borrow::Cow;
use std::rc::Rc;

use quell_vfs::Result;
use quell_wire::pool::{Entries, Entry, FileId, MESSAGE_BYTES_MAX, PeerRequest, Reply};

use crate::inode::{EntryRecord, from_bytes};
use crate::keys;
use crate::map::NameHash;
use crate::member::{Member, is_unknown};
use crate::replies::unexpected;

/// The number of entries that one member returns at a time. It returns more if the next ones have
/// the same hash as the last one.
const PART_ENTRIES_MAX: u32 = 256;

/// The space for the encoded entries of one listing, in bytes.
const LISTING_BYTES_MAX: usize = MESSAGE_BYTES_MAX - (16 << 10);
/// The largest length of an encoded entry without its name, in bytes.
const ENTRY_BYTES: usize = 32;

impl Member {
    /// Returns the entries of a directory after the cursor `after`, up to the last entry that is
    /// known to be the next one in order. The entries of members that cannot be reached are left
    /// out, or cause an error.
    pub(crate) async fn list(
        self: &Rc<Member>,
        dir: FileId,
        after: u64,
        leaves_out: bool,
    ) -> Result<Reply<'static>> {
        let part = PeerRequest::ListPart { dir, after, count_max: PART_ENTRIES_MAX };
        let mut parts = Vec::new();
        for reply in self.call_all(&part).await {
            match reply {
                Ok(Reply::Entries(entries)) => parts.push(entries),
                Ok(other) => return Err(unexpected(&other)),
                Err(error) if leaves_out && is_unknown(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Reply::Entries(merge(parts)))
    }

    pub(crate) fn list_part(&self, dir: FileId, after: u64, count_max: u32) -> Result<Reply<'static>> {
        // The cursor is the hash plus one, so it is also the smallest hash of the next entry.
        let first = keys::entries_from(dir, NameHash(after));
        let end = keys::end_of(&first[..9]);
        let mut entries: Vec<Entry<'static>> = Vec::new();
        let mut has_more = false;
        let mut damaged = Ok(());
        self.environment.store.scan(&keys::range(&first, &end), &mut |key, value| {
            let Some((hash, name)) = keys::parse_entry(key) else { return true };
            let cursor = hash.cursor();
            // Entries with the same cursor are kept together.
            if entries.len() >= count_max as usize && entries.last().is_some_and(|last| last.cursor != cursor)
            {
                has_more = true;
                return false;
            }
            match from_bytes::<EntryRecord>(value, "name") {
                Ok(EntryRecord { id, kind }) => {
                    entries.push(Entry { name: Cow::Owned(name.to_vec()), cursor, id, kind });
                }
                Err(error) => damaged = Err(error),
            }
            damaged.is_ok()
        })?;
        damaged?;
        Ok(Reply::Entries(Entries { entries, has_more }))
    }
}

/// Merges the parts of all members. After the last entry of a part that has more entries, the order
/// is not known, so the result ends there.
fn merge(parts: Vec<Entries<'static>>) -> Entries<'static> {
    let ends = parts.iter().filter(|part| part.has_more);
    let end = ends.filter_map(|part| part.entries.last()).map(|entry| entry.cursor).min();
    let mut entries: Vec<Entry<'static>> = parts.into_iter().flat_map(|part| part.entries).collect();
    entries.sort_by_key(|entry| entry.cursor);
    if let Some(end) = end {
        entries.retain(|entry| entry.cursor <= end);
    }
    let is_limited = limit_bytes(&mut entries);
    Entries { entries, has_more: end.is_some() || is_limited }
}

/// Removes the last entries of a listing that is too long for a message, and returns whether it was
/// too long. Entries with the same cursor are kept together.
fn limit_bytes(entries: &mut Vec<Entry<'static>>) -> bool {
    let mut bytes = 0;
    let mut fits = |entry: &Entry<'static>| {
        bytes += entry.name.len() + ENTRY_BYTES;
        bytes <= LISTING_BYTES_MAX
    };
    let count = entries.iter().take_while(|entry| fits(entry)).count();
    if count == entries.len() {
        return false;
    }
    let first_cut = entries[count].cursor;
    entries.retain(|entry| entry.cursor < first_cut);
    true
}

#[cfg(test)]
mod tests {
    use quell_wire::pool::NodeKind;

    use super::*;

    fn part(cursors: &[u64], has_more: bool) -> Entries<'static> {
        let entry = |cursor: &u64| Entry {
            name: Cow::Owned(cursor.to_string().into_bytes()),
            cursor: *cursor,
            id: FileId(*cursor),
            kind: NodeKind::File,
        };
        Entries { entries: cursors.iter().map(entry).collect(), has_more }
    }

    #[test]
    fn parts_are_merged_as_far_as_all_of_them_reach() {
        let merged = |parts| {
            let Entries { entries, has_more } = merge(parts);
            (entries.iter().map(|entry| entry.cursor).collect::<Vec<_>>(), has_more)
        };
        assert_eq!(merged(vec![part(&[], false), part(&[], false)]), (vec![], false));
        assert_eq!(merged(vec![part(&[2, 9], false), part(&[1, 3], false)]), (vec![1, 2, 3, 9], false));
        assert_eq!(merged(vec![part(&[2, 9], false), part(&[1, 3], true)]), (vec![1, 2, 3], true));
        assert_eq!(merged(vec![part(&[2, 9], true), part(&[5, 7], true)]), (vec![2, 5, 7], true));
    }

    #[test]
    fn a_listing_fits_in_a_message() {
        let entry = |number: u64| Entry {
            name: Cow::Owned(vec![b'x'; 255]),
            // Pairs of entries have the same cursor.
            cursor: number / 2 + 1,
            id: FileId(u64::MAX),
            kind: NodeKind::Symlink,
        };
        let parts = (0..40).map(|part| Entries {
            entries: (part * 256..(part + 1) * 256).map(entry).collect(),
            has_more: false,
        });
        let listing = merge(parts.collect());
        assert!(listing.has_more && listing.entries.len() > 1000);
        assert_eq!(listing.entries.len() % 2, 0, "the two entries of a cursor are not separated");
        assert!(
            quell_wire::encode(&Ok::<_, quell_wire::Failure>(Reply::Entries(listing))).len()
                <= MESSAGE_BYTES_MAX
        );
    }
}
