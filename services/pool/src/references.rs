//! References of the clients of this member to nodes of other members, and of the other members to
//! nodes of this member. The functions return and renew references, declare them again to a member
//! that has dropped them, and drop the references of a member that has ended.

use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::future::join_all;
use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::pool::{FileId, HOLDS_MAX, MemberId, PeerRequest, Reply};

use crate::holds::ClientId;
use crate::member::{Member, is_unknown};
use crate::replies::unexpected;
use crate::sessions::{LEASE, Origin, RENEWAL_INTERVAL};

/// The largest number of references in one message.
const REFERENCES_MAX: usize = 4096;

impl Member {
    /// Makes a reference for a client to each node, and returns the nodes that do not exist.
    pub(crate) async fn hold_all(
        self: &Rc<Member>,
        client: ClientId,
        ids: Vec<FileId>,
    ) -> Result<Reply<'static>> {
        if ids.len() > HOLDS_MAX {
            return Err(Error::new(ErrorKind::InvalidInput, "hold", "too many nodes"));
        }
        let held = ids.into_iter().map(async |id| {
            // The client may send an identifier of another pool.
            let home = self.map.home(id)?;
            match self.call_for_reference(client, home, PeerRequest::Hold { id, holds: true }).await {
                Ok(_) => Ok(None),
                Err(error) if error.kind == ErrorKind::Stale => Ok(Some(id)),
                Err(error) => Err(error),
            }
        });
        let missing: Result<Vec<Option<FileId>>> = join_all(held).await.into_iter().collect();
        Ok(Reply::Missing(missing?.into_iter().flatten().collect()))
    }

    /// Returns references of clients of this member to the members of the nodes. For members that
    /// cannot be reached, the return is repeated later.
    pub(crate) async fn return_references(self: &Rc<Member>, references: Vec<(FileId, u64)>) {
        let mut by_member: BTreeMap<MemberId, Vec<(FileId, u64)>> = BTreeMap::new();
        for (id, number) in references {
            if let Ok(home) = self.map.home(id) {
                by_member.entry(home).or_default().push((id, number));
            }
        }
        if let Some(references) = by_member.remove(&self.id) {
            let own = PeerRequest::Return { references, unanswered: Vec::new() };
            // A request to this member itself cannot fail here.
            let _ = self.call(self.id, own).await;
        }
        let returned = by_member.into_iter().map(async |(member, references)| {
            {
                let mut outgoing = self.outgoing.borrow_mut();
                let outgoing = outgoing.entry(member).or_default();
                outgoing.held = outgoing.held.saturating_sub(references.len() as u64);
                outgoing.returned.extend(references);
            }
            // After an error, `maintain_references` repeats it.
            let _ = self.send_returned(member).await;
        });
        join_all(returned).await;
    }

    async fn send_returned(self: &Rc<Member>, member: MemberId) -> Result<()> {
        loop {
            let (references, unanswered) = {
                let mut outgoing = self.outgoing.borrow_mut();
                let Some(outgoing) = outgoing.get_mut(&member).filter(|outgoing| !outgoing.is_declaring)
                else {
                    return Ok(());
                };
                (take_some(&mut outgoing.returned), take_some(&mut outgoing.unanswered))
            };
            if references.is_empty() && unanswered.is_empty() {
                return Ok(());
            }
            let request =
                PeerRequest::Return { references: references.clone(), unanswered: unanswered.clone() };
            if let Err(error) = self.call(member, request).await {
                if is_unknown(&error) {
                    let mut outgoing = self.outgoing.borrow_mut();
                    let outgoing = outgoing.entry(member).or_default();
                    outgoing.returned.extend(references);
                    unanswered.into_iter().for_each(|number| outgoing.note_unanswered(number));
                }
                return Err(error);
            }
        }
    }

    /// Returns, renews and declares the references to nodes of all other members.
    pub(crate) async fn maintain_references(self: &Rc<Member>) -> Result<()> {
        let members: Vec<MemberId> = self.outgoing.borrow().keys().copied().collect();
        let maintained = members.into_iter().map(async |member| {
            self.send_returned(member).await?;
            let now = self.monotonic();
            let is_due = {
                let outgoing = self.outgoing.borrow();
                let outgoing = &outgoing[&member];
                let is_old = outgoing.renewed.is_none_or(|renewed| now - renewed >= RENEWAL_INTERVAL);
                outgoing.held > 0 && is_old
            };
            if is_due { self.renew(member).await } else { Ok(()) }
        });
        join_all(maintained).await.into_iter().collect()
    }

    async fn renew(self: &Rc<Member>, member: MemberId) -> Result<()> {
        let now = self.monotonic();
        let lease = match self.call(member, PeerRequest::Renew).await? {
            Reply::Lease { session, number } => Some((session, number)),
            other => return Err(unexpected(&other)),
        };
        if self.outgoing.borrow()[&member].lease != lease {
            self.with_outgoing(member, |outgoing| outgoing.is_declaring = true);
            let declared = self.declare(member).await;
            self.with_outgoing(member, |outgoing| outgoing.is_declaring = false);
            declared?;
        }
        self.with_outgoing(member, |outgoing| {
            outgoing.lease = lease;
            outgoing.renewed = Some(now);
        });
        self.send_returned(member).await
    }

    /// Sends all references to the nodes of a member to this member.
    async fn declare(self: &Rc<Member>, member: MemberId) -> Result<()> {
        let is_there = |id| self.map.home(id).is_ok_and(|home| home == member);
        let references = self.client_holds.borrow().references(is_there);
        for part in references.chunks(REFERENCES_MAX) {
            let request = PeerRequest::Declare { references: part.to_vec() };
            self.call(member, request).await?;
        }
        Ok(())
    }

    fn with_outgoing(&self, member: MemberId, change: impl FnOnce(&mut crate::sessions::Outgoing)) {
        change(self.outgoing.borrow_mut().entry(member).or_default());
    }

    /// Adds references that another member has declared.
    pub(crate) fn take_declared(
        &self,
        origin: Origin,
        references: Vec<(FileId, u64)>,
    ) -> Result<Reply<'static>> {
        for (id, number) in references {
            if self.inode(id).is_ok() {
                self.member_holds.borrow_mut().add(id, origin.member, number);
                self.sessions.borrow_mut().lease(origin.member);
            }
        }
        Ok(Reply::Done)
    }

    /// Drops all references of a member that was started again. Their nodes are kept for as long as
    /// the clients of the member may take to make the references again.
    pub(crate) fn keep_references(&self, member: MemberId) {
        self.member_holds.borrow_mut().keep(member, self.monotonic() + LEASE);
    }

    /// Drops all references of a member. `finish_nodes` removes the nodes that are no longer
    /// needed.
    pub(crate) fn forget_references(&self, member: MemberId) {
        let free = self.member_holds.borrow_mut().forget(member, |_| true);
        free.into_iter().for_each(|id| self.end_writing(id));
    }

    /// Drops the references of members that have sent nothing for [`LEASE`], and nodes that were
    /// kept for this time.
    pub(crate) fn expire_references(&self) {
        let expired = self.sessions.borrow_mut().expire(self.monotonic());
        expired.into_iter().for_each(|member| self.forget_references(member));
        let free = self.member_holds.borrow_mut().end_kept(self.monotonic());
        free.into_iter().for_each(|id| self.end_writing(id));
    }
}

fn take_some<T>(list: &mut Vec<T>) -> Vec<T> {
    list.split_off(list.len().saturating_sub(REFERENCES_MAX))
}
