//! The execution of a client's requests on a name space. docs/formats/batch-protocol.md describes
//! the messages.

use quell_batch_service::{Bytes, ListedName, NameSpace, PROTOCOL, Reply, Request};
use quell_vfs::{Error, ErrorKind, Result};

/// The largest number of names in a reply.
const NAMES_MAX: usize = 1024;
/// The reasons for which a request is refused.
pub(crate) const BEYOND_LIMITS: &str = "a part of the request is too long, or not valid";
pub(crate) const LONG_REPLY: &str = "the reply is longer than the client accepts";

/// Returns the error for a request that is refused.
pub(crate) fn refuse(reason: &str) -> Error {
    let source = Some(reason.to_owned().into());
    Error { source, ..Error::new(ErrorKind::InvalidInput, "execute a request", "") }
}

/// Returns the error for a client with another version of the protocol.
pub(crate) fn other_version(protocol: u32) -> Error {
    let reason = format!(
        "the server has version {PROTOCOL} of the protocol, and the client version {protocol}: use one version of Quell"
    );
    Error { source: Some(reason.into()), ..Error::new(ErrorKind::Unsupported, "greet", "") }
}

/// Executes a request on names. Errors: `Unsupported` for a request that is not about names.
pub(crate) fn perform(names: &dyn NameSpace, request: Request) -> Result<Reply> {
    Ok(match request {
        Request::Lookup { dir, name } => Reply::Found(names.lookup(dir, &name.0)?),
        Request::Find { number, place } => Reply::Found(Some(names.find(number, &place)?)),
        Request::Parent { dir } => {
            let (dir, name) = names.parent(dir)?;
            Reply::Parent { dir, name: Bytes(name) }
        }
        Request::List { dir, after } => {
            let mut listed = Vec::new();
            let mut is_last = true;
            names.list(dir, &after.0, &mut |name, number, kind| {
                is_last = listed.len() < NAMES_MAX;
                if is_last {
                    let name = Bytes(name.to_vec());
                    listed.push(ListedName { name, number, type_bits: kind.mode_bits() });
                }
                is_last
            })?;
            Reply::Names { names: listed, is_last }
        }
        Request::Create { dir, name, node, new, now } => {
            Reply::Found(Some(names.create(dir, &name.0, node, new.into(), now.into())?))
        }
        Request::Link { number, place, dir, name, now } => {
            Reply::Found(Some(names.link((number, &place), dir, &name.0, now.into())?))
        }
        Request::Remove { dir, name, now } => Reply::Removed(names.remove(dir, &name.0, now.into())?),
        Request::RemoveDir { dir, name, now } => {
            Reply::Removed(names.remove_dir(dir, &name.0, now.into())?)
        }
        Request::Rename(rename) => {
            let (from, to) = ((rename.from_dir, &rename.from.0[..]), (rename.to_dir, &rename.to.0[..]));
            Reply::Renamed(names.rename(from, to, rename.mode, rename.now.into())?)
        }
        Request::Change { number, place, change, now } => {
            Reply::Changed(names.change((number, &place), &change, now.into())?)
        }
        Request::Sync => {
            names.sync()?;
            Reply::Done
        }
        Request::Quota => Reply::Quota(names.quota()?),
        Request::Hello { .. }
        | Request::Begin { .. }
        | Request::BeginForParts { .. }
        | Request::Join { .. }
        | Request::Commit { .. }
        | Request::Abort { .. }
        | Request::Submit { .. }
        | Request::Batches { .. }
        | Request::Conflicts { .. }
        | Request::Snapshots { .. }
        | Request::NextVerification { .. }
        | Request::Verdict { .. }
        | Request::AuxiliaryServers
        | Request::Prepare { .. }
        | Request::Publish { .. }
        | Request::RollBack { .. }
        | Request::Quotas { .. }
        | Request::SetLimit { .. }
        | Request::Resolve { .. }
        | Request::Record { .. }
        | Request::Entries { .. }
        | Request::TakeBack { .. }
        | Request::AwaitDivision { .. }
        | Request::Assign(_)
        | Request::GiveBack { .. }
        | Request::Forget { .. }
        | Request::Touched { .. }
        | Request::Counters => {
            let source = Some("it is not a request on names".into());
            return Err(Error { source, ..Error::new(ErrorKind::Unsupported, "execute a request", "") });
        }
    })
}
