//! Checks the owner and mode of indexes and boot images before they are used, because these files
//! decide which bytes programs get. The rules are in quell-mount-spec; user names and messages are
//! here.

use std::fs::File;
use std::path::Path;

use quell_mount_spec::{Distrust, DistrustReason, Ownership, Trusted, TrustedUse};

use crate::display::shown;
use crate::failure::Failure;
use crate::inputs::InputFile;
use crate::user_databases::user_name;

/// Refuses a file whose owner or mode does not allow its use.
///
/// `tree`: the tree or disk image that the file belongs to.
pub fn check_trust(
    trusted: &Trusted,
    file: &File,
    path: &Path,
    file_use: TrustedUse,
    tree: Option<(&Path, &Ownership)>,
) -> Result<(), Failure> {
    let decided = trusted.check(file, path, file_use, tree.map(|(_, owner)| owner))?;
    decided.map_err(|distrust| Failure::refused(message(&distrust, tree.map(|(path, _)| path))))
}

/// Does the same as `check_trust`, for a file that the user named. Of a copy that another node has
/// sent, the owner and the mode of the original count.
pub fn check_input_trust(
    trusted: &Trusted,
    file: &InputFile,
    file_use: TrustedUse,
    tree: Option<(&Path, &Ownership)>,
) -> Result<(), Failure> {
    let owner = file.ownership()?;
    let decided = trusted.check_ownership(&owner, &file.path, file_use, tree.map(|(_, owner)| owner));
    decided.map_err(|distrust| Failure::refused(message(&distrust, tree.map(|(path, _)| path))))
}

fn message(distrust: &Distrust, tree: Option<&Path>) -> String {
    let Distrust { path, file_use, reason } = distrust;
    let file = shown(path);
    let of_tree = tree.map(|tree| format!(" or to the owner of {}", shown(tree))).unwrap_or_default();
    match reason {
        DistrustReason::NotRegular => format!("the {file_use} {file} is not a regular file"),
        DistrustReason::ForeignOwner(uid) => {
            let (owner, option) = described(*uid);
            let rule = if tree.is_some() {
                format!("not to you, to root{of_tree}")
            } else {
                "not to you or to root".into()
            };
            format!(
                "the {file_use} {file} belongs to {owner}, {rule}: it determines the files that programs see, so it is not used; \
                 if you trust that user with your programs, pass --trust-owner {option}"
            )
        }
        DistrustReason::UnmappedOwner(uid) => format!(
            "the {file_use} {file} belongs to a user whom this user namespace does not map (shown as {uid}), and is not used; \
             if you trust every such user with your programs, pass --trust-owner {uid}"
        ),
        DistrustReason::WritableByOthers => format!(
            "the {file_use} {file} may be written to by every user, and is not used; its owner can correct that with: \
             chmod o-w {file}"
        ),
        DistrustReason::WritableByGroup(gid) => {
            let restriction = if tree.is_some() { ", who may not write to the tree," } else { "" };
            format!(
                "the {file_use} {file} may be written to by members of group {gid}{restriction} and is not used; its owner can \
                 correct that with: chmod g-w {file}"
            )
        }
    }
}

/// Returns a description of a user for a message, and a value for the option.
fn described(uid: u32) -> (String, String) {
    match user_name(uid) {
        Some(name) if name.chars().all(|c| c.is_ascii_graphic()) => (format!("{name} (user {uid})"), name),
        _ => (format!("user {uid}"), uid.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_owner_and_the_option() {
        let distrust = Distrust {
            path: "/tmp/a.quell".into(),
            file_use: TrustedUse::Index,
            reason: DistrustReason::ForeignOwner(4_000_000),
        };
        let text = message(&distrust, Some(Path::new("/usr/bin")));
        assert!(text.contains("user 4000000") && text.contains("--trust-owner 4000000"), "{text}");
        assert!(text.contains("the owner of /usr/bin"), "{text}");
        assert_eq!(described(0), ("root (user 0)".into(), "root".into()));
    }
}
