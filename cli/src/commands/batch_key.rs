//! `quell batch key`: derives keys with which users of a store for a group connect to its server
//! over TCP, and stores the key of a user where mounts and commands find it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use quell_batch::{UserKey, derive_user_key, install_user_key};
use serde_json::json;

use super::key_files::{expiry, write_private};
use crate::arguments::BatchKeyArgs;
use crate::failure::Failure;
use crate::inputs::text_of_bytes;
use crate::output::outln;

pub fn run(args: &BatchKeyArgs) -> Result<ExitCode, Failure> {
    match (&args.install, args.user, &args.file) {
        (Some(file), ..) => install_user_key(&args.store, &args.trust.trust_owner, file)?,
        (None, Some(uid), Some(file)) => derive(args, uid, file)?,
        (None, ..) => {
            return Err(Failure::wrong_input("pass --user USER and --file FILE, or --install FILE"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn derive(args: &BatchKeyArgs, uid: u32, file: &Path) -> Result<(), Failure> {
    let expires_s = args.expires.as_deref().map(expiry).transpose()?;
    let content = derive_user_key(&args.store, UserKey { uid, expires_s })?;
    write_private(file, &content, args.force)?;
    if args.output.json {
        let file = text_of_bytes(file.as_os_str().as_bytes());
        outln!("{:#}", json!({ "file": file, "user": uid, "expires_s": expires_s }));
    }
    Ok(())
}
