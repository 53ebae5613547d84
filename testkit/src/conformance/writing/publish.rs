//! Promise: publish and sync may be called at any time and any number of times, and change no
//! visible data.

use quell_vfs::{Context, OpenMode};

use super::mount::{WritableImplementation, whole};

pub(super) fn check(implementation: &WritableImplementation<'_>) {
    let mount = implementation.mount();
    let (node, file) = mount.create("file");
    let reader = mount.verbs().open_as(&Context::OWN, node, OpenMode::READ).unwrap();
    file.publish().unwrap();
    file.sync().unwrap();
    let mut expected = Vec::new();
    for round in 0..20_u8 {
        file.write_at(&[round; 100], u64::from(round) * 90).unwrap();
        expected.truncate(usize::from(round) * 90);
        expected.extend([round; 100]);
        match round % 4 {
            0 => file.publish().unwrap(),
            1 => file.sync().unwrap(),
            2 => {
                file.sync().unwrap();
                file.publish().unwrap();
                file.publish().unwrap();
            }
            _ => {}
        }
        assert!(whole(&*file) == expected && whole(&*reader) == expected, "round {round}");
    }
    reader.publish().unwrap();
    reader.sync().unwrap();
    // Closed without publish: no data is lost if there is no error.
    file.append(b"last").unwrap();
    expected.extend(b"last");
    drop((file, reader));
    assert!(mount.bytes(node) == expected);
}
