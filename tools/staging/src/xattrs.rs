//! The extended attributes of a copy: those that users can set (`user.`).

use std::collections::BTreeMap;

use quell_posix::{Dir, WritableDir};
use quell_vfs::{Error, ErrorKind, Result, USER_XATTRS};

/// Gives the entry `to` of `target` the attributes of the entry `from` of `source`, and removes its
/// others. An empty name stands for the directory itself.
///
/// # Errors
///
/// `Unsupported` if there are attributes and the destination cannot have any.
pub fn copy_xattrs(source: &dyn Dir, from: &[u8], target: &dyn WritableDir, to: &[u8]) -> Result<()> {
    let wanted = user_xattrs(source, from)?;
    let existing = user_xattrs(target, to)?;
    let set = |attribute: &[u8], value: Option<&[u8]>| {
        target.set_xattr(to, attribute, value).map_err(|error| match error.kind {
            ErrorKind::Unsupported => {
                let source =
                    Some("the destination has no extended attributes; --no-xattrs omits them".into());
                Error { source, ..error }
            }
            _ => error,
        })
    };
    for attribute in existing.keys().filter(|attribute| !wanted.contains_key(*attribute)) {
        set(attribute, None)?;
    }
    for (attribute, value) in &wanted {
        if existing.get(attribute) != Some(value) {
            set(attribute, Some(value))?;
        }
    }
    Ok(())
}

fn user_xattrs(dir: &dyn Dir, name: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let all = dir.xattrs(name)?.into_iter();
    Ok(all.filter(|(attribute, _)| attribute.starts_with(USER_XATTRS)).collect())
}
