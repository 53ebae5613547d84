//! Decodes a qcow2 image: it is refused, or its tables can be read, its compressed clusters
//! decompressed and its hot blocks listed, within the size of the file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_qcow2::{BlockSource, Cluster, Header, Layer, Named, expand, hot_blocks, named, visit};
use quell_vfs::ReadAt;

struct Bytes<'a>(&'a [u8]);

impl ReadAt for Bytes<'_> {
    fn read_at(&self, into: &mut [u8], offset: u64) -> quell_vfs::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|from| self.0.get(from..)).unwrap_or_default();
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = Header::parse(bytes) else { return };
    for name in header.backing.iter().map(|backing| &backing.name).chain(&header.data_file) {
        assert!(!name.is_empty() && !name.contains(&0));
        if let Named::Absolute(path) = named(name) {
            assert_eq!(path[0], b'/');
        }
    }
    let file = Bytes(bytes);
    let clusters = header.virtual_bytes.div_ceil(header.cluster_bytes());
    let mut expanded = 0;
    let walked = visit(&header, &file, &mut |cluster, place| {
        assert!(cluster < clusters);
        match place {
            Cluster::Plain { offset } => assert!(offset.is_multiple_of(header.cluster_bytes())),
            Cluster::Compressed { offset, bytes: length } if expanded < 4 => {
                expanded += 1;
                let mut piece = vec![0; length.min(bytes.len() as u64) as usize];
                let _ = file.read_at(&mut piece, offset);
                if let Ok(cluster) = expand(&piece, &header) {
                    assert_eq!(cluster.len() as u64, header.cluster_bytes());
                }
            }
            _ => {}
        }
        Ok(())
    });
    let hot: Vec<u32> = (0..(bytes.len() as u32).div_ceil(4096)).collect();
    let layer = Layer { header: Some(&header), file: &file, file_bytes: bytes.len() as u64, hot: &hot };
    let Ok(found) = hot_blocks(&[layer]) else { return };
    assert!(walked.is_ok());
    for (block, source) in found {
        assert!(block < header.virtual_bytes.div_ceil(4096));
        if let BlockSource::Block { block, .. } = source {
            assert!(hot.contains(&block));
        }
    }
});
