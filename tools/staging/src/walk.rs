//! The walk through a source. One thread lists its directories, creates them at the destination,
//! and passes on all other entries.

use std::sync::Arc;

use quell_vfs::{Kind, Result};

use crate::context::{Context, TEMPORARY_PREFIX};
use crate::directories::Directory;

/// An entry that is not a directory.
pub struct Entry {
    pub dir: Arc<Directory>,
    pub name: Vec<u8>,
    pub kind: Kind,
}

/// Passes the entry `name` of a directory, or all its entries, to `push`, which may wait.
pub fn walk(context: &Context<'_>, top: &Arc<Directory>, name: Option<&[u8]>, push: &dyn Fn(Entry)) {
    match name {
        Some(name) => visit(context, top, name, None, push),
        None => list(context, top, push),
    }
}

/// Visits the entries of a directory. A directory among them is visited before the listing
/// continues, so that no list of names is kept. The stack of the thread must be large enough for
/// [`DEPTH_MAX`] nested calls.
///
/// [`DEPTH_MAX`]: crate::DEPTH_MAX
fn list(context: &Context<'_>, dir: &Arc<Directory>, push: &dyn Fn(Entry)) {
    let listed = dir.source.visit(&mut |name, kind| {
        // The file remains from a killed copy.
        if !name.starts_with(TEMPORARY_PREFIX) {
            visit(context, dir, name, kind, push);
        }
        !context.progress.is_stopped()
    });
    if let Err(error) = listed {
        context.fail(&dir.path_of(b""), &error);
    }
}

fn visit(context: &Context<'_>, dir: &Arc<Directory>, name: &[u8], kind: Option<Kind>, push: &dyn Fn(Entry)) {
    let entered = match kind.map_or_else(|| kind_of(dir, name), Ok) {
        Ok(Kind::Dir) => dir.enter(context, name),
        Ok(kind) => {
            if context.options.part.is_none_or(|part| part.has(&dir.path_of(name))) {
                dir.add();
                push(Entry { dir: Arc::clone(dir), name: name.to_vec(), kind });
            }
            return;
        }
        Err(error) => Err(error),
    };
    match entered {
        Ok(entered) => {
            list(context, &entered, push);
            entered.end(context);
        }
        Err(error) => context.fail(&dir.path_of(name), &error),
    }
}

fn kind_of(dir: &Directory, name: &[u8]) -> Result<Kind> {
    // Entries of an unknown kind cannot be copied.
    Ok(dir.source.stat(name)?.kind().unwrap_or(Kind::Fifo))
}
