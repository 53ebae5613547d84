//! Requests of other members that arrive again in a pool with copies, because their replies were
//! lost: they are performed only once, and a repetition gets the result that `results.rs` keeps.

use std::rc::Rc;

use quell_kv::{Batch, KeyRange};
use quell_vfs::Result;
use quell_wire::Failure;
use quell_wire::pool::{NodeKind, Operation, PeerRequest, Reply};

use crate::creation::SET_GROUP_ID;
use crate::inode::{from_bytes, to_bytes};
use crate::keys;
use crate::lock_table::Lock;
use crate::member::Member;
use crate::results::{Performed, ResultRecord, State};
use crate::sessions::{Origin, late_request};

impl Member {
    /// Reads the results from the store.
    pub(crate) fn load_results(&self) -> Result<()> {
        let mut loaded = Ok(());
        self.environment.store.scan(&KeyRange::prefix(&keys::all_results()), &mut |key, value| {
            match (keys::parse_result(key), from_bytes(value, "result")) {
                (Some(slot), Ok(record)) => self.results.borrow_mut().load(slot, record),
                (_, Err(error)) => loaded = Err(error),
                (None, Ok(_)) => {}
            }
            loaded.is_ok()
        })?;
        loaded
    }

    /// Forgets the results for which the sender of a message does not wait any more.
    pub(crate) fn forget_results(&self, origin: Origin, first_waiting: u64) {
        if self.environment.has_copies {
            self.results.borrow_mut().forget_before(origin, first_waiting);
        }
    }

    /// Adds the result of a request to the batch of its changes, so that a repetition of the
    /// request has no effect. Requests of this member to itself are not repeated.
    pub(crate) fn put_result(&self, origin: Origin, performed: Performed, batch: &mut Batch) {
        if !self.environment.has_copies || origin.member == self.id {
            return;
        }
        let slot = self.results.borrow_mut().record(origin, performed);
        let Origin { member, session, number } = origin;
        batch.put(&keys::result(slot), &to_bytes(&ResultRecord { member, session, number, performed }));
    }

    /// Returns whether a request has set the size of its file before the member was started.
    pub(crate) fn has_set_size(&self, origin: Origin) -> bool {
        matches!(self.results.borrow().get(origin), Some(State::Recorded(Performed::Size)))
    }

    /// Performs a request of another member, unless it was performed before. Returns the result of
    /// the first execution.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the sender has abandoned the request, `TimedOut` if the first execution
    /// takes more than 30 seconds.
    pub(crate) async fn serve_once(
        self: &Rc<Member>,
        origin: Origin,
        request: PeerRequest<'_>,
    ) -> Result<Reply<'static>> {
        // A repetition waits for the end of the first execution.
        let _request = self.lock(Lock::Request(origin)).await?;
        if !self.sessions.borrow().is_waited_for(origin) {
            return Err(late_request());
        }
        let known = self.results.borrow().get(origin).cloned();
        let result = match known {
            Some(State::Ended(result)) => return result.map_err(|failure| failure.into_error("repeat", b"")),
            Some(State::Recorded(performed)) => self.complete(origin, request, performed).await,
            None => self.serve_request(origin, request).await,
        };
        if self.sessions.borrow().is_waited_for(origin) {
            let kept = result.as_ref().map(Reply::clone).map_err(Failure::new);
            self.results.borrow_mut().end(origin, kept);
        }
        result
    }

    /// Returns the result of a request that an earlier start of this member has performed. First
    /// completes the steps that follow the change in a successful request.
    async fn complete(
        self: &Rc<Member>,
        origin: Origin,
        request: PeerRequest<'_>,
        performed: Performed,
    ) -> Result<Reply<'static>> {
        let changed_dir = match &request {
            PeerRequest::Perform(
                Operation::Create { dir, .. }
                | Operation::Remove { dir, .. }
                | Operation::Rename { from_dir: dir, .. },
            ) => Some(*dir),
            _ => None,
        };
        if let Some(dir) = changed_dir {
            self.note_change_of(dir, self.now());
        }
        match performed {
            Performed::All => {
                // The decision of the request's transaction may not be sent yet. After an error,
                // `maintain` repeats this.
                let _ = self.send_decisions().await;
                Ok(Reply::Done)
            }
            Performed::Creation(id) => {
                let node = self.inode(id)?.node(id);
                self.add_hold(id, origin);
                Ok(Reply::Held(node))
            }
            Performed::Change(id) => {
                let inode = self.inode(id)?;
                if inode.kind == NodeKind::Dir {
                    let gid = (inode.permissions & SET_GROUP_ID != 0).then_some(inode.gid);
                    self.send_to_all(&PeerRequest::SetDirGroup { dir: id, gid }).await?;
                    self.send_to_all(&PeerRequest::ForgetDirs).await?;
                }
                Ok(Reply::Node(inode.node(id)))
            }
            Performed::Size => self.serve_request(origin, request).await,
            Performed::Extension(offset) => Ok(Reply::Offset(offset)),
            Performed::Inline => Ok(Reply::Written(true)),
        }
    }
}
