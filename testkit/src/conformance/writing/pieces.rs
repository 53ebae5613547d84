//! Promise: reading and writing several ranges in one call is equivalent to one call per range.

use super::mount::{WritableImplementation, whole};

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (node, file) = mount.create("file");
    file.write_pieces(&[]).unwrap();
    file.write_pieces(&[(10, b"ten"), (0, b"zero"), (5, b""), (12, b"N!"), (2, b"RO")]).unwrap();
    assert_eq!(whole(&*file), b"zeRO\0\0\0\0\0\0teN!");
    let strided: Vec<(u64, &[u8])> = (0..200).map(|i| (i * 100, &b"0123456789"[..])).collect();
    file.write_pieces(&strided).unwrap();
    let (mut a, mut b, mut c, mut d) = ([1; 4], [1; 20], [1; 0], [1; 4]);
    let mut pieces = [(19_905, &mut a[..]), (95, &mut b[..]), (0, &mut c[..]), (1 << 41, &mut d[..])];
    assert_eq!(file.read_pieces(&mut pieces).unwrap(), [4, 20, 0, 0]);
    assert_eq!(&a, b"5678");
    assert_eq!(&b, b"\0\0\0\0\x000123456789\0\0\0\0\0");
    let mut last = [1; 8];
    assert_eq!(file.read_pieces(&mut [(19_905, &mut last)]).unwrap(), [5]);
    file.publish().unwrap();
    drop(file);
    let bytes = mount.bytes(node);
    assert_eq!(bytes.len(), 19_910);
    assert!((0..200).all(|i| &bytes[i * 100..i * 100 + 10] == b"0123456789"));
}
