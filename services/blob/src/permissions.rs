//! The permissions of a client: the requests that its key allows. A request is checked before any
//! part of it is executed. docs/semantics.md states the rules.

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::Failure;
use quell_wire::blob::{
    Access, Draft, Grant, JointRequest, KeyDescription, Operation, Part, Read, ReadState, Refusal, Reply,
    Request, Right, Transaction,
};

const NS_PER_S: u64 = 1_000_000_000;

/// The permissions of a client.
#[derive(Debug)]
pub struct Permissions {
    key: KeyDescription,
}

impl Permissions {
    /// Returns all permissions.
    pub fn all() -> Permissions {
        Permissions { key: KeyDescription { access: Access::Admin, expires_s: None } }
    }

    /// Returns the permissions of the key of a store, whose description is empty, or of a key that
    /// was derived from it.
    ///
    /// # Errors
    /// `Damaged` or `InvalidInput` if the bytes are not a description of a key.
    pub fn of_key(description: &[u8]) -> Result<Permissions> {
        match description.is_empty() {
            true => Ok(Permissions::all()),
            false => Ok(Permissions { key: KeyDescription::decode(description)? }),
        }
    }

    /// Checks a request, and returns the reply that refuses it. The caller must have replaced
    /// references to uploads by the operations.
    pub(crate) fn check(&self, request: &Request, now_ns: u64) -> std::result::Result<(), Reply> {
        let expires_ns = self.key.expires_s.map(|seconds| seconds.saturating_mul(NS_PER_S));
        if expires_ns.is_some_and(|expires_ns| now_ns >= expires_ns) {
            return Err(failed(&denied(
                "the key has expired; the owner of the store creates another one: quell blob key",
            )));
        }
        let Access::Grants(grants) = &self.key.access else { return Ok(()) };
        let grants = Grants(grants);
        match request {
            // These requests concern only the client's own snapshots, uploads and replies.
            Request::Hello { .. }
            | Request::Begin
            | Request::End(_)
            | Request::Upload { .. }
            | Request::Discard(_)
            | Request::Fetch { .. } => Ok(()),
            // The request uses space of the storage.
            Request::WriteExtent { .. } => grants.check_any_write().map_err(|error| failed(&error)),
            Request::Joint(request) => grants.check_joint(request),
            Request::Read { state, name, .. }
            | Request::Stat { state, name }
            | Request::NextData { state, name, .. } => {
                grants.check_draft(state)?;
                grants.check(Right::Read, name).map_err(|error| failed(&error))
            }
            Request::List { state, prefix, .. } => {
                grants.check_draft(state)?;
                grants.check_list(prefix).map_err(|error| failed(&error))
            }
            Request::Commit(transaction) | Request::CommitWritten { transaction, .. } => {
                grants.check_transaction(transaction)
            }
            Request::CommitUploaded(_) => Err(failed(&denied("the transaction is not known"))),
            Request::Collect | Request::Counters => {
                Err(failed(&denied("the key has no right to administer the store")))
            }
        }
    }
}

fn denied(reason: impl Into<String>) -> Error {
    let source = Some(reason.into().into());
    Error { source, ..Error::new(ErrorKind::PermissionDenied, "execute", "request") }
}

fn failed(error: &Error) -> Reply {
    Reply::Failed(Failure::new(error))
}

fn refused(operation: Option<usize>, error: &Error) -> Reply {
    let operation = operation.map(|index| index as u32);
    Reply::Refused(Refusal::Failed { operation, failure: Failure::new(error) })
}

/// The grants of a key.
struct Grants<'a>(&'a [Grant]);

