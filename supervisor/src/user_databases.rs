//! Users and groups in the databases that the system is configured with. A look-up executes id(1)
//! or getent(1), which also know databases such as LDAP, and can take seconds.

use std::io;
use std::process::{Command, Stdio};

/// The exit codes of programs that find nothing.
const NOT_FOUND_BY_GETENT: i32 = 2;
const NOT_FOUND_BY_ID: i32 = 1;

/// The groups of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserGroups {
    /// The group in the record of the user.
    pub gid: u32,
    /// All groups.
    pub groups: Vec<u32>,
}

/// Returns the user id of a name in the system's user databases.
pub fn user_id(name: &str) -> Option<u32> {
    id(&["-u", "--", name]).ok()??.parse().ok()
}

/// Returns the name of a user in the system's user databases.
pub fn user_name(uid: u32) -> Option<String> {
    id(&["-un", "--", &uid.to_string()]).ok()?
}

/// Returns the group id of a name in the system's group databases.
pub fn group_id(name: &str) -> Option<u32> {
    let text = getent("group", name).ok()??;
    let mut fields = text.split(':');
    (fields.next() == Some(name)).then(|| fields.nth(1))?.and_then(|gid| gid.parse().ok())
}

/// Returns the groups of a user. `None` if no user has this id.
///
/// # Errors
/// The errors of a program that cannot be executed; `InvalidData` if its output has another form.
pub fn groups_of_user(uid: u32) -> io::Result<Option<UserGroups>> {
    let Some(record) = getent("passwd", &uid.to_string())? else { return Ok(None) };
    let fields: Vec<&str> = record.split(':').collect();
    let unexpected = || io::Error::new(io::ErrorKind::InvalidData, "getent(1) or id(1) has printed no user");
    let (name, gid) = match fields[..] {
        [name, _, found, gid, ..] if found.parse() == Ok(uid) => (name, gid),
        _ => return Err(unexpected()),
    };
    let listed = id(&["-G", "--", name])?.ok_or_else(unexpected)?;
    let groups: Result<Vec<u32>, _> = listed.split_whitespace().map(str::parse).collect();
    let (gid, groups) = gid.parse().ok().zip(groups.ok()).ok_or_else(unexpected)?;
    Ok(Some(UserGroups { gid, groups }))
}

/// Returns the record of a key in a database. `None` if there is none.
fn getent(database: &str, key: &str) -> io::Result<Option<String>> {
    output("getent", &[database, "--", key], NOT_FOUND_BY_GETENT)
}

/// Returns the output of id(1). `None` if there is no such user.
fn id(arguments: &[&str]) -> io::Result<Option<String>> {
    output("id", arguments, NOT_FOUND_BY_ID)
}

/// Returns the first line that a program prints, without spaces around it. `None` if it ends with
/// the exit code `not_found`.
fn output(program: &str, arguments: &[&str], not_found: i32) -> io::Result<Option<String>> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    if output.status.code() == Some(not_found) {
        return Ok(None);
    }
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success());
    match text.as_deref().and_then(|text| text.lines().next()) {
        Some(line) => Ok(Some(line.trim().to_owned())),
        None => Err(io::Error::other(format!("{program}(1) has failed"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_a_user_are_those_of_the_databases() {
        let root = groups_of_user(0).unwrap().unwrap();
        assert!(root.gid == 0 && root.groups.contains(&0));
        assert_eq!(groups_of_user(4_300_999).unwrap(), None);
    }

    #[test]
    fn user_names_are_resolved_to_ids() {
        assert_eq!(user_id("root"), Some(0));
        assert!([user_id("no such user"), user_id(""), user_id("-u")].iter().all(Option::is_none));
    }
}
