//! `quell blob key`: derives a key with some of the rights for a store.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use quell_blob::{Access, Grant, KeyDescription, Location, Right, derive_key};
use serde_json::json;

use super::key_files::{expiry, write_private};
use crate::arguments::BlobKeyArgs;
use crate::failure::Failure;
use crate::inputs::{shown, text_of_bytes};
use crate::output::outln;

pub fn run(args: &BlobKeyArgs) -> Result<ExitCode, Failure> {
    let grants = |right, prefixes: &[OsString]| -> Vec<Grant> {
        prefixes.iter().map(|prefix| Grant { right, prefix: prefix.as_bytes().to_vec() }).collect()
    };
    let access = match args.admin {
        true => Access::Admin,
        false => {
            Access::Grants([grants(Right::Read, &args.read), grants(Right::Write, &args.write)].concat())
        }
    };
    let expires_s = args.expires.as_deref().map(expiry).transpose()?;
    let location: Location = args.store.parse()?;
    let Some(store_key) = location.key_file() else {
        return Err(Failure::wrong_input(format!(
            "{}: add key=FILE with the key of the store",
            shown(&args.store)
        )));
    };
    let content = derive_key(&store_key, &KeyDescription { access, expires_s })?;
    write_private(&args.file, &content, args.force)?;
    if args.output.json {
        let texts = |prefixes: &[OsString]| -> Vec<_> {
            prefixes.iter().map(|prefix| text_of_bytes(prefix.as_bytes())).collect()
        };
        let file = text_of_bytes(args.file.as_os_str().as_bytes());
        let (read, write) = (texts(&args.read), texts(&args.write));
        let line = json!({
            "file": file, "admin": args.admin, "read": read, "write": write, "expires_s": expires_s,
        });
        outln!("{line:#}");
    }
    Ok(ExitCode::SUCCESS)
}