impl Grants<'_> {
    fn has(&self, right: Right, name: &[u8]) -> bool {
        self.0.iter().any(|grant| grant.right == right && name.starts_with(&grant.prefix))
    }

    fn check(&self, right: Right, name: &[u8]) -> Result<()> {
        match self.has(right, name) {
            true => Ok(()),
            false => Err(denied(format!("the key has no right to {right} {}", name.escape_ascii()))),
        }
    }

    /// Checks that the key has the right to write some names.
    fn check_any_write(&self) -> Result<()> {
        match self.0.iter().any(|grant| grant.right == Right::Write) {
            true => Ok(()),
            false => Err(denied("the key has no right to write")),
        }
    }

    /// Checks a list of names. A list is either complete or refused, so that a program cannot
    /// mistake a part of the names for all names.
    fn check_list(&self, prefix: &[u8]) -> Result<()> {
        if self.has(Right::Read, prefix) {
            return Ok(());
        }
        let allowed = self.0.iter().filter(|grant| grant.right == Right::Read);
        let allowed: Vec<String> = allowed.map(|grant| grant.prefix.escape_ascii().to_string()).collect();
        let allowed = match allowed.is_empty() {
            true => String::new(),
            false => format!("; it has the right to list those that begin with {}", allowed.join(", ")),
        };
        let names = match prefix.is_empty() {
            true => "all names".to_owned(),
            false => format!("the names that begin with {}", prefix.escape_ascii()),
        };
        Err(denied(format!("the key has no right to list {names}{allowed}")))
    }

    fn check_operation(&self, operation: &Operation) -> Result<()> {
        match operation {
            Operation::Create { name, .. }
            | Operation::Delete { name }
            | Operation::Write { name, .. }
            | Operation::Append { name, .. }
            | Operation::Resize { name, .. }
            | Operation::SetAttributes { name, .. } => self.check(Right::Write, name),
            Operation::Transform { name, transform, .. } => {
                self.check(Right::Write, name)?;
                if transform.reveals_numbers() { self.check(Right::Read, name) } else { Ok(()) }
            }
            // The bytes of the blob get another name, and the key may have the right to read blobs
            // of that name.
            Operation::Rename { name, to } => {
                self.check(Right::Write, name)?;
                self.check(Right::Write, to)?;
                self.check(Right::Read, name)
            }
        }
    }

    fn check_operations(&self, operations: &[Operation]) -> std::result::Result<(), Reply> {
        for (index, operation) in operations.iter().enumerate() {
            self.check_operation(operation).map_err(|error| refused(Some(index), &error))?;
        }
        Ok(())
    }

    /// Checks the operations that are applied before a read.
    fn check_draft(&self, state: &ReadState) -> std::result::Result<(), Reply> {
        match &state.draft {
            Draft::Inline(operations) => self.check_operations(operations),
            Draft::Uploaded(_) => Err(failed(&denied("the operations are not known"))),
        }
    }

    /// Checks a part that a transaction has read: its commit shows whether the part has changed.
    fn check_read(&self, read: &Read) -> Result<()> {
        match read.part {
            // The results of operations show the existence and the size of a blob in any case.
            Part::Existence | Part::Size if self.has(Right::Write, &read.name) => Ok(()),
            Part::Existence | Part::Size | Part::Range { .. } => self.check(Right::Read, &read.name),
            Part::NamesWithPrefix => self.check_list(&read.name),
        }
    }

    /// Checks a request about a joint transaction. The transaction itself is checked when it is
    /// prepared. The later requests have proofs that only servers can compute.
    fn check_joint(&self, request: &JointRequest) -> std::result::Result<(), Reply> {
        match request {
            JointRequest::Prepare(preparation) => self.check_transaction(&preparation.transaction),
            JointRequest::Commit { .. }
            | JointRequest::Resolve(_)
            | JointRequest::Apply(_)
            | JointRequest::Forget { .. }
            | JointRequest::Compare(_)
            | JointRequest::Hold(_) => Ok(()),
            JointRequest::Undecided => Err(failed(&denied("the key has no right to administer the store"))),
        }
    }

    fn check_transaction(&self, transaction: &Transaction) -> std::result::Result<(), Reply> {
        for read in &transaction.reads {
            self.check_read(read).map_err(|error| refused(None, &error))?;
        }
        self.check_operations(&transaction.operations)
    }
}

#[cfg(test)]
#[path = "permissions_test.rs"]
mod tests;
