//! The archive from which a kernel fills its first file system: cpio, the "newc" kind.

/// Files and folders, as the kernel will unpack them.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_755;

impl Archive {
    /// Adds a folder. Those above it have to be there.
    pub(crate) fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER, &[]);
    }

    /// Adds a file that can be executed.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, FILE, content);
    }

    /// The whole archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let name_bytes = u32::try_from(path.len() + 1).expect("a path is short");
        let file_bytes = u32::try_from(content.len()).expect("a file of an archive has less than 4 GiB");
        let inode = self.entries;
        // Inode, mode, owner, group, links, time, size, device (2), special device (2), name, checksum.
        let fields = [inode, mode, 0, 0, 1, 0, file_bytes, 0, 0, 0, 0, name_bytes, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_begin_at_multiples_of_four() {
        let mut archive = Archive::default();
        archive.folder("bin");
        archive.file("bin/a", b"hello");
        let bytes = archive.finish();
        let begins: Vec<usize> = (0..bytes.len() - 5).filter(|at| &bytes[*at..*at + 6] == b"070701").collect();
        // A head has 110 bytes: with a name of four, 114 and two of padding; then 116, five of content, three of padding.
        assert_eq!(begins, [0, 116, 116 + 116 + 8]);
        assert_eq!(&bytes[116 + 116..116 + 121], b"hello");
        assert_eq!(&bytes[116 + 54..116 + 62], b"00000005");
    }
}
